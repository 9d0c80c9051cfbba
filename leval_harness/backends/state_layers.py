"""Cache layers with a recurrent state, alone or beside attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from leval_harness.backends.attention_layers import Pair, PrefixLayer, RingLayer


class StateLayer(LinearAttentionLayer):
    """A recurrent state, with convolutions' last inputs; changed in place, so kept as copies."""

    def __init__(self, states: LinearAttentionLayer) -> None:
        self.__dict__.update(_each(torch.clone, vars(states)))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        sizes: list[int] = []
        _each(lambda tensor: sizes.append(tensor.nbytes), vars(self))
        return sum(sizes)

    def mark(self) -> dict[str, Any]:
        """What `restore` takes."""
        return _each(torch.clone, vars(self))

    def restore(self, mark: dict[str, Any]) -> None:
        """Be as at a mark."""
        self.__dict__.update(_each(torch.clone, mark))

    def rows(self, batch: int, extra: int) -> "StateLayer":
        """A layer for rows after a path."""
        layer = StateLayer(self)
        layer.reorder_cache(torch.zeros(batch, dtype=torch.long))
        return layer

    @classmethod
    def joined(cls, parts: "Sequence[StateLayer]", extra: int) -> "StateLayer":
        """Rows of several layers in one."""
        layer = StateLayer(parts[0])
        layer.__dict__.update(_each(_stacked, *map(vars, parts)))
        return layer


class HybridLayer(LinearAttentionLayer, DynamicLayer):
    """Attention beside a recurrent state: one of the layers above for each."""

    is_compileable = False

    def __init__(self, attention: PrefixLayer | RingLayer, states: StateLayer) -> None:
        self.attention, self.states = attention, states
        self.is_sliding = attention.is_sliding

    def __getattr__(self, name: str) -> Any:
        """The states as models read and write them."""
        return getattr(vars(self)["states"], name)

    def update(self, *args: Any, **kwargs: Any) -> Pair:
        """Keys and values, to the attention's layer."""
        return self.attention.update(*args, **kwargs)

    def update_conv_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A convolution's inputs, to the states' layer."""
        return self.states.update_conv_state(*args, **kwargs)

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A state, to the states' layer."""
        return self.states.update_recurrent_state(*args, **kwargs)

    def get_seq_length(self) -> int:
        """Positions before the next token."""
        return self.attention.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Of the attention."""
        return self.attention.get_mask_sizes(query_length)

    def mark(self) -> tuple[Any, Any]:
        """What `restore` takes."""
        return self.attention.mark(), self.states.mark()

    def restore(self, mark: tuple[Any, Any]) -> None:
        """Be as at a mark."""
        self.attention.restore(mark[0])
        self.states.restore(mark[1])

    def rows(self, batch: int, extra: int) -> "HybridLayer":
        """A layer for rows after a path."""
        return HybridLayer(self.attention.rows(batch, extra), self.states.rows(batch, extra))

    @classmethod
    def joined(cls, parts: "Sequence[HybridLayer]", extra: int) -> "HybridLayer":
        """Rows of several layers in one."""
        attention: Any = [part.attention for part in parts]
        states = StateLayer.joined([part.states for part in parts], extra)
        return HybridLayer(type(attention[0]).joined(attention, extra), states)


def _each(change: Callable[..., Any], first: Any, *others: Any) -> Any:
    """A value, or values of one form, with every tensor in it changed."""
    if isinstance(first, torch.Tensor):
        return change(first, *others)
    if isinstance(first, Mapping):
        return {k: _each(change, v, *(each[k] for each in others)) for k, v in first.items()}
    return first


def _stacked(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors)
