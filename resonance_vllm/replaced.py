"""A word where a type of ours stands in place of a scaling that a checkpoint ships. No torch.

A library's own interfaces (`from_pretrained`, `vllm serve --hf-overrides`) put one dictionary in
place of another and cannot be told that this is meant.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import PREFIX, RESONANCE, RopeType, is_own_type
from resonance_vllm.positions import global_layers

# Below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")


def remark(shipped: object, asked: object, logger: logging.Logger = logger) -> None:
    """Log, once for each pair, that `asked` gives up the scaling of `shipped`.

    Args:
        shipped: `rope_parameters` of a checkpoint, or `rope_scaling` as older files have it.
        asked: the dictionary that is put in its place.
        logger: where to say it.
    """
    asked_type, shipped_type = _type(asked), _type(shipped)
    if not is_own_type(asked_type) or shipped_type in (None, "default", RESONANCE):
        return
    try:
        same = RopeType.read(shipped_type).method is RopeType.read(asked_type).method
    except RopeConfigError:  # a type of the model's own
        same = False
    if not same:
        _say(logger, str(asked_type), str(shipped_type))


@functools.cache
def _say(logger: logging.Logger, asked: str, shipped: str) -> None:
    logger.warning(
        "rope_type %r replaces the scaling that this checkpoint ships, %r, which is lost; %s would "
        "keep it",
        asked,
        shipped,
        f"{PREFIX}{shipped.removeprefix(PREFIX)} with its keys",
    )


def _type(rope: object) -> Any:
    """The type in a dictionary, or that of its global layers."""
    if not isinstance(rope, Mapping):
        return None
    try:
        one = rope[global_layers(rope)]
    except RopeConfigError:  # one dictionary for all layers
        one = rope
    return one.get("rope_type", one.get("type"))
