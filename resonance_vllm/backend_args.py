"""How an lm-eval backend is given RoPE settings. Standard library only at import."""

import logging
from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.model_config import max_positions, own_rope, read_config
from resonance_vllm.settings import context_limit, hf_overrides, vllm_hf_overrides

logger = logging.getLogger(__name__)

ROPE_PRECISIONS = ("float32", "model")


def effective_rope_precision(library: str, rope_precision: str) -> str:
    """What `rope_precision` really is: vLLM always rotates in the model's dtype."""
    if rope_precision not in ROPE_PRECISIONS:
        raise RopeConfigError(
            f"rope_precision: {rope_precision!r} is not allowed; allowed: "
            f"{' or '.join(ROPE_PRECISIONS)}"
        )
    return "model" if library == "vllm" else rope_precision


def model_args(
    rope: Mapping[str, Any] | None,
    *,
    library: str,
    model_path: str,
    context_length: int | None = None,
    rope_precision: str = "float32",
) -> dict[str, Any]:
    """`model_args` for lm-eval.

    Args:
        rope: the request; None runs the checkpoint as it is.
        library: the one that runs the model, `transformers` or `vllm`.
        model_path: checkpoint folder or hub name.
        context_length: longest sequence in tokens; None leaves the limit of the settings.
        rope_precision: precision of the rotation on HF, `float32` or `model`.

    Returns:
        A dictionary to be passed as JSON or as a mapping: it holds dictionaries.

    Raises:
        RopeConfigError: the settings are not allowed, or `context_length`
            is above their limit.
    """
    precision = effective_rope_precision(library, rope_precision)
    args: dict[str, Any] = {"pretrained": model_path}
    config = read_config(model_path)
    limit = context_limit(rope, config, context_length)
    if context_length is not None and context_length > limit:
        raise RopeConfigError(
            f"context_length: {context_length} is above the limit of {limit} tokens of "
            f"{rope or own_rope(config)}; allowed: up to {limit}, or a larger factor"
        )
    length = context_length or limit
    if length > max_positions(config) and rope is not None and "factor" not in rope:
        logger.warning(
            "%s runs on %d tokens, beyond the %d of its config: bare extrapolation",
            rope.get("rope_type"),
            length,
            max_positions(config),
        )
    if library == "vllm":
        if rope is not None:
            args["hf_overrides"] = vllm_hf_overrides(rope, config, length)
        return {**args, "max_model_len": length}
    if rope is not None:
        args.update(hf_overrides(rope, config, context_length))
    return {**args, "max_length": length, "rope_precision": precision}
