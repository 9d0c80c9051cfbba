"""Which generation options the shared prefix can serve, and what greedy decoding leaves of them."""

from collections.abc import Mapping
from typing import Any

# Keys of a checkpoint's generation config that greedy decoding does not look at, or that are the
# same for every row. Any other key may look at the tokens before, where padding would show.
_HARMLESS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id"),
        *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p"),
        *("epsilon_cutoff", "eta_cutoff", "transformers_version", "_from_model_config"),
        *("use_cache", "cache_implementation", "max_length", "max_new_tokens"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        "return_dict_in_generate",
    }
)
_OURS = frozenset({"do_sample", "temperature", "top_k", "top_p", "use_cache"})
# These look at a step's number or at the vocabulary, never at the tokens before.
_BLIND = frozenset({"min_new_tokens", "suppress_tokens"})
_ALONE = frozenset(
    {
        *("num_beams", "num_return_sequences", "num_beam_groups", "constraints"),
        *("force_words_ids", "penalty_alpha", "dola_layers", "guidance_scale"),
        *("prompt_lookup_num_tokens", "assistant_model", "streamer", "max_length"),
        *("cache_implementation", "past_key_values", "stopping_criteria", "logits_processor"),
    }
)


def must_run_alone(options: Mapping[str, Any]) -> str:
    """Why generation options cannot be served from a shared prefix; empty if they can."""
    if options.get("do_sample"):
        return "sampling"
    used = sorted(
        key for key in _ALONE & options.keys() if options[key] not in (None, 1, False, 1.0)
    )
    return f"generation option {', '.join(used)}" if used else ""


def looks_back(options: Mapping[str, Any], generation_config: Any) -> bool:
    """Whether decoding looks at earlier tokens, so that rows of a batch must not be padded."""
    return bool(options.keys() - _OURS - _BLIND) or bool(
        generation_config.to_diff_dict().keys() - _HARMLESS - _BLIND
    )


def greedy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options without those that only sampling has."""
    kept = {key: value for key, value in options.items() if key not in _OURS}
    return {**kept, "do_sample": False}
