"""Hidden states of a transformers model, logits where they are needed, and what they predict.

For 16,384 positions and a vocabulary of 49,152 tokens all logits would take 3.2 GB in float32.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leval_tasks.common.token_logprobs import SLICE, SumOfLogprobs

logger = logging.getLogger(__name__)


def input_device(model: Any) -> torch.device:
    """Return the device for token ids: that of the embeddings, or accelerate's."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def cache_argument(model: Any) -> str:
    """Return the name of the cache argument, which transformers 5.24 has changed."""
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
            decoder = model.get_decoder()
            output = model.get_output_embeddings()
            tokens = torch.arange(4, 12, device=input_device(model))[None]
            with torch.no_grad():
                hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
                own = model(input_ids=tokens, use_cache=False).logits
                if decoder is not model and torch.equal(output(hidden), own):
                    self.decoder = decoder
                    self.output = output
        # Other people's models may lack any of these methods; calling the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)

    def states(self, tokens: Sequence[int], first: int = 0, past: Any = None) -> Tensor:
        """Return what `logits` takes, `[tokens - first, ...]`, from position `first` on.

        `past` is the cache of the positions before, which gets the new ones.
        """
        self.tokens_read += len(tokens)
        ids = torch.tensor([list(tokens)], device=input_device(self.model))
        given: dict[str, Any] = {"input_ids": ids, "use_cache": past is not None}
        if past is not None:
            given[self._past] = past
            if "position_ids" in self._takes:  # some models count from 0 themselves
                start = past.get_seq_length()
                places = torch.arange(start, start + len(tokens), device=ids.device)
                given["position_ids"] = places[None]
        if self.decoder is not None:
            return self.decoder(**given).last_hidden_state[0, first:]
        keep = max(1, len(tokens) - first)
        options = {"logits_to_keep": keep} if "logits_to_keep" in self._takes else {}
        return self.model(**given, **options).logits[0, -keep:]

    def logits(self, states: Tensor) -> Tensor:
        """Return logits `[positions, vocabulary]` in float32."""
        return (states if self.decoder is None else self.output(states)).float()


def token_scores(head: Head, states: Tensor, targets: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Score targets from the `states` `[positions, ...]` of `head`, one before each target.

    Returns:
        Natural logarithm of each target's probability, float32 whatever the model's dtype is, and
        whether the target is the most probable token; both `[positions]`, on the CPU.
    """
    goal = torch.tensor(list(targets), device=states.device)
    size = max(1, SLICE // head.model.config.get_text_config(decoder=True).vocab_size)
    logprob = []
    correct = []
    for part, wanted in zip(states.split(size), goal.split(size), strict=True):
        logits = head.logits(part)
        wanted = wanted.to(logits.device)
        chosen = logits.gather(-1, wanted[:, None]).squeeze(-1)
        logprob.append((chosen - logits.logsumexp(-1)).cpu())
        correct.append((logits.argmax(-1) == wanted).cpu())
    return torch.cat(logprob), torch.cat(correct)


class Passage:
    """Tokens of which a part at the end is scored; what is too long is cut on the left.

    `key` is lm-eval's key of the request, None where its answer is not cached.

    Attributes:
        inputs: What the model reads: context and scored tokens without the last.
        targets: Scored tokens; target `i` is predicted at input `first + i`.
        logprob: Natural logarithm of each target's probability, float32 `[targets]`.
        correct: Whether the target is the most probable token, bool `[targets]`.
    """

    def __init__(
        self, context: Sequence[int], scored: Sequence[int], max_length: int, key: Any = None
    ) -> None:
        if not context or not 0 < len(scored) <= max_length:
            raise ValueError(
                f"{len(scored)} scored tokens after {len(context)} of context; allowed: 1 to "
                f"max_length={max_length} after at least 1"
            )
        surplus = max(0, len(context) + len(scored) - (max_length + 1))
        if surplus:
            logger.warning("%d tokens of a context cut from the left", surplus)
        self.key = key
        self.inputs, self.targets = [*context, *scored][surplus:-1], list(scored)
        self.first = len(self.inputs) - len(self.targets)
        self.logprob = torch.empty(len(self.targets))
        self.correct = torch.empty(len(self.targets), dtype=torch.bool)

    @property
    def answer(self) -> tuple[SumOfLogprobs, bool]:
        """Return what lm-eval expects: the float64 sum with its parts, and whether all are correct."""
        total = SumOfLogprobs(float(self.logprob.double().sum()), self.logprob.numpy())
        return total, bool(self.correct.all())

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score what states `[positions, ...]` predict, the first at `position`."""
        part = slice(position - self.first, position - self.first + len(states))
        self.logprob[part], self.correct[part] = token_scores(head, states, self.targets[part])

    def score_alone(self, head: Head) -> None:
        """Read and score it in one forward pass."""
        self.score(head, self.first, head.states(self.inputs, self.first))
