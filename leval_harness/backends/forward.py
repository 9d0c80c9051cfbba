"""Forward passes of a transformers model: hidden states, and logits only where they are needed.

For 16,384 positions and a vocabulary of 49,152 tokens all logits would take 3.2 GB in float32.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leval_harness.backends.token_counts import TokenCounts

logger = logging.getLogger(__name__)


def input_device(model: Any) -> torch.device:
    """Return the device for token ids: that of the embeddings, or accelerate's."""
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    if device is None:
        return embeddings.weight.device
    return torch.device(device)


def cache_argument(model: Any) -> str:
    """Return the name of the cache argument, which transformers 5.24 has changed."""
    if "cache" in inspect.signature(model.forward).parameters:
        return "cache"
    return "past_key_values"


class ForwardPass(NamedTuple):
    """What a model computes, for the message when memory runs out.

    Attributes:
        description: in words.
        setting: the argument of the backend that makes it smaller.
        size: its present size, in the unit of that argument.
    """

    description: str
    setting: str
    size: int


class Head:
    """The hidden states of a model, and its output layer applied only where logits are needed.

    The decoder and the output layer are used directly if they give the model's own logits on a
    short text. A model that does more (soft caps, scaling) computes its logits itself.

    Args:
        model: a causal model of transformers.
        counts: where the tokens of forward passes are counted; by default new ones.

    Attributes:
        counts: tokens of all forward passes so far.
        decoder: the model without its output layer; None if the model computes logits itself.
        output: the output layer, or None with `decoder`.
        matrix: the output layer if it is a matrix product and nothing else, so that it can be
            applied to a part of the vocabulary; else None.
        last_pass: the latest forward pass.
    """

    def __init__(self, model: Any, counts: TokenCounts | None = None) -> None:
        self.model = model
        self.counts = counts or TokenCounts(model)
        self.decoder: Any = None
        self.output: Any = None
        self.matrix: nn.Linear | None = None
        self.last_pass = ForwardPass("the first forward pass", "max_length", 1)
        self._cache_argument = cache_argument(model)
        self._parameters = inspect.signature(model.forward).parameters
        try:
            self._separate_output()
        # Other people's models may lack any of these methods; calling the whole model always works.
        except Exception as error:  # noqa: BLE001
            logger.info("logits come from the whole model: %s", error)

    @torch.no_grad()
    def _separate_output(self) -> None:
        """Set `decoder`, `output` and `matrix`, if the first two give the model's own logits.

        Eight tokens show it: where a model does more than apply its output layer, the logits differ.
        """
        decoder = self.model.get_decoder()
        output = self.model.get_output_embeddings()
        tokens = torch.arange(4, 12, device=input_device(self.model))[None]
        hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        own_logits = self.model(input_ids=tokens, use_cache=False).logits
        if decoder is self.model or not torch.equal(output(hidden), own_logits):
            return
        self.decoder = decoder
        self.output = output
        if is_plain_matrix(output):
            self.matrix = output

    @property
    def vocabulary(self) -> int:
        """Return the number of logits of a position."""
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    def states(self, tokens: Sequence[int], first: int = 0, cache: Any = None) -> Tensor:
        """Run a forward pass, and return what `logits` takes for its positions from `first` on.

        Args:
            tokens: ids of the pass.
            first: first position of the pass whose states are wanted.
            cache: of the tokens before the pass; the pass adds its own. None reads without one.

        Returns:
            Hidden states `[positions, width]`, or logits where the model computes them itself. Of
            no wanted positions one row may come back.
        """
        start = 0
        if cache is not None:
            start = cache.get_seq_length()
        description = f"the forward pass over tokens {start:,} to {start + len(tokens):,}"
        self.last_pass = ForwardPass(description, "prefill_chunk", len(tokens))
        arguments = self._arguments(tokens, start, cache)
        with self.counts.prefilling(len(tokens)):
            if self.decoder is not None:
                return self.decoder(**arguments).last_hidden_state[0, first:]
            wanted = max(1, len(tokens) - first)
            if "logits_to_keep" in self._parameters:
                arguments["logits_to_keep"] = wanted
            return self.model(**arguments).logits[0, -wanted:]

    def _arguments(self, tokens: Sequence[int], start: int, cache: Any) -> dict[str, Any]:
        """Return the arguments of a forward pass over tokens, the first at position `start`."""
        ids = torch.tensor([list(tokens)], device=input_device(self.model))
        arguments: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None}
        if cache is not None:
            arguments[self._cache_argument] = cache
            if "position_ids" in self._parameters:  # some models count from 0 themselves
                positions = torch.arange(start, start + len(tokens), device=ids.device)
                arguments["position_ids"] = positions[None]
        return arguments

    def logits(self, states: Tensor) -> Tensor:
        """Return logits `[positions, vocabulary]` in the model's dtype."""
        if self.decoder is None:
            return states
        logits: Tensor = self.output(states)
        return logits


def is_plain_matrix(output: Any) -> bool:
    """Return whether an output layer is `torch.nn.Linear` with its weights in place.

    Quantised layers and adapters are classes of their own; accelerate's hooks bring weights from
    another device for the time of a call.
    """
    has_hooks = bool(output._forward_hooks or output._forward_pre_hooks)
    return type(output) is nn.Linear and not has_hooks and not hasattr(output, "_hf_hook")
