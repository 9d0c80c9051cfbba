"""Requests in configs, for the plugin of vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from resonance_vllm.core.spec import OWN_TYPES, RopeSpec
from resonance_vllm.verify import Turns

if TYPE_CHECKING:
    from resonance_vllm.core.frequencies import Rotation


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
