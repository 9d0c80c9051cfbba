"""Whether what a library built of a type is what was asked for, in words."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import RopeSpec

CLOSE = 1e-4
"""Relative: far above float32's rounding, far below what tells two methods apart."""


class Asked(dict[str, Any]):
    """`rope_parameters` of a library's own type that an override put in place of a checkpoint's.

    Attributes:
        specs: what it asks for, by layer type; None is the key of settings for all layers.
        shipped: the settings that it replaced, by layer type.
    """

    specs: Mapping[str | None, RopeSpec]
    shipped: Mapping[str | None, dict[str, Any]]


def asked_of(config: Any) -> Asked | None:
    """The settings of a config that are to be compared with what is built."""
    rope = getattr(config, "rope_parameters", None)
    return rope if isinstance(rope, Asked) else None


def differences(
    method: Method, found: Tensor, scale: float, length: int | None = None, close: float = CLOSE
) -> list[str]:
    """How a rotation differs from a method's own formula; features that stand still aside.

    The order of features counts for nothing: some families (Ernie 4.5 VL) have one of their own.

    Args:
        method: what was asked for, without Resonance.
        found: what a module turns by, radians a token, `[features]`.
        scale: what it multiplies cos and sin by.
        length: of the sequence in tokens; None is up to the trained one.
        close: relative tolerance.
    """
    wrong = []
    held = found.detach().cpu().double().sort().values
    with contextlib.suppress(RopeConfigError):  # divisors for another number of features
        wanted = method.frequencies(2 * len(held), length).sort().values
        apart = ((held - wanted).abs() > close * wanted) & (held > 0)
        if apart.any():
            wrong.append(f"{int(apart.sum())} of {len(held)} frequencies differ")
    if not math.isclose(scale, expected := method.scale(), rel_tol=close):
        wrong.append(f"the attention factor is {scale:.6g}, not {expected:.6g}")
    return wrong


def held_words(found: Tensor, scale: float) -> str:
    """What a module turns by, for a message."""
    ends = f"{found.max():.4g} to {found.min():.4g}"
    return f"{len(found)} frequencies from {ends} radians a token, attention factor {scale:.4g}"
