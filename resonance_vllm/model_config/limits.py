"""The longest sequence of a model: one answer for tasks, backends, check and plugin.

No torch: lengths are needed before any model is built.
"""

from resonance_vllm.core.method import LONGEST_FACTOR
from resonance_vllm.core.spec import BASE_TYPES, OWN_TYPES, STOCK_TYPES, RopeSpec
from resonance_vllm.errors import RopeConfigError, not_allowed
from resonance_vllm.model_config.model_positions import ModelPositions

# Types of vLLM alone that it leaves unmultiplied as well (vllm/config/model.py).
VLLM_UNMULTIPLIED = ("su", "deepseek_yarn", "deepseek_llama_scaling")


def length_limit(
    model: ModelPositions, rope: RopeSpec | None = None, requested: int | None = None
) -> int:
    """Longest sequence in tokens that a model may be given, on transformers and vLLM alike.

    Each method has its own (`Method.length_limit`). Two kinds follow the requested length:
    `dynamic`, whose base grows with it, and methods that extend nothing, which then extrapolate.

    Args:
        model: the model's config, overrides applied where there are any.
        rope: complete settings; None for the checkpoint as it is, whose stock types are written
            scaled.
        requested: length in tokens that the user requests explicitly.

    Raises:
        RopeConfigError: neither the config nor the user gives a length, or the config has a type
            of ours that cannot be read.
    """
    model = model.with_length(requested or (rope.trained_length if rope else None))
    if rope is None:
        if model.plain:
            return max(model.max_positions, requested or 0)
        if model.rope["rope_type"] not in OWN_TYPES:
            return model.max_positions
        rope = model.shipped()
    # What extends nothing has the trained length, also where it replaces a shipped scaling.
    positions = model.original_length if rope.method.extrapolates else model.max_positions
    limit = rope.method.length_limit(positions)
    if rope.method.follows_length or rope.method.extrapolates:
        return max(limit, requested or 0)
    return limit


def vllm_multiplies(model: ModelPositions, rope_type: str) -> bool:
    """Whether vLLM multiplies `max_position_embeddings` by the factor of a type."""
    if "gemma3" in str(model.model_type) or rope_type in VLLM_UNMULTIPLIED:
        return False
    return rope_type not in STOCK_TYPES or BASE_TYPES[rope_type][0].vllm_multiplies


def vllm_limit(model: ModelPositions) -> int:
    """`max_model_len` that vLLM derives from a config with overrides, our plugin at work.

    Raises:
        RopeConfigError: the config has no length, or a factor that is none.
    """
    if model.rope["rope_type"] in OWN_TYPES:
        return length_limit(model)
    factor = model.rope.get("factor")
    if factor and vllm_multiplies(model, str(model.rope["rope_type"])):
        if isinstance(factor, int | float) and 0 < factor <= LONGEST_FACTOR:
            return int(model.max_positions * factor)
        raise RopeConfigError(not_allowed("factor", factor, "a number of at least 1"))
    return model.max_positions
