"""What is looked at in each decoding step: stop strings, and how close the best two logits are."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from leval_backends.telemetry import Counters

NEAR_TIE = 1e-4


class StopStrings(StoppingCriteria):
    """Stop each row at its first stop string, looked for in its last tokens as lm-eval does.

    Attributes:
        ended: New tokens of each stopped row, by its number.
    """

    def __init__(self, tokenizer: Any, until: Sequence[str], start: int) -> None:
        self.tokenizer = tokenizer
        self.start = start
        self.until = [
            # Two tokens more than the string takes: it may come out cut in another way.
            (stop, len(tokenizer.encode(stop, add_special_tokens=False)) + 2)
            for stop in until
            if stop
        ]
        self.ended: dict[int, int] = {}

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """True for rows that have just completed a stop string, `[batch]`."""
        fresh = input_ids[:, self.start :]
        done = [False] * len(fresh)
        for stop, width in self.until:
            texts = self.tokenizer.batch_decode(fresh[:, -width:])
            done = [was or stop in text for was, text in zip(done, texts, strict=True)]
        for row, stopped in enumerate(done):
            if stopped:
                self.ended.setdefault(row, fresh.shape[1])
        return torch.tensor(done, device=input_ids.device)


class NearTies(LogitsProcessor):
    """Note the steps whose two best logits differ by less than `NEAR_TIE`; change nothing."""

    def __init__(self, counters: Counters) -> None:
        self.steps: list[tuple[int, int, float, list[int]]] = []
        self.step = 0
        self.counters = counters

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores unchanged, `[batch, vocabulary]`."""
        best = scores.topk(2, dim=-1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        for row, gap in enumerate(gaps):
            if gap < NEAR_TIE:
                self.steps.append((row, self.step, gap, best.indices[row].tolist()))
        self.step += 1
        self.counters.advance(len(gaps))
        return scores
