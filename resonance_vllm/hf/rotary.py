"""Rotary modules of transformers that turn as requested, with the exact phase.

A rotary module with a request is given a subclass of its own class: same buffers, other frequencies
and another `forward`. A product `position * frequency` in float32 loses the phase at long range, so
Resonance takes the angle from `position mod period`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import phase
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.held import (
    FAMILY_CLASS,
    family,
    find_layout,
    held_frequencies,
    keywords,
    prefix,
)
from resonance_vllm.hf.rotation import ModuleRotation
from resonance_vllm.verifier import Turns, differences, refusal

_FIELDS = tuple(field.name for field in dataclasses.fields(Rotation))


def give(module: nn.Module, requested: dict[str | None, ModuleRotation]) -> None:
    """Make a rotary module turn as requested, by layer type."""
    state: Any = module
    state._requested, state._rope_precision = requested, "model"
    original: Any = type(module)
    module.__class__ = adapted_class(original)
    for layer_type, each in requested.items():
        setattr(module, f"{prefix(layer_type)}attention_scaling", each.scale)
        if isinstance(state.rope_type, dict):
            state.rope_type[layer_type] = each.stock_type
        else:
            state.rope_type = each.stock_type
    fill(module)


def fill(module: Any) -> None:
    """Put the frequencies of an adapted module where its library keeps them, and our tables."""
    for layer_type, each in module._requested.items():
        start = prefix(layer_type)
        held = module._buffers[f"{start}inv_freq"]
        if held.is_meta:
            continue
        plain = each.current.inv_freq.to(held.device, torch.float32)
        for name in (f"{start}inv_freq", f"{start}original_inv_freq"):
            module._buffers[name] = plain.clone()
        if each.own_angles:
            _register(module, f"{start}now", each.current.to(held.device))
        if each.beyond is not None:
            _register(module, f"{start}beyond", each.beyond.to(held.device))


def _register(module: Any, name: str, rotation: Rotation) -> None:
    for field in _FIELDS:
        value: Tensor = getattr(rotation, field)
        module.register_buffer(f"{name}_{field}", value.clone(), persistent=False)


def verify_given(model: nn.Module) -> None:
    """Compare what every module of our classes turns by with what was requested.

    Raises:
        RopeConfigError: a module turns by something else; it is named.
    """
    for name, module in model.named_modules():
        if not hasattr(type(module), FAMILY_CLASS):
            continue
        for layer_type, each in module._requested.items():
            if any(buffer.is_meta for buffer in module._buffers.values()):
                continue
            held = held_turns(module, layer_type)
            if wrong := differences(held, each.turns):
                where = f"{name} ({family(module).__name__})"
                raise refusal(each.spec, where, wrong, held, "please report the family")


def held_turns(module: Any, layer_type: str | None = None) -> Turns:
    """What a module turns by now; of one of our classes read from its cos and sin."""
    requested = getattr(module, "_requested", {}).get(layer_type)
    if requested is not None:
        device = module._buffers[f"{prefix(layer_type)}inv_freq"].device
        one = torch.ones(1, 1, dtype=torch.int64, device=device)
        like = torch.zeros(1, dtype=torch.float32, device=device)
        return requested.layout.turns(module.turned(like, one, layer_type))
    found = held_frequencies(module, layer_type)
    try:
        return Turns(found, find_layout(module, layer_type, len(found)).scale)
    except RopeConfigError:  # a layout that our types could not be given to
        stated = getattr(module, f"{prefix(layer_type)}attention_scaling", 1.0)
        return Turns(found, float(stated))


def refill(model: nn.Module) -> None:
    """Fill and verify the modules of our classes in a model whose weights have been loaded."""
    for module in model.modules():
        if hasattr(type(module), FAMILY_CLASS):
            fill(module)
    verify_given(model)


@functools.cache
def adapted_class(base: Any) -> type[nn.Module]:
    """Subclass of a family's rotary class; the same one for every module of that class."""
    if hasattr(base, FAMILY_CLASS):
        return base
    namespace = {
        "forward": _forward,
        "turned": _turned,
        "_apply": _apply,
        FAMILY_CLASS: base,
        "__module__": __name__,
        "__doc__": f"{base.__name__} that turns as requested.",
        "__reduce_ex__": _reduce,
    }
    return type(f"Resonance{base.__name__}", (base,), namespace)


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickle by the family's own class: this one is made when it is needed."""
    return _restore, (getattr(type(self), FAMILY_CLASS),), self.__dict__


def _restore(base: Any) -> nn.Module:
    cls: Any = adapted_class(base)
    restored: nn.Module = cls.__new__(cls)
    return restored


def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
    """Moves and casts as every module does, but frequencies keep their values and precision."""
    for layer_type in self._requested:
        for table in ("now", "beyond"):
            for field in _FIELDS:
                self._buffers.pop(f"{prefix(layer_type)}{table}_{field}", None)
    result = getattr(type(self), FAMILY_CLASS)._apply(self, fn, recurse)
    fill(self)
    return result


def _forward(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
    """The family's answer for the positions at which a position map keeps keys."""
    each = self._requested.get(layer_type)
    if each is not None and each.mapped is not None:
        position_ids = each.mapped.begin(self, position_ids)
    return _turned(self, x, position_ids, layer_type)


@torch.no_grad()
def _turned(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
    """The family's answer, in the dtype of `x`, or in float32 with that `rope_precision`."""
    like = x
    if self._rope_precision == "float32" and x.dtype != torch.float32:
        like = x.new_empty((), dtype=torch.float32)
    each = self._requested.get(layer_type)
    if each is not None and each.follows:
        _follow(self, each, position_ids)
    if each is None or not each.own_angles:
        base = getattr(type(self), FAMILY_CLASS)
        return base.forward(self, like, position_ids, **keywords(layer_type))
    dtype = torch.float32 if x.device.type == "mps" else torch.float64
    angles = phase.angles(position_ids, _present(self, each, position_ids), dtype)
    if position_ids.ndim == 3:
        axes = torch.tensor(each.layout.axes, device=x.device)
        angles = functools.reduce(
            lambda chosen, axis: torch.where(axes == axis, angles[axis], chosen),
            range(1, len(angles)),
            angles[0],
        )
    return each.layout.arrange(angles, each.scale, like)


def _present(self: Any, each: ModuleRotation, position_ids: Tensor) -> Rotation:
    """The rotation for these positions, without a look at their values."""
    start = prefix(each.layer_type)
    now = [getattr(self, f"{start}now_{name}") for name in _FIELDS]
    if each.beyond is None:
        return Rotation(*now)
    far = position_ids.max() >= each.switch
    beyond = [getattr(self, f"{start}beyond_{name}") for name in _FIELDS]
    return Rotation(*(torch.where(far, b, a) for a, b in zip(now, beyond, strict=True)))


def _follow(self: Any, each: ModuleRotation, position_ids: Tensor) -> None:
    """Grow with the sequence and come back, as transformers' own update of dynamic types does."""
    length = int(position_ids.max()) + 1
    if length > max(each.length, each.trained):
        each.length, each.current = length, each.at_length(self, length)
    elif length < each.trained < each.length:
        each.length, each.current = each.trained, each.rotation
    else:
        return
    fill(self)
