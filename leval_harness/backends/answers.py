"""Which answers can share a text, and where they stop.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`. Only the cache that it starts from is ours.
"""

from collections.abc import Mapping
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria
from transformers import StoppingCriteria

SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "use_cache"}
"""Options of sampling, which greedy decoding ignores."""
_SHARING = {"until", "max_gen_toks", "min_new_tokens", *SAMPLING}
"""Options that mean the same where a text is shared and rows are padded."""
_HARMLESS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_k", "top_p",
    "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "transformers_version", "use_cache",
    "_from_model_config", "cache_implementation", "max_length", "max_new_tokens",
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


class StopStrings(StoppingCriteria):
    """lm-eval's criteria for stop strings, of which each row stops at its first.

    lm-eval's own list ends a batch only where all rows have the same stop string. Arguments are
    those of `stop_sequences_criteria`.
    """

    def __init__(self, *arguments: Any) -> None:
        self.each: Any = stop_sequences_criteria(*arguments)

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """True for rows that have completed a stop string, `[batch]`."""
        for one in self.each:
            one(input_ids, scores)
        rows = zip(*(one.done_tracker for one in self.each), strict=True)
        return torch.tensor([any(row) for row in rows], device=input_ids.device)
