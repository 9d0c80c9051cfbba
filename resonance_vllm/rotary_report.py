"""What the rotary modules of a built model hold: what `check` prints and verification compares.

No torch.
"""

from dataclasses import dataclass
from typing import Any

from resonance_vllm.core.errors import RopeConfigError


@dataclass(frozen=True)
class HeldRope:
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


class NoRope(RopeConfigError):  # noqa: N818 - it says what a model is
    """A model without RoPE, or one that its library refuses; the message is the reason."""


def says_none(config: Any) -> bool:
    """Whether a model's config says that its positions are encoded otherwise.

    Falcon's code makes a rotary module beside ALiBi too, and does not use it.
    """
    kind = getattr(config, "position_embedding_type", None)
    return bool(getattr(config, "alibi", False)) or kind in ("nope", "absolute")
