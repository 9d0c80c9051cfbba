"""RoPE types and rotation precision of transformers models."""

from typing import Any

from leval_border.errors import one_of
from resonance_vllm.backend_args import ROPE_PRECISIONS


def prepare(rope_precision: str | None) -> None:
    """Make our RoPE types known to transformers before a model is loaded.

    Raises:
        SettingError: the precision is none of `ROPE_PRECISIONS`.
    """
    from resonance_vllm import hf

    if rope_precision is not None:
        one_of("rope_precision", rope_precision, ROPE_PRECISIONS)
    hf.register()


def apply(model: Any, rope_precision: str | None) -> None:
    """Rotate in the asked precision; None leaves the model as it is."""
    from resonance_vllm import hf

    if rope_precision is not None:
        hf.set_rope_precision(model, rope_precision)
