"""Which answers can share a text, and where they stop.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`. Only the cache that it starts from is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

_SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "use_cache"}
"""Options of sampling, which greedy decoding ignores."""
_SHARING = {"until", "max_gen_toks", "min_new_tokens", *_SAMPLING}
"""Options that mean the same where a text is shared and rows are padded."""
_HARMLESS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "transformers_version", "use_cache",
    "_from_model_config", "cache_implementation", "max_length", "max_new_tokens",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate",
}  # fmt: skip
"""Keys of a checkpoint's generation config that greedy decoding ignores, or that are the same for
every row."""


def must_run_alone(options: Mapping[str, Any]) -> str:
    """Why generation options cannot be served from a shared text; empty if they can."""
    if options.get("do_sample"):
        return "sampling"
    used = sorted(options.keys() - _SHARING)
    return f"generation option {', '.join(used)}" if used else ""


def looks_back(generation_config: Any) -> bool:
    """Whether decoding depends on earlier tokens, so that the rows of a batch cannot be padded."""
    return bool(generation_config.to_diff_dict().keys() - _HARMLESS)


def greedy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options for greedy decoding, without those of sampling."""
    return {k: v for k, v in options.items() if k not in _SAMPLING} | {"do_sample": False}


class StopStrings(StoppingCriteria):
    """Stop each row at its first stop string, searched in its last tokens as lm-eval does.

    lm-eval's own criteria end a batch only where all rows have the same stop string. `start` is the
    length of the prompts in tokens.
    """

    def __init__(self, tokenizer: Any, until: Sequence[str], start: int) -> None:
        self.tokenizer, self.start = tokenizer, start
        self.until = [stop for stop in until if stop]
        # Two tokens more than a string takes: the model may have cut it in another way.
        lengths = [len(tokenizer.encode(stop, add_special_tokens=False)) for stop in self.until]
        self.width = max(lengths, default=0) + 2
        self.stopped: set[int] = set()

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """True for rows that have completed a stop string, `[batch]`."""
        if self.until:
            fresh = input_ids[:, max(self.start, input_ids.shape[1] - self.width) :]
            texts = enumerate(self.tokenizer.batch_decode(fresh))
            self.stopped |= {row for row, text in texts if any(stop in text for stop in self.until)}
        done = [row in self.stopped for row in range(len(input_ids))]
        return torch.tensor(done, device=input_ids.device)
