"""Context lengths in a config: tokens, or multiples of a model's native context length."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from leval_harness.sweep import ConfigError
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig

MULTIPLE = r"^(\d*[1-9]\d*(\.\d+)?|0+\.\d*[1-9]\d*)x$"
"""A multiple as it is written: `1x`, `1.5x`."""
BEYOND_NATIVE = ("1.5x",)
"""Lengths of effective-context tasks for which a config states none.

Half as long again as the native context length shows where an unscaled model degrades and whether a
method extends it, and is within the limit of every method with a factor of two.
"""
WINDOW = "window"
"""The setting in `metadata` that states a native context length in place of the checkpoint."""


def native_length(positions: PositionConfig | None, metadata: Mapping[str, Any]) -> int | None:
    """Return the native context length of a model in tokens; None if nothing states it.

    Args:
        positions: what the config of the checkpoint says; None for a served model.
        metadata: settings of the tasks, of which `window` goes before the checkpoint.
    """
    window = metadata.get(WINDOW)
    if isinstance(window, int):
        return window
    if positions is None or positions.max_position_embeddings is None:
        return None
    return length_limit(positions)


def in_tokens(length: int | str | None, native: int | None, model: str) -> int | None:
    """Return a context length in tokens, a multiple rounded down.

    Args:
        length: tokens, a multiple of the native context length, or None for none.
        native: native context length of the model in tokens, if it is known.
        model: what messages call the model.

    Raises:
        ConfigError: a multiple, and no native context length is known.
    """
    if not isinstance(length, str):
        return length
    if native is None:
        raise ConfigError(
            f"context_lengths: {length} is a multiple of the native context length, which the config "
            f"of {model} does not state; give it as metadata.{WINDOW}, or context_lengths in tokens"
        )
    return int(Fraction(re.sub("x$", "", length)) * native)
