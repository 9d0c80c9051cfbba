"""What a rotary module of transformers holds, and the form of its answer.

All is computed on the CPU.

Families put features in halves or in pairs, once, as complex numbers, and take them from several
axes of positions. No config states that: the module's own `forward` is run once, on frequencies
that show which feature stands where.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import Settings, pairs_whole_heads
from resonance_vllm.verifier import Request, Turns

FAMILY_CLASS = "_resonance_rope"
"""Attribute of our rotary classes: the family's class."""

# transformers has at most one angle for each of three axes today.
_MOST_AXES = 4

ARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda values: torch.cat((values, values), dim=-1),
    "pairs": lambda values: values.repeat_interleave(2, dim=-1),
    "once": lambda values: values,
}
"""Features `[..., n]` as they stand in cos and in sin."""


def prefix(layer_type: str | None) -> str:
    """How the attributes of a layer type begin in a rotary module."""
    return "" if layer_type is None else f"{layer_type}_"


def keywords(layer_type: str | None) -> dict[str, str]:
    """How the layer type is given to a rotary module's `forward` or a rope function."""
    return {} if layer_type is None else {"layer_type": layer_type}


@dataclass(frozen=True)
class Layout:
    """The form of a module's answer.

    Attributes:
        features: a key of `ARRANGED`, or the feature at each place.
        count: number of features.
        is_complex: one complex tensor in place of cos and sin.
        casts: whether the answer has the dtype of the activations; else it is float32.
        axes: the axis of each feature where positions may have several axes `[axes, b, n]`.
        scale: attention factor, as the module multiplies by it.
    """

    features: str | tuple[int, ...]
    count: int
    is_complex: bool
    casts: bool
    axes: tuple[int, ...] | None
    scale: float

    def arrange(self, angles: Tensor, scale: float, like: Tensor) -> Any:
        """The module's answer for angles `[batch, length, features]`."""
        if self.is_complex:
            turned = torch.polar(torch.full_like(angles, scale), angles)
            return self._put(turned).to(torch.complex64)
        dtype = like.dtype if self.casts else torch.float32
        cos, sin = self._put(angles.cos() * scale), self._put(angles.sin() * scale)
        return cos.to(dtype), sin.to(dtype)

    def turns(self, answer: Any) -> Turns:
        """Frequencies, and the attention factor, in a module's answer for position 1."""
        angles, amplitudes = polar(answer)
        places = self._put(torch.arange(self.count, device="cpu")).tolist()
        first = [places.index(feature) for feature in range(self.count)]
        return Turns(angles[first], float(amplitudes.max()))

    def _put(self, values: Tensor) -> Tensor:
        if isinstance(self.features, str):
            return ARRANGED[self.features](values)
        return values[..., torch.tensor(self.features, device=values.device)]


def polar(answer: Any) -> tuple[Tensor, Tensor]:
    """Angles and amplitudes `[values]` in a module's answer for one token.

    Raises:
        ValueError: the answer has more axes than batch, length and features.
    """
    is_complex = isinstance(answer, Tensor)
    cos, sin = (answer.real, answer.imag) if is_complex else answer
    if cos.ndim != 3:
        raise ValueError("more than batch, length and features")
    return torch.atan2(sin, cos).flatten(), torch.hypot(sin, cos).flatten()


def find_layout(module: Any, layer_type: str | None, count: int) -> Layout:
    """The layout of a stock module with buffers that are not on the meta device.

    Args:
        module: a rotary module; it is not changed.
        layer_type: of the rotation, None where the module has one.
        count: its number of features.

    Raises:
        RopeConfigError: its answer is not one angle a token and feature.
    """
    known = torch.arange(1, count + 1, dtype=torch.float32, device="cpu") * (3.0 / (count + 1))
    start, probe = prefix(layer_type), copy.copy(module)
    held = {f"{start}{name}": known for name in ("inv_freq", "original_inv_freq")}
    probe._buffers = {**module._buffers, **held}

    def ask(positions: Tensor, dtype: torch.dtype = torch.float32) -> Any:
        return probe.forward(torch.zeros(1, dtype=dtype), positions, **keywords(layer_type))

    try:
        with torch.device("cpu"), torch.no_grad():
            one = torch.ones(1, 1, dtype=torch.int64)
            answer = ask(one)
            angles, amplitudes = polar(answer)
            features = _features(angles, known)
            is_complex = isinstance(answer, Tensor)
            casts = is_complex or ask(one, torch.bfloat16)[0].dtype == torch.bfloat16
            axes = _axes(ask, known, features)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _unknown(module) from error
    if features is None or float(amplitudes.max() - amplitudes.min()) > 1e-5:
        raise _unknown(module)
    scale, stated = float(amplitudes[0]), getattr(module, f"{start}attention_scaling", None)
    # What the module states has more digits, where it is what it multiplies by.
    if stated is not None and math.isclose(float(stated), scale, rel_tol=1e-5):
        scale = float(stated)
    return Layout(features, count, is_complex, casts, axes, scale)


def _features(angles: Tensor, known: Tensor) -> str | tuple[int, ...] | None:
    for name, arranged in ARRANGED.items():
        wanted = arranged(known)
        if wanted.shape == angles.shape and torch.allclose(wanted, angles, atol=1e-4):
            return name
    nearest = (angles[:, None] - known).abs().min(dim=-1)
    places = tuple(nearest.indices.tolist())
    complete = set(places) == set(range(len(known)))
    return places if complete and float(nearest.values.max()) < 1e-4 else None


def _axes(
    ask: Callable[[Tensor], Any], known: Tensor, features: str | tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Axis of each feature, for a module that takes positions `[axes, batch, length]`."""
    order = torch.arange(len(known))
    if isinstance(features, str):
        order = ARRANGED[features](order)
    elif features is not None:
        order = torch.tensor(features)
    for count in range(2, _MOST_AXES + 1):
        found: list[int | None] = [None] * len(known)
        for axis in range(count):
            positions = torch.zeros(count, 1, 1, dtype=torch.int64)
            positions[axis] = 1
            try:
                angles, _ = polar(ask(positions))
            except (IndexError, RuntimeError, ValueError):
                break
            for j in order[angles != 0].tolist():
                found[j] = axis
        else:
            if None not in found:
                return tuple(axis for axis in found if axis is not None)
    return None


def _unknown(module: nn.Module) -> RopeConfigError:
    return RopeConfigError(
        f"rope_type: {type(module).__name__} does not turn by the frequencies that it keeps, or by "
        "something else than one angle a token and feature; allowed: families whose rotary module "
        "returns cos and sin of position * inv_freq"
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
        shipped = request.settings | {"rope_type": "default"}
    if not shipped:
        return None
    try:
        return len(held_frequencies(twin(module, layer_type, shipped), layer_type))
    except (AttributeError, KeyError, TypeError, ValueError):  # a type that is unknown here
        return None


def plain_features_differ(module: Any, layer_type: str | None, request: Request) -> bool:
    """Whether a family's own plain frequencies are of another number than the model turns.

    Mistral 4's are of whole heads, of which a part turns; transformers' functions are of that part.
    Where no settings are replaced (a saved model), the share in the settings tells.
    """
    shown = request.settings
    if shown["rope_type"] != "default" or pairs_whole_heads(module.config):
        return False
    features = features_as_shipped(module, layer_type, request, "default")
    if features is None and (shown.get("partial_rotary_factor") or 1) < 1:
        part = twin(module, layer_type, shown | {"rope_type": "linear", "factor": 1.0})
        features = len(held_frequencies(part, layer_type))
    return features not in (None, len(held_frequencies(module, layer_type)))


def has_still_part(module: Any, shown: Settings) -> bool:
    """Whether a part of the module's features stands still, with frequency 0 (Gemma 4).

    Such a family states the share that turns for transformers' `proportional` type. The other types
    of the registry make fewer features of that share than its heads have.
    """
    share = shown.get("partial_rotary_factor")
    return share is not None and share < 1 and pairs_whole_heads(module.config)


def type_of_module(module: Any, layer_type: str | None) -> Any:
    """The rope type that a module names; None where it names none."""
    kinds = getattr(module, "rope_type", None)
    return kinds.get(layer_type) if isinstance(kinds, dict) else kinds


def held_frequencies(module: Any, layer_type: str | None) -> Tensor:
    """What a module keeps as its frequencies now, radians a token `[features]` on the CPU."""
    found: Tensor = getattr(module, f"{prefix(layer_type)}inv_freq")
    return found.detach().cpu()


@contextlib.contextmanager
def at_run_time() -> Iterator[None]:
    """On the CPU and in float32, as when a model runs.

    While transformers builds a model, the default device may be meta, and the default dtype is the
    model's. Frequencies that are computed from a length in bfloat16 are off by 0.1 percent.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.no_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def twin(module: Any, layer_type: str | None, settings: Settings) -> Any:
    """A rotary module made alike, on the CPU, with other stock settings."""
    config = copy.copy(module.config)
    config.rope_parameters = (
        settings if layer_type is None else {**config.rope_parameters, layer_type: settings}
    )
    with at_run_time():
        return family(module)(config)


def family(module: nn.Module) -> Any:
    """The class of a rotary module as its family has it."""
    return getattr(type(module), FAMILY_CLASS, type(module))
