"""Whether a request replaces the scaling that a checkpoint ships, and the errors about that.

No torch.
"""

import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resonance_vllm.core.spec import PREFIX, REPLACE, RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError, shown

if TYPE_CHECKING:
    from resonance_vllm.model_config.model_positions import ModelPositions


def replaces(requested: RopeSpec, shipped: RopeSpec) -> bool:
    """Whether a request gives up the method or the Resonance that a checkpoint ships.

    The only place where that is decided. Both are complete settings.
    """
    if shipped.resonance is not None:
        rule = shipped.resonance.wavelengths
        if requested.resonance is None or requested.resonance.wavelengths != rule:
            return True
    return shipped.method.name != "default" and not requested.method.same_as(shipped.method)


def refusal(model: "ModelPositions", request: RopeRequest) -> RopeConfigError:
    """The error for a request that replaces what is shipped and does not have `replace`."""
    scalars = {k: v for k, v in request.given.items() if isinstance(v, int | float | str)}
    keys = [f"{key}={str(value).lower()}" for key, value in scalars.items()]
    example = f"--rope {request.type.name}:{','.join([*keys, f'{REPLACE}=true'])}"
    return RopeConfigError(
        f"rope_type: {request.type.name!r} would replace what this {model.model_type!r} model "
        f"ships, {short(model.rope)}; write {REPLACE}: true ({example}) to give "
        "that up, or resonance for Resonance on top of it"
    )


def hiding(model: "ModelPositions", seen: "ModelPositions", requested: RopeSpec) -> RopeConfigError:
    """The error for overrides in a library's own form that replace what is shipped.

    Args:
        model: as shipped.
        seen: the same with the overrides.
        requested: the settings in `seen`.
    """
    return RopeConfigError(
        f"rope_parameters: {short(seen.rope)} would hide what this {model.model_type!r} "
        f"model ships, {short(model.rope)}; write --rope {requested.rope_type}:{REPLACE}=true "
        "with its keys to give that up, or --rope resonance for Resonance on top of it"
    )


intended: set[tuple[str, str]] = set()
"""Requested and shipped types of requests with `replace` in this process."""


@functools.cache
def log_once(logger: logging.Logger, requested: str, shipped: str) -> None:
    """Log that a requested type replaces the shipped one, unless a request has `replace`."""
    if (requested, shipped) in intended:
        return
    logger.warning(
        "rope_type %r replaces the scaling that this checkpoint ships, %r; %s would keep it",
        requested,
        shipped,
        f"{PREFIX}{shipped.removeprefix(PREFIX)} with its keys",
    )


def short(rope: Mapping[str, Any]) -> str:
    """A dictionary for a message: `'yarn' (factor 4.0, ...)`, lists left out."""
    scalars = {k: v for k, v in rope.items() if not isinstance(v, list | Mapping)}
    keys = [key for key in scalars if key not in ("rope_type", "type")][:8]
    text = ", ".join(f"{key} {shown(rope[key])}" for key in keys)
    return f"{shown(rope.get('rope_type'))} ({text})" if text else shown(rope.get("rope_type"))
