"""What a model will really run with, on transformers and on vLLM, before it runs."""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from resonance_vllm.core.spec import RopeSpec, split_rope_type
from resonance_vllm.model_config import GLOBAL_LAYERS, own_rope, rotary_dim
from resonance_vllm.settings import (
    VLLM_UNMULTIPLIED,
    context_limit,
    hf_overrides,
    vllm_hf_overrides,
)

PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN = "resonance_rope"


def plugin_state() -> str:
    """Whether vLLM will load our plugin: `found`, or why not."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    names = {point.name for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    if PLUGIN not in names:
        return f"not found: no entry point {PLUGIN} in {PLUGIN_GROUP}; install leval-harness"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"excluded by VLLM_PLUGINS={allowed!r}; add {PLUGIN} to it"
    return "found"


def report(
    rope: Mapping[str, Any] | None, config: Mapping[str, Any], context_length: int | None = None
) -> dict[str, Any]:
    """Both libraries' side of a request, and where they disagree.

    Args:
        rope: the request; None looks at the checkpoint as it is.
        config: the model's config.json.
        context_length: length that will be asked for.

    Returns:
        `hf` and `vllm` with `rope_parameters`, `max_position_embeddings`, `limit`, `inv_freq` and
        (vLLM) `cache_rows`; `plugin`; `disagreements`, a list of sentences.

    Raises:
        RopeConfigError: the settings cannot run at all.
    """
    given = hf_overrides(rope, config, context_length) if rope else None
    hf = _side(rope, config, given, context_length)
    served = context_length
    given = vllm_hf_overrides(rope, config, served) if rope else None
    vllm = _side(rope, config, given, context_length)
    hf["limit"] = context_limit(rope, config, context_length)
    vllm["limit"] = vllm_limit(vllm["rope_parameters"], vllm["max_position_embeddings"], config)
    served = min(served or vllm["limit"], vllm["limit"])
    vllm["cache_rows"] = cache_rows(
        vllm["rope_parameters"], vllm["max_position_embeddings"], served
    )
    facts = {"hf": hf, "vllm": vllm, "plugin": plugin_state()}
    facts["disagreements"] = _disagreements(hf, vllm, str(facts["plugin"]), served)
    return facts


def _side(
    rope: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    given: dict[str, Any] | None,
    context_length: int | None,
) -> dict[str, Any]:
    from resonance_vllm.core.frequencies import attention_factor, inv_freq

    effective = {**config, **(given or {})}
    params = own_rope(effective)
    positions = effective.get("max_position_embeddings")
    known = {**params}
    if split_rope_type(params["rope_type"])[0] != "default":
        known.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    spec = RopeSpec.from_dict(known)
    length = context_limit(rope, config, context_length) if spec.is_dynamic else None
    frequencies = inv_freq(spec, rotary_dim(config, params), length)
    return {
        "rope_parameters": params,
        "by_layer_type": GLOBAL_LAYERS in (effective.get("rope_parameters") or {}),
        "max_position_embeddings": positions,
        "attention_factor": attention_factor(spec),
        "inv_freq": frequencies.tolist(),
    }


def vllm_limit(params: Mapping[str, Any], positions: int, config: Mapping[str, Any]) -> int:
    """`max_model_len` that vLLM derives, our plugin's correction of our own types included."""
    rope_type = params["rope_type"]
    factor = params.get("factor")
    spec = RopeSpec.from_dict(dict(params))
    if not spec.is_stock:
        return spec.length_limit(positions)
    if rope_type in VLLM_UNMULTIPLIED or "gemma3" in str(config.get("model_type")):
        return int(positions)
    return int(positions * (factor or 1.0))


def cache_rows(params: Mapping[str, Any], positions: int, served: int) -> int:
    """Positions that vLLM's cos/sin table will hold; reading beyond them is not checked there."""
    spec_type = params["rope_type"]
    factor = params.get("factor") or 1.0
    original = params.get("original_max_position_embeddings") or positions
    if spec_type == "yarn":
        return int(original * factor)
    if spec_type == "linear":
        return int(positions * factor)
    if spec_type in ("default", "dynamic", "llama3", "longrope"):
        return int(positions)
    return max(int(original * factor), int(positions), served)


def _disagreements(
    hf: Mapping[str, Any], vllm: Mapping[str, Any], plugin: str, served: int
) -> list[str]:
    found: list[str] = []
    if hf["limit"] != vllm["limit"]:
        found.append(f"limit: {hf['limit']} tokens on HF, {vllm['limit']} on vLLM")
    pairs = zip(hf["inv_freq"], vllm["inv_freq"], strict=True)
    apart = max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)
    if apart > 1e-6:
        found.append(f"frequencies: up to {apart:.2%} apart")
    if hf["rope_parameters"]["rope_type"] != vllm["rope_parameters"]["rope_type"]:
        found.append(
            f"type: {hf['rope_parameters']['rope_type']} on HF, "
            f"{vllm['rope_parameters']['rope_type']} on vLLM, which fixes frequencies at start-up; "
            "they agree for sequences of the served length"
        )
    if vllm["cache_rows"] < served:
        found.append(
            f"cache: {vllm['cache_rows']} rows for {served} positions; vLLM reads beyond the "
            "table without a check"
        )
    own = vllm["rope_parameters"]["rope_type"]
    if plugin not in ("found", "vLLM is not installed"):
        stock = RopeSpec.from_dict(dict(vllm["rope_parameters"])).is_stock
        if not stock:
            found.append(f"plugin: {own} will be refused by vLLM ({plugin})")
    return found
