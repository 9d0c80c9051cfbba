"""Rotary modules of transformers that turn as requested, with the exact phase.

A rotary module with a request is given a subclass of its own class: same buffers, other frequencies
and another `forward`. A product `position * frequency` in float32 loses the phase at long range, so
Resonance takes the angle from `position mod period`. The frequencies are computed on the CPU, from
what transformers computes for the module, before the module changes.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.hf import layout
from resonance_vllm.hf.layout import keywords, prefix
from resonance_vllm.hf.request import Request, spec_of, stock_of
from resonance_vllm.model_config.family import Settings, by_layer, pairs_whole_heads
from resonance_vllm.verifier import Turns, differences, refusal

FAMILY_CLASS = "_resonance_rope"
"""Attribute of our rotary classes: the family's class."""
FOLLOWED = "families whose model code follows rope_parameters"

_FIELDS = tuple(field.name for field in dataclasses.fields(Rotation))


class RequestedRotation:
    """What one rotation of a module is requested to be.

    Attributes:
        spec: the request.
        rotation: up to the trained length.
        beyond: past the length at which a method switches, where it does.
        layout: of the family's cos and sin.
        scale: what cos and sin are multiplied by.
        follows: whether the frequencies change with every further token.
    """

    def __init__(self, module: Any, layer_type: str | None, name: str, request: Request) -> None:
        """Read what a module holds that was built with stock settings, off the meta device.

        Raises:
            RopeConfigError: the module does not follow its settings; it is named.
        """
        self.layer_type, self.spec, self.name = layer_type, request.spec, name
        method, shown = request.spec.method, request.shown
        self.stock_type: str = shown["rope_type"]
        self.stock = held_frequencies(module, layer_type)
        self.by_library = self.spec.base_is_stock and self.stock_type == method.name
        kind = _type_of(module, layer_type)
        fixed_by_model = kind != self.stock_type or self._has_own_base()
        if fixed_by_model:
            self._check_own_type(module, shown, kind)
            self.stock_type = kind
        elif self.stock_type != "proportional" and _still_part(module, shown):
            plain = {key: shown[key] for key in ("rope_theta", "partial_rotary_factor")}
            whole = twin(module, layer_type, plain | {"rope_type": "proportional"})
            self.stock = held_frequencies(whole, layer_type)
            self.stock_type, self.by_library = "proportional", False
        count = len(self.stock)
        self.layout = layout.find(module, layer_type, count)
        self.scale = self.layout.scale if self.by_library else method.scale()
        # Code may choose frequencies of its own by the settings, and a base of its own.
        by_formula = self.by_library and not fixed_by_model and method.name != "default"
        held = Turns(self.stock, self.layout.scale)
        features = features_as_shipped(module, layer_type, request, self.stock_type)
        wrong = differences(held, method if by_formula else held, features=features)
        if wrong:
            where = f"{name} ({family(module).__name__})"
            raise refusal(self.spec, where, wrong, held, FOLLOWED)
        self.current = self.rotation = self._rotation(self.stock, None)
        self.switch = None if fixed_by_model else method.switch_length
        self.beyond = None if self.switch is None else self.at_length(module, self.switch + 1)
        self.follows = method.follows_length and not fixed_by_model
        self.trained = self.length = self.spec.trained_length or 0
        self.exact = self.spec.resonance is not None or self.beyond is not None

    def at_length(self, module: Any, length: int) -> Rotation:
        """The rotation of a sequence of `length` tokens, past the trained length."""
        if not self.by_library:
            return self._rotation(self.stock, length)
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = copy.copy(module.config)
        # transformers takes this for the trained length of dynamic; ours is written.
        if self.spec.method.follows_length and self.spec.trained_length is not None:
            config.max_position_embeddings = self.spec.trained_length
        function = ROPE_INIT_FUNCTIONS[self.stock_type]
        found, _ = function(config, "cpu", seq_len=length, **keywords(self.layer_type))
        return self._rotation(found, length)

    def _rotation(self, stock: Tensor, length: int | None) -> Rotation:
        base = frequencies.base_frequencies(self.spec, stock, length, by_library=self.by_library)
        return frequencies.rotation(self.spec, base)

    def _has_own_base(self) -> bool:
        """Whether a type that follows the length starts from another base than its settings say."""
        if not self.by_library or not self.spec.method.follows_length:
            return False
        wanted = self.spec.method.frequencies(2 * len(self.stock))
        return not torch.allclose(self.stock.double(), wanted, rtol=1e-4, atol=0)

    def _check_own_type(self, module: Any, shown: Settings, kind: str) -> None:
        """Refuse a type that stands in the family's code, unless the code chose it by the settings.

        HunYuan's does, for `dynamic` with an `alpha` beside it: no length changes its frequencies.
        (transformers calls them `ntk_alpha` since 5.20; before, it dropped them past the trained
        length.) Code that names a type whatever the settings say would ignore the request.
        """
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        reason = None
        if kind != self.stock_type:
            plain = twin(module, self.layer_type, shown | {"rope_type": "default"})
            follows = self.spec.method.name == "default" or _type_of(plain, self.layer_type) != kind
            if kind in ROPE_INIT_FUNCTIONS or not follows:
                reason = f"holds rope_type {kind!r} of its own"
        factor = self.spec.method.extension or 1.0
        if reason is None and factor != 1.0:
            other = twin(module, self.layer_type, shown | {"factor": 2 * factor})
            if torch.equal(held_frequencies(other, self.layer_type), self.stock):
                reason = f"holds frequencies of its own, which factor {factor:g} does not change"
        if reason is not None:
            raise RopeConfigError(
                f"rope_type: {self.spec.rope_type!r} would be ignored: {self.name} {reason}; "
                f"allowed: {FOLLOWED}"
            )


def features_as_shipped(
    module: Any, layer_type: str | None, request: Request, stock_type: str
) -> int | None:
    """How many features turn with the settings that a request replaces; None if unknown.

    transformers' `proportional` makes features of a whole head whatever the family's code turns, so
    without replaced settings it is compared with plain RoPE.
    """
    shipped = request.shipped
    if request.own and pairs_whole_heads(module.config):
        return None
    if not shipped and stock_type == "proportional":
        shipped = request.shown | {"rope_type": "default"}
    if not shipped:
        return None
    try:
        return len(held_frequencies(twin(module, layer_type, shipped), layer_type))
    except (AttributeError, KeyError, TypeError, ValueError):  # a type that is unknown here
        return None


def _type_of(module: Any, layer_type: str | None) -> Any:
    kinds = getattr(module, "rope_type", None)
    return kinds.get(layer_type) if isinstance(kinds, dict) else kinds


def _still_part(module: Any, shown: Settings) -> bool:
    """Whether a part of the module's features stands still, with frequency 0 (Gemma 4).

    Such a family states the share that turns for transformers' `proportional` type. The other types
    of the registry make fewer features of that share than its heads have.
    """
    share = shown.get("partial_rotary_factor")
    return share is not None and share < 1 and pairs_whole_heads(module.config)


def held_frequencies(module: Any, layer_type: str | None) -> Tensor:
    """What a module keeps as its frequencies now, radians a token `[features]` on the CPU."""
    found: Tensor = getattr(module, f"{prefix(layer_type)}inv_freq")
    return found.detach().cpu()


def held_turns(module: Any, layer_type: str | None) -> Turns:
    """What a module turns by now; of one of our classes read from its cos and sin."""
    requested = getattr(module, "_requested", {}).get(layer_type)
    if requested is not None:
        device = held_device(module)
        one = torch.ones(1, 1, dtype=torch.int64, device=device)
        like = torch.zeros(1, device=device)
        return requested.layout.turns(module(like, one, **keywords(layer_type)))
    found = held_frequencies(module, layer_type)
    try:
        return Turns(found, layout.find(module, layer_type, len(found)).scale)
    except RopeConfigError:  # a layout that our types could not be given to
        stated = getattr(module, f"{prefix(layer_type)}attention_scaling", 1.0)
        return Turns(found, float(stated))


def held_device(module: nn.Module) -> torch.device:
    """Where the buffers of a module are."""
    return next(iter(module._buffers.values())).device


def twin(module: Any, layer_type: str | None, settings: Settings) -> Any:
    """A rotary module made alike, on the CPU, with other stock settings."""
    config = copy.copy(module.config)
    config.rope_parameters = (
        settings if layer_type is None else {**config.rope_parameters, layer_type: settings}
    )
    with torch.device("cpu"):
        return family(module)(config)


def family(module: nn.Module) -> Any:
    """The class of a rotary module as its family has it."""
    return getattr(type(module), FAMILY_CLASS, type(module))


def rope_function(
    config: Any,
    device: torch.device | str | None = None,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
) -> tuple[Tensor, float]:
    """The entry of every type of ours in transformers' `ROPE_INIT_FUNCTIONS`.

    For a rotary module that is made alone, outside a model: frequencies without the exact phase.

    Returns:
        `inv_freq`, float32 `[features]`, and the attention factor. `seq_len` is a tensor where it
        follows a sequence; `layer_type` is the key of `rope_parameters` by layer type.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = by_layer(config)[layer_type]
    spec, stock = spec_of(config, settings), stock_of(settings)
    if stock["rope_type"] == "default":  # which is no function of the registry
        stock |= {"rope_type": "linear", "factor": 1.0}
    shown = copy.copy(config)
    shown.rope_parameters = (
        stock if layer_type is None else {**config.rope_parameters, layer_type: stock}
    )
    length = None if seq_len is None else int(seq_len)
    function = ROPE_INIT_FUNCTIONS[stock["rope_type"]]
    found, scale = function(shown, device, seq_len=length, layer_type=layer_type)
    rotation = frequencies.rotation(spec, frequencies.base_frequencies(spec, found, length))
    target = torch.get_default_device() if device is None else device
    factor = scale if spec.base_is_stock else spec.method.scale()
    return rotation.inv_freq.to(dtype=torch.float32, device=target), factor


# The subclass.


def give(module: nn.Module, requested: dict[str | None, RequestedRotation]) -> None:
    """Make a rotary module turn as requested, by layer type."""
    state: Any = module
    state._requested, state._rope_precision = requested, "model"
    family: Any = type(module)
    module.__class__ = adapted_class(family)
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
        if each.exact:
            _register(module, f"{start}now", each.current)
        if each.beyond is not None:
            _register(module, f"{start}beyond", each.beyond)


def _register(module: Any, name: str, rotation: Rotation) -> None:
    there = rotation.to(held_device(module))
    for field in _FIELDS:
        value: Tensor = getattr(there, field)
        module.register_buffer(f"{name}_{field}", value.clone(), persistent=False)


@functools.cache
def adapted_class(base: Any) -> type[nn.Module]:
    """Subclass of a family's rotary class; the same one for every module of that class."""
    if hasattr(base, FAMILY_CLASS):
        return base
    namespace = {
        "forward": _forward,
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


@torch.no_grad()
def _forward(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
    """The family's answer, in the dtype of `x`, or in float32 with that `rope_precision`."""
    like = x
    if self._rope_precision == "float32" and x.dtype != torch.float32:
        like = x.new_empty((), dtype=torch.float32)
    each = self._requested.get(layer_type)
    if each is not None and each.follows:
        _follow(self, each, position_ids)
    if each is None or not each.exact:
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


def _present(self: Any, each: RequestedRotation, position_ids: Tensor) -> Rotation:
    """The rotation for these positions, without a look at their values."""
    start = prefix(each.layer_type)
    now = [getattr(self, f"{start}now_{name}") for name in _FIELDS]
    if each.beyond is None:
        return Rotation(*now)
    far = position_ids.max() >= each.switch
    beyond = [getattr(self, f"{start}beyond_{name}") for name in _FIELDS]
    return Rotation(*(torch.where(far, b, a) for a, b in zip(now, beyond, strict=True)))


def _follow(self: Any, each: RequestedRotation, position_ids: Tensor) -> None:
    """Grow with the sequence and come back, as transformers' own update of dynamic types does."""
    length = int(position_ids.max()) + 1
    if length > max(each.length, each.trained):
        each.length, each.current = length, each.at_length(self, length)
    elif length < each.trained < each.length:
        each.length, each.current = each.trained, each.rotation
    else:
        return
    fill(self)
