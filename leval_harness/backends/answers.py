"""Which answers can share a text, and where they stop.

transformers' own `generate` decodes, so that its logits processors and end-of-sequence tokens apply
as they do in lm-eval's `hf`. Only the cache that it starts from is this package's. Of the checkpoint's
generation config, what would change an answer is set back (`neutralize`).
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria
from transformers import GenerationConfig, StoppingCriteria

SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "use_cache"}
"""Options of sampling, which greedy decoding ignores."""
_SHARING = {"until", "max_gen_toks", "min_new_tokens", *SAMPLING}
"""Options that mean the same where a text is shared and rows are padded."""
NEUTRAL = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "length_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0,
    "min_new_tokens": 0, "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1,
    "diversity_penalty": 0.0, "guidance_scale": 1.0, "early_stopping": False,
    "remove_invalid_values": False, "renormalize_logits": False, "token_healing": False,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_p": 0.0,
}  # fmt: skip
"""Values that change no answer, of keys that a checkpoint may write out; they are not recorded."""
KEPT = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "use_cache", "compile_config", "disable_compile", "continuous_batching_config", "low_memory",
    "is_assistant", "transformers_version", "_from_model_config",
}  # fmt: skip
"""Keys of a generation config that stay as the checkpoint has them: special tokens, which every
backend reads, and keys of memory and speed, which change no answer."""
LOSSLESS_CACHES = {
    "dynamic", "dynamic_full", "static", "hybrid", "hybrid_chunked", "sliding_window", "offloaded",
    "offloaded_static", "offloaded_hybrid", "offloaded_hybrid_chunked", "paged",
}  # fmt: skip
"""Values of `cache_implementation` that change no answer. They are set back all the same, because
`generate` takes no shared document beside them, but not recorded; a quantized cache is."""
WITHOUT_EFFECT = {
    "do_sample", "temperature", "top_k", "top_p", "max_length",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "cache_config", "max_cache_len",
}  # fmt: skip
"""Keys that are set back but not recorded: a request decides them, they only add outputs that nobody
reads, or they are details of a `cache_implementation`, which is recorded where it matters."""


def neutralize(model: Any) -> dict[str, Any]:
    """Set the generation settings of a checkpoint back to those that leave greedy decoding alone.

    vLLM gets the settings of a request alone, while `generate` of transformers starts from those of
    the checkpoint. A `repetition_penalty` in generation_config.json would therefore change answers
    on one library only. Settings of a request (`gen_kwargs`) apply as before.

    Args:
        model: a model of transformers; it gets a generation config of its own.

    Returns:
        The settings of the checkpoint that would have changed an answer, by key.
    """
    if model.generation_config is None:
        return {}
    config = copy.deepcopy(model.generation_config)
    for key, (_, neutral) in settings_to_neutralize(config).items():
        setattr(config, key, neutral)
    changing = settings_that_change_answers(model.generation_config)
    model.generation_config = config
    return changing


def settings_to_neutralize(config: GenerationConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings that greedy decoding must not take from a checkpoint.

    Keys that `GenerationConfig` does not know belong to a model's own code, and are omitted.

    Returns:
        Key -> the checkpoint's value, and the one that takes its place.
    """
    settings = {}
    for key, neutral in vars(GenerationConfig()).items():
        value = getattr(config, key, neutral)
        if key not in KEPT and value != neutral:
            settings[key] = (value, neutral)
    return settings


def settings_that_change_answers(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings of a checkpoint that would change a greedy answer, by key, as JSON."""
    changing = {}
    for key, (value, _) in settings_to_neutralize(config).items():
        is_neutral = value is None or (key in NEUTRAL and value == NEUTRAL[key])
        is_lossless = key == "cache_implementation" and value in LOSSLESS_CACHES
        if key in WITHOUT_EFFECT or is_neutral or is_lossless:
            continue
        if hasattr(value, "to_dict"):  # settings of watermarks are an object
            value = value.to_dict()
        changing[key] = value
    return changing


def must_run_alone(options: Mapping[str, Any]) -> str:
    """Return why options rule out a shared document; empty if they do not."""
    if options.get("do_sample"):
        return "sampling"
    used = sorted(options.keys() - _SHARING)
    return f"generation option {', '.join(used)}" if used else ""


class StopStrings(StoppingCriteria):
    """Ends each row of a batch at its first stop string.

    lm-eval's own list of criteria ends a batch only where all rows have the same stop string.

    Args:
        arguments: those of lm-eval's `stop_sequences_criteria`.
    """

    def __init__(self, *arguments: Any) -> None:
        self.criteria: Any = stop_sequences_criteria(*arguments)

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return True for rows that have completed a stop string, `[batch]`."""
        is_done = torch.zeros(len(input_ids), dtype=torch.bool)
        for criterion in self.criteria:
            criterion(input_ids, scores)
            is_done |= torch.tensor(criterion.done_tracker)
        return is_done.to(input_ids.device)
