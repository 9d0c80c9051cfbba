"""Hidden states of a transformers model, and logits where they are needed.

For 16,384 positions and a vocabulary of 49,152 tokens all logits would take 3.2 GB in float32.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leval_tasks.token_logprobs import SLICE

logger = logging.getLogger(__name__)


def input_device(model: Any) -> torch.device:
    """The device of token ids: that of the embeddings, or to which accelerate moves them."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def cache_argument(model: Any) -> str:
    """The name of a forward pass's cache, which transformers 5.24 has changed."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Head:
    """Hidden states of a model, and its output layer applied only where logits are needed.

    The decoder and the output matrix are used directly if they give the model's own logits on a
    short text. A model that does more (soft caps, scaling) computes logits itself.

    Args:
        model: a causal model of transformers.

    Attributes:
        tokens_read: tokens of prompts in all forward passes so far.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokens_read = 0
        self.decoder: Any = None
        self.output: Any = None
        self._past = cache_argument(model)
        self._takes = inspect.signature(model.forward).parameters
        try:
            decoder, output = model.get_decoder(), model.get_output_embeddings()
            tokens = torch.arange(4, 12, device=input_device(model))[None]
            with torch.no_grad():
                hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
                own = model(input_ids=tokens, use_cache=False).logits
                if decoder is not model and torch.equal(output(hidden), own):
                    self.decoder, self.output = decoder, output
        # Other people's models may lack any of these methods; calling the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)

    def states(self, rows: Sequence[list[int]], first: int = 0, past: Any = None) -> Tensor:
        """What `logits` takes, from position `first` of the rows on.

        Args:
            rows: new tokens of each row; shorter rows are padded at the end.
            first: positions without a state, at most the length of the longest row.
            past: cache of the positions before, which gets the new ones.

        Returns:
            `[rows, longest - first, ...]`.
        """
        width = max(map(len, rows))
        self.tokens_read += sum(map(len, rows))
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = torch.tensor(row)
        given: dict[str, Any] = {
            "input_ids": tokens.to(input_device(self.model)),
            "use_cache": past is not None,
        }
        if past is not None:
            given[self._past] = past
            if "position_ids" in self._takes:  # some models count from 0 themselves
                start = past.get_seq_length()
                places = torch.arange(start, start + width, device=given["input_ids"].device)
                given["position_ids"] = places.expand(len(rows), -1)
        if self.decoder is not None:
            return self.decoder(**given).last_hidden_state[:, first:]
        keep = max(1, width - first)
        options = {"logits_to_keep": keep} if "logits_to_keep" in self._takes else {}
        return self.model(**given, **options).logits[:, -keep:]

    def logits(self, states: Tensor) -> Tensor:
        """Logits `[positions, vocabulary]` in float32."""
        return (states if self.decoder is None else self.output(states)).float()


def token_scores(head: Head, states: Tensor, targets: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Scores of targets from the `states` `[positions, ...]` of `head`, one before each target.

    Returns:
        Natural logarithm of each target's probability, float32 whatever the model's dtype is, and
        whether the target is the most probable token; both `[positions]`, on the CPU.
    """
    goal = torch.tensor(list(targets), dtype=torch.long, device=states.device)
    width = head.model.config.get_text_config(decoder=True).vocab_size
    logprob, correct = torch.empty(len(goal)), torch.empty(len(goal), dtype=torch.bool)
    for part in torch.arange(len(goal)).split(max(1, SLICE // width)):
        where = slice(int(part[0]), int(part[-1]) + 1)
        logits = head.logits(states[where])
        wanted = goal[where].to(logits.device)
        chosen = logits.gather(-1, wanted[:, None]).squeeze(-1)
        logprob[where] = (chosen - logits.logsumexp(-1)).cpu()
        correct[where] = (logits.argmax(-1) == wanted).cpu()
    return logprob, correct
