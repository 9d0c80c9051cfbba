"""RoPE types and rotation precision of the RoPE package, where it is installed."""

import importlib
import logging
from typing import Any

logger = logging.getLogger(__name__)

CHOICES = ("float32", "model")


def prepare(rope_precision: str | None) -> None:
    """Make the RoPE package's types known to transformers before a model is loaded.

    Raises:
        ValueError: The precision is none of `CHOICES`.
    """
    if rope_precision is not None and rope_precision not in CHOICES:
        raise ValueError(f"rope_precision={rope_precision!r} is not one of {', '.join(CHOICES)}")
    try:
        hf = importlib.import_module("resonance_vllm.hf")
    except ImportError as error:
        # Stock rope types need nothing of it; others fail when the model is built.
        logger.info("no further rope types: %s", error)
        return
    hf.register()


def apply(model: Any, rope_precision: str | None) -> None:
    """Rotate in the asked precision.

    Raises:
        ValueError: The precision is asked for but the RoPE package is not installed.
    """
    if rope_precision is None:
        return
    try:
        hf = importlib.import_module("resonance_vllm.hf")
    except ImportError as error:
        raise ValueError(
            f"rope_precision={rope_precision!r} needs resonance_vllm.hf ({error}); leave it out"
        ) from error
    hf.set_rope_precision(model, rope_precision)
