"""Rotary modules of transformers that turn as requested, with the exact phase.

The model was built with its library's own settings (`hf_request`). A rotary module of a request is
given a subclass of its own class: same buffers, other frequencies and another `forward`. A product
`position * frequency` in float32 loses the phase at long range, so Resonance takes the angle from
`position mod period`.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm import hf_layout
from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.held import HeldRope, NoRope, says_none
from resonance_vllm.hf_request import (
    by_layer,
    configs,
    names,
    requests_of,
    spec_of,
    stock_of,
    stock_settings,
)

OURS = "_resonance_rope"
"""Attribute of our rotary classes: the family's class."""

_FIELDS = tuple(field.name for field in dataclasses.fields(Rotation))
_TRIED = (0, 1, 2, 3, 100)


def layer_types(module: nn.Module) -> list[str | None]:
    """The rotations that a module holds; None is the name of a single one, [] says no rotary."""
    if says_none(getattr(module, "config", None)):
        return []
    buffers = module._buffers
    if "inv_freq" in buffers:
        return [None] if hasattr(module, "rope_type") else []
    ends = "_original_inv_freq"
    return [name.removesuffix(ends) for name in buffers if name.endswith(ends)]


def prefix(layer_type: str | None) -> str:
    """How the attributes of a layer type begin."""
    return "" if layer_type is None else f"{layer_type}_"


def rope_function(
    config: Any,
    device: torch.device | str | None = None,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
) -> tuple[Tensor, float]:
    """The entry of every type of ours in transformers' `ROPE_INIT_FUNCTIONS`.

    For a rotary module that is made alone, outside a model: frequencies without the exact phase.

    Returns:
        `inv_freq`, float32 `[features]`, and the attention factor, at a `seq_len` that is a tensor
        where it follows a sequence; `layer_type` is the key of `rope_parameters` by layer type.
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
    rotation = frequencies.rotation(spec, frequencies.carried(spec, found, length))
    target = torch.get_default_device() if device is None else device
    factor = scale if spec.base_is_stock else spec.method.scale()
    return rotation.inv_freq.to(dtype=torch.float32, device=target), factor


class Carried:
    """What one rotation of a module is asked to be, worked out on the CPU.

    Attributes:
        spec: the request.
        rotation: up to the trained length.
        beyond: past the length at which a method switches, where it does.
        layout: of the family's cos and sin.
        scale: what cos and sin are multiplied by.
    """

    def __init__(self, module: Any, layer_type: str | None, name: str) -> None:
        """Read the request of a module that was built with stock settings, off the meta device.

        Raises:
            RopeConfigError: the module does not follow its settings; it is named.
        """
        settings = requests_of(module.config)[layer_type]
        self.layer_type, self.name = layer_type, name
        self.spec = spec_of(module.config, settings)
        shown = by_layer(module.config)[layer_type]
        self.stock_type: str = shown["rope_type"]
        self._check_type(module)
        self.stock = _frequencies(module, layer_type)
        self.by_library = self.spec.base_is_stock and self.stock_type == self.spec.method.name
        if self.stock_type != "proportional" and self.spec.method.name != "default":
            whole = _of_whole_head(module, layer_type, shown)
            if whole is not None:
                self.stock, self.stock_type, self.by_library = whole, "proportional", False
        self._check_count(module, shown)
        self.layout = hf_layout.find(module, layer_type, len(self.stock))
        self.scale = self.layout.scale if self.by_library else self.spec.method.scale()
        self.current = self.rotation = self._rotation(self.stock, None)
        self._check_frequencies()
        self.switch = self.spec.method.switch_length
        self.beyond = None if self.switch is None else self.at_length(module, self.switch + 1)
        self.follows = self.spec.method.follows_length
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
        keywords = {} if self.layer_type is None else {"layer_type": self.layer_type}
        found, _ = ROPE_INIT_FUNCTIONS[self.stock_type](config, "cpu", seq_len=length, **keywords)
        return self._rotation(found, length)

    def _rotation(self, stock: Tensor, length: int | None) -> Rotation:
        base = frequencies.carried(self.spec, stock, length)
        if self.spec.base_is_stock and not self.by_library:
            # The library has the type, but not for this module.
            dim, method = 2 * len(stock), self.spec.method
            plain = plain_frequencies(method.rope_theta, dim)
            base = stock.double() / plain * method.frequencies(dim, length)
        return frequencies.rotation(self.spec, base)

    def _check_type(self, module: Any) -> None:
        kinds: Any = getattr(module, "rope_type", None)
        kind = kinds.get(self.layer_type) if isinstance(kinds, dict) else kinds
        if kind != self.stock_type:
            raise self._refusal(f"holds rope_type {kind!r} of its own")

    def _check_count(self, module: Any, shown: dict[str, Any]) -> None:
        """Refuse a type that makes more features than the family's code turns.

        transformers' `proportional` fills a whole head; code that turns a part of a head fails on
        that, or turns features of which the checkpoint knows nothing.
        """
        if self.stock_type != "proportional" or names(module.config, "proportional"):
            return
        plain = _frequencies(
            _twin(module, self.layer_type, shown | {"rope_type": "default"}), self.layer_type
        )
        if len(plain) != len(self.stock):
            raise RopeConfigError(
                f"rope_type: {self.spec.rope_type!r} makes {len(self.stock)} features of a whole "
                f"head, and {self.name} ({_family(module).__name__}) turns {len(plain)}: a part of "
                "a head; allowed: proportional types on families whose whole head is turned, or "
                "another method"
            )

    def _check_frequencies(self) -> None:
        """Refuse a module that was built with scaled settings and turns by plain ones."""
        method, count = self.spec.method, len(self.stock)
        plain = plain_frequencies(method.rope_theta, 2 * count)
        if not self.by_library or method.name == "default" or method.follows_length:
            return
        wanted = method.frequencies(2 * count)
        holds_plain = torch.allclose(self.stock.double(), plain, rtol=1e-4, atol=0)
        if holds_plain and not torch.allclose(wanted, plain, rtol=1e-3, atol=0):
            raise self._refusal("holds plain frequencies")

    def _refusal(self, holds: str) -> RopeConfigError:
        return RopeConfigError(
            f"rope_type: {self.spec.rope_type!r} would be ignored: {self.name} {holds}; allowed: "
            "families whose model code follows rope_parameters"
        )


def _frequencies(module: Any, layer_type: str | None) -> Tensor:
    found: Tensor = getattr(module, f"{prefix(layer_type)}inv_freq")
    return found.detach().cpu()


def _of_whole_head(module: Any, layer_type: str | None, shown: dict[str, Any]) -> Tensor | None:
    """Frequencies of a module whose features that do not turn are a part of it, with frequency 0.

    Such a family (Gemma 4) states the share that turns for transformers' `proportional` type. The
    other types of the registry make fewer features of that share than its heads have.
    """
    share = shown.get("partial_rotary_factor")
    if share is None or share >= 1 or not names(module.config, "proportional"):
        return None
    plain = {"rope_theta": shown["rope_theta"], "partial_rotary_factor": share}
    twin = _twin(module, layer_type, plain | {"rope_type": "proportional"})
    return _frequencies(twin, layer_type)


def _twin(module: Any, layer_type: str | None, shown: dict[str, Any]) -> Any:
    """A rotary module made alike, on the CPU, with other stock settings."""
    config = copy.copy(module.config)
    config.rope_parameters = (
        shown if layer_type is None else {**config.rope_parameters, layer_type: shown}
    )
    with torch.device("cpu"):
        return _family(module)(config)


def _family(module: nn.Module) -> Any:
    return getattr(type(module), OURS, type(module))


def adapt(model: nn.Module) -> None:
    """Give every rotary module of a model, built with stock settings, what was asked of it.

    Raises:
        RopeConfigError: a request reached no module, or a module does not follow it.
    """
    reached: list[Any] = []
    for name, module in model.named_modules():
        requests = requests_of(getattr(module, "config", None))
        kinds = [kind for kind in layer_types(module) if kind in requests]
        if kinds:
            source = _off_meta(module)
            _give(module, {kind: Carried(source, kind, name) for kind in kinds})
            reached += [(kind, requests[kind]["rope_type"]) for kind in kinds]
    whole = getattr(model, "config", None)
    for config in configs(whole):
        for kind, settings in requests_of(config).items():
            if (kind, settings["rope_type"]) not in reached:
                raise _no_rope(model, config, settings)
    if reached and getattr(whole, "is_encoder_decoder", False):
        raise RopeConfigError(
            f"rope_type: {reached[0][1]!r} would reach the decoder of {type(model).__name__}, not "
            "the encoder that reads its text; allowed: models without such an encoder"
        )
    verify(model)


def _off_meta(module: Any) -> Any:
    """The module, or one made alike on the CPU where it has no values yet."""
    if not any(buffer.is_meta for buffer in module._buffers.values()):
        return module
    with torch.device("cpu"), stock_settings(module.config):
        return _family(module)(module.config)


def _no_rope(model: Any, config: Any, settings: dict[str, Any]) -> NoRope:
    """The error for a request that reached no module, with what the model holds."""
    held = ", ".join(f"{each.module} ({each.layer_type or 'all layers'})" for each in hold(model))
    return NoRope(
        f"rope_type: {settings['rope_type']!r} would be ignored: {type(model).__name__} of "
        f"model_type {getattr(config, 'model_type', None)!r} has no rotary module that reads it"
        + (f"; {held} holds its own" if held else "")
    )


def _give(module: nn.Module, carried: dict[str | None, Carried]) -> None:
    """Make a rotary module turn by what was worked out for it."""
    state: Any = module
    state._carried, state._rope_precision = carried, "model"
    family: Any = type(module)
    module.__class__ = adapted_class(family)
    for kind, each in carried.items():
        setattr(module, f"{prefix(kind)}attention_scaling", each.scale)
        if isinstance(state.rope_type, dict):
            state.rope_type[kind] = each.stock_type
        else:
            state.rope_type = each.stock_type
    refill(module)


def refill(module: Any) -> None:
    """Put the frequencies of an adapted module where its library keeps them, and our tables."""
    for kind, each in module._carried.items():
        start = prefix(kind)
        held = module._buffers[f"{start}inv_freq"]
        if held.is_meta:
            continue
        plain = each.current.inv_freq.to(held.device, torch.float32)
        for name in (f"{start}inv_freq", f"{start}original_inv_freq"):
            module._buffers[name] = plain.clone()
        if each.exact:
            _fill(module, f"{start}now", each.current)
        if each.beyond is not None:
            _fill(module, f"{start}beyond", each.beyond)


def _fill(module: Any, name: str, rotation: Rotation) -> None:
    there = rotation.to(next(iter(module._buffers.values())).device)
    for field in _FIELDS:
        value: Tensor = getattr(there, field)
        module.register_buffer(f"{name}_{field}", value.clone(), persistent=False)


@functools.cache
def adapted_class(base: Any) -> type[nn.Module]:
    """Subclass of a family's rotary class; the same one for every module of that class."""
    if hasattr(base, OURS):
        return base
    namespace = {
        "forward": _forward,
        "_apply": _apply,
        OURS: base,
        "__module__": __name__,
        "__doc__": f"{base.__name__} that turns as requested.",
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


def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
    """Moves and casts as every module does, but frequencies keep their values and precision."""
    for kind in self._carried:
        for table in ("now", "beyond"):
            for field in _FIELDS:
                self._buffers.pop(f"{prefix(kind)}{table}_{field}", None)
    result = getattr(type(self), OURS)._apply(self, fn, recurse)
    refill(self)
    return result


@torch.no_grad()
def _forward(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
    """The family's answer, in the dtype of `x`, or float32 if that was asked."""
    like = x
    if self._rope_precision == "float32" and x.dtype != torch.float32:
        like = x.new_empty((), dtype=torch.float32)
    each = self._carried.get(layer_type)
    if each is not None and each.follows:
        _follow(self, each, position_ids)
    if each is None or not each.exact:
        keywords = {} if layer_type is None else {"layer_type": layer_type}
        return getattr(type(self), OURS).forward(self, like, position_ids, **keywords)
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


def _present(self: Any, each: Carried, position_ids: Tensor) -> Rotation:
    """The rotation for these positions, without a look at their values."""
    start = prefix(each.layer_type)
    now = [getattr(self, f"{start}now_{name}") for name in _FIELDS]
    if each.beyond is None:
        return Rotation(*now)
    far = position_ids.max() >= each.switch
    beyond = [getattr(self, f"{start}beyond_{name}") for name in _FIELDS]
    return Rotation(*(torch.where(far, b, a) for a, b in zip(now, beyond, strict=True)))


def _follow(self: Any, each: Carried, position_ids: Tensor) -> None:
    """Grow with the sequence and come back, as transformers' own update of dynamic types does."""
    length = int(position_ids.max()) + 1
    if length > max(each.length, each.trained):
        each.length, each.current = length, each.at_length(self, length)
    elif length < each.trained < each.length:
        each.length, each.current = each.trained, each.rotation
    else:
        return
    refill(self)


def set_precision(model: Any, precision: str) -> None:
    """Let every rotary module of the text model answer in float32, or in the model's precision."""
    for _, module in text_rotary(model):
        state: Any = module
        if hasattr(type(module), OURS):
            state._rope_precision = precision
        elif precision == "float32":
            _give(module, {})
            state._rope_precision = precision


def text_rotary(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The rotary modules of a model's text part, those of pictures and sounds aside."""
    config: Any = getattr(model, "config", None)
    text = type(config.get_text_config()) if hasattr(config, "get_text_config") else object
    rotary = [(name, module) for name, module in model.named_modules() if layer_types(module)]
    of_text = [each for each in rotary if isinstance(getattr(each[1], "config", None), text)]
    # A model made of several parts without one text model: all of them.
    yield from of_text or rotary


def verify(model: nn.Module) -> None:
    """Compare what every adapted module answers with what it was asked for.

    Raises:
        RopeConfigError: a module turns by something else; it is named.
    """
    for name, module in model.named_modules():
        if not hasattr(type(module), OURS):
            continue
        for kind, each in module._carried.items():
            held = module._buffers[f"{prefix(kind)}inv_freq"]
            if held.is_meta or each.follows:
                continue
            positions = torch.tensor([_TRIED], device=held.device)
            keywords = {} if kind is None else {"layer_type": kind}
            like = torch.zeros(1, device=held.device)
            found = module(like, positions, **keywords)
            angles = phase.angles(positions, each.rotation.to(held.device))
            wanted = each.layout.arrange(angles, each.scale, like)
            for a, b in zip(_parts(found), _parts(wanted), strict=True):
                if a.shape != b.shape or not torch.allclose(a, b, atol=1e-3 * each.scale):
                    raise RopeConfigError(
                        f"rope_type: {name} does not turn by {each.spec.to_dict()}: it holds "
                        f"{held.tolist()[:4]} and so on; please report the family"
                    )


def settle(model: nn.Module) -> None:
    """Fill and verify the adapted modules of a model whose weights have been loaded."""
    for module in model.modules():
        if hasattr(type(module), OURS):
            refill(module)
    verify(model)


def _parts(answer: Any) -> tuple[Tensor, ...]:
    return (answer.real, answer.imag) if isinstance(answer, Tensor) else tuple(answer)


def hold(model: nn.Module) -> list[HeldRope]:
    """What every rotary module of a built model turns by, at its trained length."""
    held = []
    for name, module in text_rotary(model):
        carried = getattr(module, "_carried", {})
        for kind in layer_types(module):
            each = carried.get(kind)
            if each is None:
                source = _off_meta(module)
                freqs = getattr(source, f"{prefix(kind)}inv_freq").tolist()
                factor = float(getattr(source, f"{prefix(kind)}attention_scaling", 1.0))
                held.append(HeldRope(name, kind, tuple(freqs), factor, False))
            else:
                freqs = each.rotation.inv_freq.tolist()
                exact = bool((each.rotation.periods > 0).any())
                held.append(HeldRope(name, kind, tuple(freqs), each.scale, exact))
    return held
