"""What the rotary modules of a built model hold: what `check` prints and verification compares.

No torch.
"""

from dataclasses import dataclass

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
