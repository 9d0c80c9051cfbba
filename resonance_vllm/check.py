"""What a model will really run with, on transformers and on vLLM, before it runs."""

import importlib.metadata
import importlib.util
import os
from typing import Any

from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.limits import length_limit, vllm_limit
from resonance_vllm.positions import ModelPositions
from resonance_vllm.settings import fixed_for_vllm, hf_overrides, vllm_hf_overrides

PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN = "resonance_rope"
FOUND, NO_VLLM = "found", "vLLM is not installed"


def plugin_state() -> str:
    """Whether vLLM will load our plugin: `found`, or why not."""
    if importlib.util.find_spec("vllm") is None:
        return NO_VLLM
    names = {point.name for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    if PLUGIN not in names:
        return f"not found: no entry point {PLUGIN} in {PLUGIN_GROUP}; install leval-harness"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"excluded by VLLM_PLUGINS={allowed!r}; add {PLUGIN} to it"
    return FOUND


def report(
    rope: RopeSpec | None, model: ModelPositions, context_length: int | None = None
) -> dict[str, Any]:
    """Both libraries' side of complete settings, and where they disagree.

    Args:
        rope: complete settings; None looks at the checkpoint as it is.
        model: the model's config.
        context_length: tokens that will be asked for.

    Returns:
        `hf` and `vllm` with `rope_parameters`, `max_position_embeddings`, `limit`, `inv_freq` and
        (vLLM) `cache_rows`; `plugin`; `disagreements`, a list of sentences.

    Raises:
        RopeConfigError: the settings cannot run at all.
    """
    on_hf = on_vllm = rope or model.shipped()
    seen_by_hf = seen_by_vllm = model
    if rope is not None:
        on_vllm = fixed_for_vllm(rope, model, context_length)
        seen_by_hf = model.overridden(hf_overrides(rope, model, context_length))
        seen_by_vllm = model.overridden(vllm_hf_overrides(rope, model, context_length))
    limit = length_limit(model, rope, context_length)
    hf = _side(on_hf, seen_by_hf, limit, limit)
    vllm = _side(on_vllm, seen_by_vllm, vllm_limit(seen_by_vllm), limit)
    served = min(context_length or vllm["limit"], vllm["limit"])
    positions = seen_by_vllm.max_positions
    vllm["cache_rows"] = (
        on_vllm.method.stock_rows(positions)
        if on_vllm.is_stock
        else max(on_vllm.method.length_limit(positions), positions, served)
    )
    plugin = plugin_state()
    disagreements = _disagreements(hf, vllm, served)
    if not on_vllm.is_stock and plugin not in (FOUND, NO_VLLM):
        disagreements.append(f"plugin: {on_vllm.rope_type} will be refused by vLLM ({plugin})")
    return {"hf": hf, "vllm": vllm, "plugin": plugin, "disagreements": disagreements}


def _side(rope: RopeSpec, seen: ModelPositions, limit: int, length: int) -> dict[str, Any]:
    """What one library makes of its config, at `length` where frequencies follow the length."""
    from resonance_vllm.core.frequencies import inv_freq

    dim = seen.rotary_dim(rope.method.partial_rotary_factor)
    return {
        "rope_parameters": seen.rope,
        "by_layer_type": seen.by_layer_type,
        "max_position_embeddings": seen.max_position_embeddings,
        "attention_factor": rope.method.scale(),
        "inv_freq": inv_freq(rope, dim, length if rope.method.follows_length else None).tolist(),
        "limit": limit,
    }


def _disagreements(hf: dict[str, Any], vllm: dict[str, Any], served: int) -> list[str]:
    lines: list[str] = []
    if hf["limit"] != vllm["limit"]:
        lines.append(f"limit: {hf['limit']} tokens on HF, {vllm['limit']} on vLLM")
    pairs = zip(hf["inv_freq"], vllm["inv_freq"], strict=True)
    apart = max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)
    if apart > 1e-6:
        lines.append(f"frequencies: up to {apart:.2%} apart")
    types = [side["rope_parameters"]["rope_type"] for side in (hf, vllm)]
    if types[0] != types[1]:
        lines.append(
            f"type: {types[0]} on HF, {types[1]} on vLLM, which fixes frequencies at start-up; "
            "they agree for sequences of the served length"
        )
    if vllm["cache_rows"] < served:
        lines.append(
            f"cache: {vllm['cache_rows']} rows for {served} positions; vLLM reads beyond the "
            "table without a check"
        )
    return lines
