"""Rotary modules of transformers: what one is asked to turn by, what it answers, and our hook.

Families put features in halves or in pairs, once, as complex numbers, and take them from several
axes of positions. No config states that, so a module's own `forward` is asked.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import local_torch_dtype

from resonance_vllm.checkpoint.config import (
    PositionConfig,
    Settings,
    rope_by_layer_type,
    unscaled_rope_type,
)
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.frequencies import Rotation
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import NATIVE_LENGTH_KEY, RopeSpec
from resonance_vllm.verify import RotaryState, compare_states, mismatch_error

WRITTEN = ("rope_parameters", "max_position_embeddings", NATIVE_LENGTH_KEY, "head_dim")
"""Attributes of a config that settings change."""
CODE_ERRORS = (
    AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_MOST_AXES = 4
"""Of positions; transformers has three for images and films."""

# What is asked.


def rotation_of(
    config: Any, layer_type: str | None, length: int | None = None
) -> tuple[RopeSpec, Rotation, float]:
    """What a rotary module is asked to turn by: settings, rotation, attention factor.

    The config is of the language model; `length` is that of the sequence in tokens, for methods
    that follow it. How many features turn says transformers' own function for the family.
    """
    rope = rope_by_layer_type(config)[layer_type]
    spec = replace(PositionConfig.from_config(config), rope_parameters=rope).own_spec()
    name = spec.method.name
    if unscaled_rope_type(config, layer_type) != "default" and rope.get("partial_rotary_factor"):
        name = "proportional"  # a part of the features stands still
    elif name == "default" or not (spec.is_stock or name == "proportional"):
        name = "linear"  # by 1: plain RoPE is no function of the registry
    ours = {"type", *(() if name == spec.method.name else spec.method.key_names())}
    ours -= set(Method.model_fields)
    stock = {key: value for key, value in rope.items() if key not in ours} | {"rope_type": name}
    if name != spec.method.name:
        stock["factor"] = 1.0
    shown = _with_settings(config, layer_type, stock)
    if spec.method.depends_on_length and spec.method.native_length is not None:
        shown.max_position_embeddings = spec.method.native_length
    with torch.device("cpu"), local_torch_dtype(torch.float32):  # a model is built in its own
        found, scale = ROPE_INIT_FUNCTIONS[name](
            shown, "cpu", seq_len=length, layer_type=layer_type
        )
    if spec.is_stock:  # to the bit
        return spec, frequencies.rotation_from_base(spec, found.double()), scale
    base = frequencies.base_inv_freq(spec.method, found, length)
    return spec, frequencies.rotation_from_base(spec, base), spec.method.compute_attention_factor()


def _with_settings(config: Any, kind: str | None, rope: Settings) -> Any:
    """A copy of a config with other settings of a layer type."""
    shown = copy.copy(config)
    shown.rope_parameters = rope if kind is None else {**config.rope_parameters, kind: rope}
    if vars(shown).get("head_dim", 0) is None:  # Mixtral: transformers' functions multiply None
        shown.head_dim = shown.hidden_size // shown.num_attention_heads
    return shown


def rope_function(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """The entry of each of our types in transformers' registry: float32 frequencies, factor."""
    length = None if seq_len is None else int(seq_len)
    _, rotation, scale = rotation_of(config, layer_type, length)
    target = torch.get_default_device() if device is None else device
    return rotation.inv_freq.to(target, torch.float32), scale


# What a module answers.


@contextlib.contextmanager
def code_of(what: type) -> Iterator[None]:
    """What model code raises on settings that it does not know, as a RopeConfigError."""
    try:
        yield
    except CODE_ERRORS as error:
        raise RopeConfigError(
            f"rope_type: the code of {what.__name__} fails with it: {type(error).__name__}: {error}"
        ) from error


def built_anew(cls: Any, config: Any) -> Any:
    """A rotary module of a class made again, on the CPU and in float32."""
    with code_of(cls), torch.device("cpu"), local_torch_dtype(torch.float32), torch.no_grad():
        return cls(config)


def turning(
    name: str, module: Any, kind: str | None, *, asked: bool
) -> tuple["Turning | None", RotaryState]:
    """The hook that a module needs to turn as its config says, and what it answers then.

    Without a hook it turns by its own frequencies, float32 products of position and frequency. A
    RopeConfigError says that it turns by something else than `asked` for.
    """
    built, start = built_anew(type(module), module.config), "" if kind is None else f"{kind}_"
    stated = float(getattr(built, f"{start}attention_scaling", 1.0))
    held = RotaryState(getattr(built, f"{start}inv_freq").detach(), stated)
    try:
        spec, rotation, scale = rotation_of(module.config, kind)
        wanted = RotaryState(rotation.inv_freq, scale, rotation.exact)
        with code_of(type(built)):
            _, amplitudes = ask(built, kind, torch.ones(1, 1, dtype=torch.int64))
        held = RotaryState(held.inv_freq, float(amplitudes.max()))
        if wrong := compare_states(held, wanted):
            raise mismatch_error(spec, f"{name} ({type(module).__name__})", wrong)
        hook = _hook(built, kind, spec, rotation, scale)
    except (KeyError, RopeConfigError):
        if asked:
            raise
        return None, held
    return hook, RotaryState(held.inv_freq, scale) if hook is None else wanted


def _hook(
    built: Any, kind: str | None, spec: RopeSpec, rotation: Rotation, scale: float
) -> "Turning | None":
    """What a rotary module, here a new one on the CPU, needs beside its own frequencies."""
    method = spec.method
    switch = method.switch_length
    if spec.is_stock and switch is None and not method.depends_on_length:
        return None
    hook = Turning(kind, method, rotation, scale, *places_of(built, kind, len(rotation.inv_freq)))
    if method.depends_on_length:
        hook.switch = method.native_length or built.config.max_position_embeddings
        hook.at_length = functools.partial(rotation_of, built.config, kind)
    elif switch is not None:
        hook.switch, hook.beyond = switch, rotation_of(built.config, kind, switch + 1)[1]
    return hook


def ask(module: Any, kind: str | None, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Angles and amplitudes `[places]` that a module on the CPU answers for one token."""
    given = {} if kind is None else {"layer_type": kind}
    with torch.no_grad(), torch.device("cpu"):
        answer = module(torch.zeros(1), positions, **given)
    cos, sin = (answer.real, answer.imag) if isinstance(answer, Tensor) else answer
    if cos.ndim != 3:
        raise ValueError("more than batch, length and features")
    return torch.atan2(sin, cos).flatten(), torch.hypot(sin, cos).flatten()


def places_of(module: Any, kind: str | None, count: int) -> tuple[Tensor, Tensor]:
    """The feature at each place of a family's answer, and the axis of each of `count` features."""
    known, probe = torch.arange(1, count + 1) * (3.0 / (count + 1)), copy.copy(module)
    start = "" if kind is None else f"{kind}_"
    held = {f"{start}{name}": known for name in ("inv_freq", "original_inv_freq")}
    probe._buffers = module._buffers | held
    axes = torch.zeros(count, dtype=torch.int64)
    with contextlib.suppress(*CODE_ERRORS):
        angles, amplitudes = ask(probe, kind, torch.ones(1, 1, dtype=torch.int64))
        near = (angles[:, None] - known).abs().min(dim=-1)
        for axis in range(1, _MOST_AXES):
            at = torch.zeros(_MOST_AXES - 1, 1, 1, dtype=torch.int64)
            at[axis : axis + 1] = 1
            with contextlib.suppress(IndexError, RuntimeError, ValueError):
                turned, _ = ask(probe, kind, at)
                if turned.shape == angles.shape:
                    axes[near.indices[turned != 0]] = axis
        alike = (
            float(near.values.max()) < 1e-4 and float(amplitudes.max() - amplitudes.min()) < 1e-5
        )
        if alike and set(near.indices.tolist()) == set(range(count)):
            return near.indices, axes
    raise RopeConfigError(
        f"rope_type: {type(module).__name__} returns something else than cos and sin of the "
        "position times the frequencies that it keeps"
    )


# Hooks.


class RopeHook:
    """A hook of ours, before or behind a rotary module's `forward`."""


def remove_hooks(module: nn.Module) -> None:
    """Take every hook of ours from a module."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number in [number for number, hook in hooks.items() if isinstance(hook, RopeHook)]:
            del hooks[number]


def given_to(args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a rotary module's `forward` by name."""
    return dict(zip(("x", "position_ids", "layer_type"), args, strict=False)) | kwargs


@dataclass(eq=False)
class Turning(RopeHook):
    """Behind a rotary module's `forward`: the family's answer, with angles of ours.

    A row of positions gets the frequencies of its own length: those of `rotation` up to `switch`
    tokens, then those of `beyond`, or of `at_length`, which is `rotation_of` a length. `places` has
    the feature at each place of cos, `axes` the axis of each feature.
    """

    kind: str | None
    method: Method
    rotation: Rotation
    scale: float
    places: Tensor
    axes: Tensor
    switch: int | None = None
    beyond: Rotation | None = None
    at_length: Callable[[int], tuple[RopeSpec, Rotation, float]] | None = None
    exact: bool = field(init=False)

    def __post_init__(self) -> None:
        self.exact = self.rotation.exact

    def __call__(self, module: Any, args: Any, kwargs: Any, found: Any) -> Any:
        """In place of what the module answered for positions `[rows, n]` or `[axes, rows, n]`."""
        given = given_to(args, kwargs)
        if given.get("layer_type") != self.kind:
            return found
        positions = given["position_ids"]
        if self.places.device != positions.device:
            self.to(positions.device)
        angles = self._angles(positions)
        if positions.ndim == 3:
            angles = angles.gather(0, self.axes.expand(1, *angles.shape[1:]))[0]
        angles = angles[..., self.places]
        if isinstance(found, Tensor):
            return torch.polar(torch.full_like(angles, self.scale), angles).to(found.dtype)
        return tuple(
            (each * self.scale).to(found[0].dtype) for each in (angles.cos(), angles.sin())
        )

    def to(self, device: torch.device) -> None:
        """Move what angles are made of."""
        self.places, self.axes = self.places.to(device), self.axes.to(device)
        self.rotation = self.rotation.to(device)
        self.beyond = None if self.beyond is None else self.beyond.to(device)

    def _angles(self, positions: Tensor) -> Tensor:
        # Without an exact phase the float32 product that transformers makes, to the bit.
        dtype = self.rotation.inv_freq.dtype if self.exact else torch.float32
        angles = phase.rotation_angles(positions, self.rotation, dtype)
        if self.switch is None:
            return angles
        last = positions.amax(-1)
        last = last if positions.ndim == 2 else last.amax(0)
        if self.beyond is not None:
            far = phase.rotation_angles(positions, self.beyond, dtype)
            return torch.where((last >= self.switch)[:, None, None], far, angles)
        assert self.at_length is not None
        rows = list(angles.unbind(-3))
        for row, length in enumerate((last + 1).tolist()):
            if length > self.switch:
                rotation = self.at_length(length)[1].to(positions.device)
                rows[row] = phase.rotation_angles(positions[..., row, :], rotation, dtype)
        return torch.stack(rows, -3)


class InFloat32(RopeHook):
    """Before a rotary module's `forward`: a family casts cos and sin to the dtype of `x`."""

    def __call__(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with a float32 `x`, of which only device and dtype count."""
        given = given_to(args, kwargs)
        return (), given | {"x": given["x"].new_empty(0, dtype=torch.float32)}
