"""How an lm-eval backend is given RoPE settings. No torch."""

import logging
from typing import Any

from leval_border.errors import one_of
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.limits import length_limit
from resonance_vllm.positions import ModelPositions
from resonance_vllm.settings import hf_overrides, vllm_hf_overrides

logger = logging.getLogger(__name__)

ROPE_PRECISIONS = ("float32", "model")


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
    """`model_args` for lm-eval.

    Args:
        rope: complete settings; None runs the checkpoint as it is.
        model: the model's config.
        library: the one that runs the model, `transformers` or `vllm`.
        model_path: checkpoint folder or hub name.
        context_length: longest sequence in tokens; None leaves the limit of the settings.
        rope_precision: precision of the rotation on HF, `float32` or `model`.

    Returns:
        A dictionary to be passed as JSON or as a mapping: it holds dictionaries.

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
    length = context_length or limit
    if rope is not None and rope.method.extrapolates and length > model.max_positions:
        logger.warning(
            "%s runs on %d tokens, beyond the %d of its config: bare extrapolation",
            rope.rope_type,
            length,
            model.max_positions,
        )
    args: dict[str, Any] = {"pretrained": model_path}
    if library == "vllm":
        if rope is not None:
            args["hf_overrides"] = vllm_hf_overrides(rope, model, length)
        return {**args, "max_model_len": length}
    if rope is not None:
        args.update(hf_overrides(rope, model, context_length))
    return {**args, "max_length": length, "rope_precision": precision}
