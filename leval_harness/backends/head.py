"""Log-probabilities of given tokens from hidden states, a slice of the vocabulary matrix at a time.

`[positions, vocabulary]` is never held for more than a slice of the positions, and logits are
computed at scored positions only: 16,384 positions of a 49,152-token vocabulary would take 3.2 GB
in float32.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leval_harness.backends.cache import PrefixCache
from leval_harness.backends.forward import forward, keeps_logits

logger = logging.getLogger(__name__)

_LOGITS_AT_ONCE = 1 << 24  # float32 elements of a slice, 64 MiB


@dataclass(frozen=True)
class Scores:
    """Of consecutive target tokens, all on the CPU.

    Attributes:
        logprob: Natural logarithm of each target's probability, float32 `[positions]`.
        correct: Whether the target is the most probable token, bool `[positions]`.
    """

    logprob: torch.Tensor
    correct: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> "Scores":
        """The scores of parts that follow on each other."""
        return cls(
            torch.cat([part.logprob for part in parts]), torch.cat([part.correct for part in parts])
        )


class Head:
    """The last layer of a model, applied where it is asked for.

    The decoder's hidden states and the output matrix are used directly if that gives the model's
    own logits on a short text; models that do more (soft caps, scaling) are asked for logits of
    the scored positions.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder: Any = None
        self.output: Any = None
        self._keeps = keeps_logits(model)
        try:
            decoder, output = model.get_decoder(), model.get_output_embeddings()
            tokens = [list(range(4, 12))]
            with torch.no_grad():
                hidden = forward(model, tokens, run=decoder).last_hidden_state
                same = torch.equal(output(hidden), forward(model, tokens).logits)
        # Foreign models may lack any of these methods; asking the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)
            return
        if same and decoder is not model:
            self.decoder, self.output = decoder, output

    def run(
        self, rows: list[list[int]], first: int = 0, past: PrefixCache | None = None
    ) -> torch.Tensor:
        """Hidden states or logits from position `first` on, `[rows, longest - first, …]`."""
        if self.decoder is not None:
            return forward(self.model, rows, past, run=self.decoder).last_hidden_state[:, first:]
        keep = max(1, max(map(len, rows)) - first)
        options = {"logits_to_keep": keep} if self._keeps else {}
        return forward(self.model, rows, past, **options).logits[:, -keep:]

    def read(self, rows: list[list[int]], past: PrefixCache) -> None:
        """Bring tokens into a cache; nothing is asked about them."""
        self.run(rows, max(map(len, rows)), past)

    def score(self, states: torch.Tensor, targets: Sequence[int]) -> Scores:
        """Log-probabilities of targets from `[positions, …]` of `run`, one before each target."""
        goal = torch.tensor(list(targets), dtype=torch.long, device=states.device)
        width = self.model.config.get_text_config(decoder=True).vocab_size
        block = max(1, _LOGITS_AT_ONCE // width)
        parts = [Scores(torch.zeros(0), torch.zeros(0, dtype=torch.bool))]
        for first in range(0, len(goal), block):
            part = states[first : first + block]
            logits = (part if self.decoder is None else self.output(part)).float()
            wanted = goal[first : first + block].to(logits.device)
            chosen = logits.gather(-1, wanted[:, None]).squeeze(-1)
            correct = (logits.argmax(-1) == wanted).cpu()
            parts.append(Scores((chosen - logits.logsumexp(-1)).cpu(), correct))
        return Scores.joined(parts)
