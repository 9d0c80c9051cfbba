"""A scaling that a checkpoint ships, and what is put in its place: compared, refused, remarked on.

No torch.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from leval_border.errors import shown
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import (
    PREFIX,
    REPLACE,
    RESONANCE,
    RopeRequest,
    RopeSpec,
    RopeType,
    is_own_type,
)
from resonance_vllm.model_config.config_positions import ConfigPositions
from resonance_vllm.model_config.layer_types import one_global

# Below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")


def replaces(asked: RopeSpec, shipped: RopeSpec) -> bool:
    """Whether something that is shipped would be lost."""
    if shipped.resonance is not None:
        rule = shipped.resonance.wavelengths
        if asked.resonance is None or asked.resonance.wavelengths != rule:
            return True
    return shipped.method.name != "default" and not asked.method.same_as(shipped.method)


def refusal(model: ConfigPositions, request: RopeRequest) -> RopeConfigError:
    """The error for a request that does not say that it replaces what is shipped."""
    return RopeConfigError(
        f"rope_type: {request.type.name!r} would replace what this {model.model_type!r} model "
        f"ships, {short(model.rope)}; write {REPLACE}: true ({_example(request)}) to give "
        "that up, or resonance for Resonance on top of it"
    )


def hiding(model: ConfigPositions, seen: ConfigPositions, asked: RopeSpec) -> RopeConfigError:
    """The error for overrides in a library's own form, after which a model is `seen`.

    `asked` are the settings in `seen`.
    """
    return RopeConfigError(
        f"rope_parameters: {short(seen.rope)} would hide what this {model.model_type!r} "
        f"model ships, {short(model.rope)}; write --rope {asked.rope_type}:{REPLACE}=true "
        "with its keys to give that up, or --rope resonance for Resonance on top of it"
    )


def refuse_part_of_a_head(model: ConfigPositions, asked: RopeSpec) -> None:
    """Refuse a type that makes features of another part of a head than the family's code turns.

    Where a whole head is turned (Gemma 4), a library's own types of a part of it make features for
    the share that turns alone: transformers' model code fails on fewer of them, vLLM pairs other
    dimensions. Where a part of a head is turned, `proportional` makes features of all of it.

    Raises:
        RopeConfigError: `asked` is such a type.
    """
    share, name = asked.method.partial_rotary_factor, asked.rope_type
    if share == 1:
        return
    if asked.method.name == "proportional":
        if not model.whole_head:
            raise RopeConfigError(
                f"rope_type: {name!r} makes features of a whole head, and this "
                f"{model.model_type!r} model turns {share:g} of each; allowed: proportional types "
                "on families whose whole head is turned, or another method"
            )
    elif model.whole_head and asked.is_stock:
        ours = RESONANCE if name == "default" else PREFIX + name
        raise RopeConfigError(
            f"rope_type: {name!r} of the libraries does not fit this {model.model_type!r} "
            f"model, which turns {share:g} of each head and pairs dimensions over all of it; "
            f"allowed: {ours}, types of ours (ntk_aware), or Resonance on what is shipped"
        )


def short(rope: Mapping[str, Any]) -> str:
    """A dictionary for a message: `'yarn' (factor 4.0, ...)`, lists left out."""
    keys = [k for k, v in rope.items() if k not in ("rope_type", "type") and not _long(v)][:8]
    told = ", ".join(f"{key} {shown(rope[key])}" for key in keys)
    return f"{shown(rope.get('rope_type'))} ({told})" if told else shown(rope.get("rope_type"))


def _long(value: object) -> bool:
    return isinstance(value, list | Mapping)


def _example(request: RopeRequest) -> str:
    """The request with `replace`, as the command line takes it."""
    scalars = {k: v for k, v in request.given.items() if isinstance(v, int | float | str)}
    keys = [f"{key}={str(value).lower()}" for key, value in scalars.items()]
    return f"--rope {request.type.name}:{','.join([*keys, f'{REPLACE}=true'])}"


def remark(shipped: object, asked: object, logger: logging.Logger = logger) -> None:
    """Log, once for each pair, that `asked` gives up the scaling of `shipped`.

    A library's own interfaces (`from_pretrained`, `vllm serve --hf-overrides`) put one dictionary
    in place of another and cannot be told that this is meant.

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
    kind = one_global(rope)
    one = rope if kind is None else rope[kind]
    return one.get("rope_type", one.get("type"))
