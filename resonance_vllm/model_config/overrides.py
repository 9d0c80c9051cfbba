"""What each library, and its lm-eval backend, is given for complete settings on a model.

The only place that writes such dictionaries. No torch.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from resonance_vllm.core.spec import COMPARED, LENGTH, PREFIX, RESONANCE, RopeSpec
from resonance_vllm.errors import RopeConfigError, one_of
from resonance_vllm.model_config.family import without_window
from resonance_vllm.model_config.limits import length_limit, vllm_multiplies
from resonance_vllm.model_config.model_positions import ModelPositions

logger = logging.getLogger(__name__)

ROPE_PRECISIONS = ("float32", "model")


def hf_overrides(
    rope: RopeSpec, model: ModelPositions, context_length: int | None = None
) -> dict[str, Any]:
    """What to pass to transformers' `from_pretrained`, or to write into config.json.

    `max_position_embeddings` stays the trained length for dynamic types, because transformers takes
    it for that. Without a `context_length` in tokens the limit of the settings counts.
    """
    limit = length_limit(model, rope, context_length)
    original = rope.method.trained_length or model.with_length(limit).max_positions
    positions = original if rope.method.follows_length else limit
    written = _overrides(
        rope, model, lambda each: each.method.for_transformers(each.to_dict()), positions, original
    )
    if model.original_max_position_embeddings is None:
        # from_pretrained takes a key only where the model's config has it already.
        written.pop("original_max_position_embeddings", None)
    return model.in_place(written)


def vllm_hf_overrides(
    rope: RopeSpec, model: ModelPositions, max_model_len: int | None = None
) -> dict[str, Any]:
    """The `hf_overrides` of vLLM.

    vLLM fixes the frequencies when it starts, so `dynamic` is written as `ntk_aware` with the base
    of the served length. `max_position_embeddings` is written so that vLLM derives
    the limit of `limits.length_limit`. Without a `max_model_len` in tokens the limit of the
    settings counts.
    """
    fixed = fixed_for_vllm(rope, model, max_model_len)
    limit = length_limit(model, fixed, max_model_len)
    original = fixed.method.trained_length or limit
    multiplied = fixed.method.extension is not None and vllm_multiplies(model, fixed.rope_type)
    positions = original if multiplied else limit
    written = _overrides(
        fixed, model, lambda each: each.method.for_vllm(each.to_dict()), positions, original
    )
    if model.nested:
        # There vLLM updates a dictionary key by key: what is shipped and not written stays.
        written["rope_parameters"] = _cancelling(written["rope_parameters"], model)
    compared = {COMPARED: True} if fixed.is_stock and not model.ships(fixed) else {}
    return {**model.in_place(written), **compared}


def fixed_for_vllm(rope: RopeSpec, model: ModelPositions, max_model_len: int | None) -> RopeSpec:
    """The settings that vLLM runs: those whose frequencies follow the length are frozen at it.

    Not where the model ships the same beside keys of its own, of which its code may make a fixed
    type (HunYuan): the plugin sees what it builds.
    """
    shipped = str(model.rope["rope_type"]).removeprefix(PREFIX)
    own = bool(model.model_keys) and shipped == rope.method.name
    if own or not rope.method.follows_length:
        return rope
    length = max_model_len or length_limit(model, rope)
    return dataclasses.replace(rope, method=rope.method.at_length(length))


def _log_fixed(rope: RopeSpec, model: ModelPositions, length: int) -> None:
    fixed = fixed_for_vllm(rope, model, length)
    if fixed is not rope:
        logger.warning(
            "vLLM fixes RoPE frequencies at start-up: %s runs as %s with factor %g, the base of %d "
            "tokens",
            rope.rope_type,
            fixed.rope_type,
            fixed.method.extension,
            length,
        )


def _parameters(
    rope: RopeSpec, model: ModelPositions, form: Callable[[RopeSpec], dict[str, Any]]
) -> dict[str, Any]:
    """`rope_parameters` as the language model's config has them, with the keys of the model.

    Several layer types without a window get Resonance, each on its own base method.
    """
    if not model.by_layer_type:
        return {**model.model_keys, **form(rope)}
    result = dict(model.rope_parameters or {})
    if len(kinds := without_window(result)) == 1:
        return {**result, kinds[0]: {**model.model_keys, **form(rope)}}
    keys = rope.resonance.model_dump(exclude_none=True) if rope.resonance else {}
    if rope.resonance and rope.resonance.needs_length():
        keys[LENGTH] = rope.trained_length
    for kind in kinds:
        layers = model.of_layers(kind)
        spec = layers.complete({"rope_type": RESONANCE, **keys})
        result[kind] = {**layers.model_keys, **form(spec)}
    return result


def _overrides(
    rope: RopeSpec,
    model: ModelPositions,
    form: Callable[[RopeSpec], dict[str, Any]],
    positions: int,
    original: int,
) -> dict[str, Any]:
    """Settings and the lengths that belong to them, under the keys that the model's config has."""
    result: dict[str, Any] = {"rope_parameters": _parameters(rope, model, form)}
    if model.max_position_embeddings is not None:
        result["max_position_embeddings"] = positions
    # Where a config has this key at the top, both libraries let it win over the dictionary.
    if model.original_max_position_embeddings is not None or rope.method.name == "longrope":
        result["original_max_position_embeddings"] = original
    return result


def _cancelling(rope: dict[str, Any], model: ModelPositions) -> dict[str, Any]:
    if model.by_layer_type:
        shipped: dict[str, Any] = model.rope_parameters or {}
        kinds = without_window(shipped)
        return {**rope, **{kind: {**dict.fromkeys(shipped[kind]), **rope[kind]} for kind in kinds}}
    return {**dict.fromkeys(model.rope), **rope}


def effective_rope_precision(library: str, rope_precision: str) -> str:
    """What `rope_precision` really is: vLLM always rotates in the model's dtype."""
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    return "model" if library == "vllm" else rope_precision


def model_args(
    rope: RopeSpec | None,
    model: ModelPositions,
    *,
    library: str,
    model_path: str,
    context_length: int | None = None,
    rope_precision: str = "float32",
) -> dict[str, Any]:
    """`model_args` for lm-eval; a type that vLLM fixes at one length is logged.

    Args:
        rope: complete settings; None runs the checkpoint as it is.
        model: the model's config.
        library: the one that runs the model, `transformers` or `vllm`.
        model_path: checkpoint folder or hub name.
        context_length: longest sequence in tokens; None is the limit of the settings.
        rope_precision: of the rotation on transformers, see `ROPE_PRECISIONS`.

    Raises:
        RopeConfigError: `context_length` is above the limit.
    """
    precision = effective_rope_precision(library, rope_precision)
    limit = length_limit(model, rope, context_length)
    if context_length is not None and context_length > limit:
        raise RopeConfigError(
            f"context_length: {context_length} is above the limit of {limit} tokens of "
            f"{model.rope if rope is None else rope.to_dict()}; allowed: up to {limit}, or a "
            "larger factor"
        )
    length, model = context_length or limit, model.with_length(limit)
    extrapolates = model.plain if rope is None else rope.method.extrapolates
    if extrapolates and length > (promised := length_limit(model, rope)):
        logger.warning(
            "%s runs on %d tokens, beyond the %d of its config: bare extrapolation",
            "default" if rope is None else rope.rope_type,
            length,
            promised,
        )
    args: dict[str, Any] = {"pretrained": model_path}
    if library == "vllm":
        if rope is not None:
            _log_fixed(rope, model, length)
            args["hf_overrides"] = vllm_hf_overrides(rope, model, length)
        elif length > model.max_positions:
            args["hf_overrides"] = model.in_place({"max_position_embeddings": length})
        return {**args, "max_model_len": length}
    if rope is not None:
        args.update(hf_overrides(rope, model, context_length))
    return {**args, "max_length": length, "rope_precision": precision}
