"""The one comparison of what a rotary module holds with what was requested, for both libraries.

The adapters (`hf`, `vllm`) report what a module holds. The same rules count for stock types and for
ours: frequencies, number of features, attention factor. Torch is imported where it is needed.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from resonance_vllm.core.method import Method, Tensor
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec
from resonance_vllm.errors import RopeConfigError

if TYPE_CHECKING:
    from resonance_vllm.core.frequencies import Rotation

CLOSE = 1e-4
"""Relative tolerance: far above float32's rounding, far below what tells two methods apart."""


class NoRope(RopeConfigError):  # noqa: N818 - it describes a model
    """A model without RoPE, or one that its library refuses; the message is the reason."""


class Turns(NamedTuple):
    """What a module turns by: radians a token `[features]`, and what cos and sin are scaled by."""

    inv_freq: Tensor
    attention_factor: float

    def __str__(self) -> str:
        """For a message."""
        found, scale = self
        span = f"{found.max():.4g} to {found.min():.4g}"
        return f"{len(found)} frequencies from {span} radians a token, attention factor {scale:.4g}"


@dataclass(frozen=True)
class Request:
    """What is requested of the rotation of one layer type, or of all layers.

    Attributes:
        spec: the settings.
        own: whether the type is ours; else the library builds it and it is only verified.
        settings: the dictionary that stands in the config.
        shipped: the settings that an override replaced; None where none did.
    """

    spec: RopeSpec
    own: bool
    settings: dict[str, Any]
    shipped: dict[str, Any] | None = None


@dataclass(eq=False)
class RequestedRotation:
    """What a rotary module turns by where it was changed as requested; the adapters add to it.

    Attributes:
        spec: the request.
        rotation: what every feature turns by, up to the trained length.
        scale: what cos and sin are multiplied by.
    """

    spec: RopeSpec
    rotation: "Rotation"
    scale: float

    @property
    def turns(self) -> Turns:
        """Frequencies and attention factor."""
        return Turns(self.rotation.inv_freq, self.scale)

    @property
    def exact_phase(self) -> bool:
        """Whether some features have the exact phase."""
        return bool((self.rotation.periods > 0).any())


@dataclass(frozen=True)
class RotaryReport:
    """The rotation of one module, for one layer type where it has several.

    Attributes:
        module: its name in the model, `model.rotary_emb`.
        layer_type: as transformers names it; None where the module has one rotation.
        inv_freq: radians a token as the module holds them, one a feature; 0 where one stands still.
        attention_factor: what cos and sin are multiplied by.
        exact_phase: whether the angle is taken from `position mod period`.
    """

    module: str
    layer_type: str | None
    inv_freq: tuple[float, ...]
    attention_factor: float
    exact_phase: bool

    @classmethod
    def of(cls, module: str, layer_type: str | None, found: Turns | RequestedRotation) -> Self:
        """Of what a module was given, or of what it holds."""
        exact = isinstance(found, RequestedRotation) and found.exact_phase
        inv_freq, scale = found.turns if isinstance(found, RequestedRotation) else found
        return cls(module, layer_type, tuple(inv_freq.tolist()), scale, exact)

    @property
    def turns(self) -> Turns:
        """Frequencies and attention factor."""
        import torch

        return Turns(torch.tensor(self.inv_freq, dtype=torch.float64), self.attention_factor)


class OverriddenRope(dict[str, Any]):
    """`rope_parameters` that an override put in place of a checkpoint's; saved as a plain dict.

    Attributes:
        specs: the requested settings by layer type; None is the key of settings for all layers.
        shipped: the settings that they replace, by layer type.
    """

    specs: Mapping[str | None, RopeSpec]
    shipped: Mapping[str | None, dict[str, Any]]

    @classmethod
    def made(
        cls,
        rope: Mapping[str, Any],
        specs: Mapping[str | None, RopeSpec],
        shipped: Mapping[str | None, dict[str, Any]],
    ) -> Self:
        """The settings `rope` with the attributes."""
        result = cls(rope)
        result.specs, result.shipped = specs, shipped
        return result

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """The settings of a config, where an override put them there."""
        rope = getattr(config, "rope_parameters", None)
        return rope if isinstance(rope, cls) else None

    def shipped_for(self, layer_type: str | None) -> dict[str, Any] | None:
        """The settings of a layer type that were replaced."""
        return self.shipped.get(layer_type, self.shipped.get(None))

    def requests(self) -> dict[str | None, Request]:
        """The requests for types that libraries build themselves, by layer type."""
        return {
            kind: Request(spec, False, self if kind is None else self[kind], self.shipped_for(kind))
            for kind, spec in self.specs.items()
            if spec.rope_type not in OWN_TYPES
        }


def differences(
    held: Turns,
    requested: Method | Turns,
    *,
    length: int | None = None,
    features: int | None = None,
    close: float = CLOSE,
) -> list[str]:
    """How a rotation differs from a method's formula, or from certain frequencies.

    With a formula the order of features does not matter, because some families (Ernie 4.5 VL) have
    their own, and features that stand still are left out.

    Args:
        held: what a module turns by.
        requested: a method without Resonance, or frequencies in the module's order.
        length: of the sequence in tokens, for the formula; None is up to the trained one.
        features: the number that turns in the model as shipped; None where that is unknown.
        close: relative tolerance.
    """
    wrong = []
    found = held.inv_freq.detach().cpu().double()
    if isinstance(requested, Turns):
        expected, scale = requested
        features = len(expected) if features is None else features
        turning = expected >= 0
    else:
        found, scale = found.sort().values, requested.scale()
        turning, expected = found > 0, found
        with contextlib.suppress(RopeConfigError):  # divisors for another number of features
            expected = requested.frequencies(2 * len(found), length).sort().values
    if features is not None and len(found) != features:
        wrong.append(f"{len(found)} features turn, and {features} as it is shipped")
    if len(found) == len(expected):
        apart = ~((found - expected).abs() <= close * expected) & turning
        if apart.any():
            wrong.append(f"{int(apart.sum())} of {len(found)} frequencies differ")
    if not math.isclose(held.attention_factor, scale, rel_tol=close):
        wrong.append(f"the attention factor is {held.attention_factor:.6g}, not {scale:.6g}")
    return wrong


def refusal(spec: RopeSpec, where: str, wrong: list[str], held: object, allowed: str) -> Exception:
    """The error for a module that does not turn as requested.

    Args:
        spec: the request.
        where: the module and its class.
        wrong: `differences`.
        held: what it turns by.
        allowed: what can be done instead.
    """
    return RopeConfigError(
        f"rope_type: {spec.rope_type!r} is not what {where} turns by: {'; '.join(wrong)}; it holds "
        f"{held}; allowed: {allowed}"
    )
