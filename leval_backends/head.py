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

from leval_backends.reuse import input_device, keeps_logits

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
        try:
            decoder, output = model.get_decoder(), model.get_output_embeddings()
            tokens = torch.arange(4, 12, device=input_device(model))[None]
            with torch.no_grad():
                hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
                same = torch.equal(output(hidden), model(tokens, use_cache=False).logits)
        # Foreign models may lack any of these methods; asking the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)
            return
        if same and decoder is not model:
            self.decoder, self.output = decoder, output

    def run(self, tokens: torch.Tensor, first: int, **options: Any) -> torch.Tensor:
        """Hidden states (or logits) from position `first` of `tokens` on.

        Args:
            tokens: `[batch, length]`.
            first: First position in `tokens` that is scored; -1 for none.
            options: Passed to the model.

        Returns:
            `[batch, length - first, hidden or vocabulary]`; what `score` takes.
        """
        if self.decoder is not None:
            hidden = self.decoder(input_ids=tokens, **options).last_hidden_state
            return hidden[:, first:]
        keep = 1 if first < 0 else tokens.shape[1] - first
        if keeps_logits(self.model):
            options["logits_to_keep"] = keep
        logits = self.model(input_ids=tokens, **options).logits
        return logits[:, -keep:]

    def score(self, states: torch.Tensor, targets: Sequence[int]) -> Scores:
        """Log-probabilities of targets.

        Args:
            states: `[positions, …]` as `run` gave them, one before each target.
            targets: As many token ids.
        """
        goal = torch.tensor(list(targets), dtype=torch.long, device=states.device)
        width = self.model.config.get_text_config(decoder=True).vocab_size
        block = max(1, _LOGITS_AT_ONCE // width)
        logprob, correct = [], []
        for first in range(0, len(goal), block):
            part = states[first : first + block]
            logits = (part if self.decoder is None else self.output(part)).float()
            wanted = goal[first : first + block].to(logits.device)
            chosen = logits.gather(-1, wanted[:, None]).squeeze(-1)
            logprob.append((chosen - logits.logsumexp(-1)).cpu())
            correct.append((logits.argmax(-1) == wanted).cpu())
        if not logprob:
            return Scores(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
        return Scores(torch.cat(logprob), torch.cat(correct))
