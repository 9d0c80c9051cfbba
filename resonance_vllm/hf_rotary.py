"""Rotary modules of transformers with the exact phase.

A rope function of transformers can only return frequencies, and `position * frequency` in float32
loses the phase at long range. So the rotary module of a built model is given a subclass of its
own class: same buffers, same update of dynamic types, another `forward`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeRequest, RopeSpec, is_own_type, refuse_ignored_keys
from resonance_vllm.hf_float32 import OURS, no_float32, patch_apply
from resonance_vllm.positions import ModelPositions, rope_dictionaries


def model_of(config: Any, layer_type: str | None = None) -> ModelPositions:
    """What a transformers config says of the positions of one layer type."""
    names = [name for name in ModelPositions.model_fields if name != "text_config"]
    known = {name: getattr(config, name, None) for name in names}
    if layer_type is not None:
        known["rope_parameters"] = config.rope_parameters[layer_type]
    return ModelPositions.of({**known, "original_max_position_embeddings": None})


def spec_of(config: Any, layer_type: str | None = None) -> RopeSpec:
    """The settings of a transformers config; the trained length may stand in the config itself."""
    model = model_of(config, layer_type)
    return model.complete(RopeRequest.from_dict(model.rope_parameters or {}, aliases=False))


def rope_function(
    config: Any,
    device: torch.device | str | None = None,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
) -> tuple[Tensor, float]:
    """The entry of every type of ours in transformers' `ROPE_INIT_FUNCTIONS`.

    `inv_freq`, float32 `[dim/2]`, and the attention factor, at a `seq_len` that is a tensor when a
    dynamic type grows; `layer_type` is the key of a `rope_parameters` that is nested.
    """
    spec = spec_of(config, layer_type)
    length = None if seq_len is None else int(seq_len)
    dim = model_of(config).rotary_dim(spec.method.partial_rotary_factor)
    inv_freq = frequencies.inv_freq(spec, dim, length)
    target = torch.get_default_device() if device is None else device
    return inv_freq.to(dtype=torch.float32, device=target), spec.method.scale()


def adapt(model: nn.Module) -> None:
    """Give every rotary module of a built model what its settings ask for.

    Raises:
        RopeConfigError: the settings name a type of ours and no module of this family would use
            it, or the family cannot rotate in float32 as asked.
    """
    config = getattr(model, "config", None)
    precision = getattr(config, "rope_precision", None) or "model"
    types = {name for module in _rotary_modules(model) for name in _types(module).values()}
    for asked in (rope.get("rope_type") for rope in rope_dictionaries(config)):
        if is_own_type(asked) and asked not in types:
            raise RopeConfigError(
                f"rope_type: {asked!r} would be ignored: {type(model).__name__} (model_type "
                f"{getattr(config, 'model_type', None)!r}) has no rotary module that reads it; "
                "allowed: families built on transformers' rope registry"
            )
    set_precision(model, precision)


def set_precision(model: nn.Module, precision: str) -> None:
    """Change the rotation's precision of a built model, see `hf.set_rope_precision`."""
    rotary = _rotary_modules(model)
    if not rotary and precision == "float32":
        raise no_float32(model, "it has no rotary module that reads transformers' registry")
    for module in rotary:
        _adapt_module(module, precision)


def _rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Those that read transformers' registry of rope types."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "rope_type") and "RotaryEmbedding" in type(module).__name__
    ]


def _types(module: nn.Module) -> dict[str | None, str]:
    """Rope types of a module by layer type; None is the key where it has one for all layers."""
    kinds: Any = module.rope_type
    return dict(kinds) if isinstance(kinds, Mapping) else {None: str(kinds)}


def _adapt_module(module: nn.Module, precision: str) -> None:
    config: Any = module.config
    for settings in rope_dictionaries(config):
        refuse_ignored_keys(settings, "transformers")
    own = {key: spec_of(config, key) for key, kind in _types(module).items() if is_own_type(kind)}
    exact = any(spec.resonance for spec in own.values())
    state: Any = module
    if precision == "float32":
        patch_apply(module)
    if None in own and own[None].method.follows_length:
        # transformers takes max_position_embeddings for the trained length; ours is written.
        state.original_max_seq_len = state.max_seq_len_cached = own[None].method.trained_length
    if exact or precision == "float32" or hasattr(type(module), OURS):
        state._rope_precision, state._rope_specs = precision, own
        family: Any = type(module)
        module.__class__ = adapted_class(family)


@functools.cache
def adapted_class(base: Any) -> type[nn.Module]:
    """Subclass of a family's rotary class; the same one for every module of that class."""
    if hasattr(base, OURS):
        return base
    namespace = {
        "forward": _forward,
        OURS: base,
        "__module__": __name__,
        "__doc__": f"{base.__name__} with the exact phase for integer wavelengths.",
        "__reduce_ex__": _reduce,
    }
    return type(f"Resonance{base.__name__}", (base,), namespace)


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickle by the family's own class: this one is made when it is needed."""
    return _restore, (getattr(type(self), OURS),), self.__dict__


def _restore(base: Any) -> nn.Module:
    cls: Any = adapted_class(base)
    restored: nn.Module = cls.__new__(cls)
    return restored


@torch.no_grad()
def _forward(
    self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
) -> tuple[Tensor, Tensor]:
    """Cos and sin `[batch, length, dim]` in the dtype of `x`, or float32 if that was asked."""
    like = x
    if self._rope_precision == "float32" and x.dtype != torch.float32:
        like = x.new_empty((), dtype=torch.float32)
    base = getattr(type(self), OURS)
    spec = self._rope_specs.get(layer_type)
    if spec is None or not spec.resonance:
        keywords = {} if layer_type is None else {"layer_type": layer_type}
        result: tuple[Tensor, Tensor] = base.forward(self, like, position_ids, **keywords)
        return result
    lengths = _current_wavelengths(self, spec, x, position_ids, layer_type)
    dtype = torch.float32 if x.device.type == "mps" else torch.float64
    angles = phase.exact_angles(position_ids, lengths, dtype)
    arrange, scale = LAYOUTS[layout(base)], spec.method.scale()
    return (
        arrange(angles.cos() * scale).to(like.dtype),
        arrange(angles.sin() * scale).to(like.dtype),
    )


def _current_wavelengths(
    self: Any, spec: RopeSpec, x: Tensor, position_ids: Tensor, layer_type: str | None
) -> Tensor:
    """Integer wavelengths for the present length, on the device of `x`."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    method, length = spec.method, None
    if method.follows_length:
        keywords = {} if layer_type is None else {"layer_type": layer_type}
        _dynamic_update()(self, x, position_ids, **keywords)
        length = int(getattr(self, f"{prefix}max_seq_len_cached", self.max_seq_len_cached))
    elif method.switch_length is not None:
        beyond = int(position_ids.max()) >= method.switch_length
        length = method.switch_length + 1 if beyond else None
    known = self.__dict__.setdefault("_wavelengths", {})
    key = (layer_type, length)
    if key not in known or known[key].device != x.device:
        if method.follows_length:
            known.clear()  # a growing sequence brings a new length with every token
        dim = model_of(self.config).rotary_dim(method.partial_rotary_factor)
        known[key] = frequencies.integer_wavelengths(spec, dim, length).to(x.device)
        if method.switch_length is not None:
            inv_freq = frequencies.inv_freq(spec, dim, length).to(x.device, torch.float32)
            self.register_buffer(f"{prefix}inv_freq", inv_freq, persistent=False)
    current: Tensor = known[key]
    return current


@functools.cache
def _dynamic_update() -> Callable[..., Any]:
    """Transformers' own update of dynamic types, around nothing."""
    from transformers.modeling_rope_utils import dynamic_rope_update

    update: Callable[..., Any] = dynamic_rope_update(lambda *args, **keywords: None)
    return update


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda values: torch.cat((values, values), dim=-1),
    "pairs": lambda values: values.repeat_interleave(2, dim=-1),
    "once": lambda values: values,
}


@functools.cache
def layout(base: Any) -> str:
    """How a family lays out its features in cos and sin, found by asking its own forward.

    Raises:
        RopeConfigError: in none of the ways known here (several axes, complex numbers).
    """
    inv_freq = torch.tensor([1.0, 0.25], device="cpu")
    layered = "layer_type" in inspect.signature(base.forward).parameters
    kind: Any = {"probe": "default"} if layered else "default"
    stand_in: Any = SimpleNamespace(
        rope_type=kind,
        inv_freq=inv_freq,
        attention_scaling=1.0,
        probe_inv_freq=inv_freq,
        probe_attention_scaling=1.0,
    )
    positions = torch.arange(3, device="cpu")[None]
    keywords = {"layer_type": "probe"} if layered else {}
    expected = phase.naive_angles(positions, inv_freq).cos()
    reason: Exception | None = None
    try:
        answer = base.forward(stand_in, torch.zeros(1, device="cpu"), positions, **keywords)
        cos = answer[0] if isinstance(answer, tuple) else answer
        for name, arrange in LAYOUTS.items():
            wanted = arrange(expected)
            if cos.shape == wanted.shape and not cos.is_complex() and torch.allclose(cos, wanted):
                return name
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = error
    raise RopeConfigError(
        f"rope_type: Resonance is not available with {base.__name__}: its rotation is not one "
        "angle a token and feature (several axes or complex numbers); allowed: families with one "
        "position a token"
    ) from reason
