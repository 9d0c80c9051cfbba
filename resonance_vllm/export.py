"""Portable checkpoints: a fixed method written as per-dimension `longrope`.

Stock transformers and stock vLLM run that type without us: each divides the plain frequencies by
one factor a feature. The angle is then their float32 product, so the exact phase is lost.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.model_config import GLOBAL_LAYERS, rotary_dim
from resonance_vllm.settings import complete, context_limit

# Files that hold weights: linked where the file system can, never rewritten.
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def portable_rope(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of type `longrope` with the frequencies of a fixed method.

    Args:
        rope: the request, see `settings.complete`.
        config: the model's config.json.

    Returns:
        `short_factor` = `long_factor` = `b^(-2j/d) / inv_freq_j`, and the attention factor under
        the keys of both libraries.

    Raises:
        RopeConfigError: the method follows the length of the sequence (`dynamic`, or a `longrope`
            whose two lists differ), so no fixed list of factors has its frequencies.
    """
    from resonance_vllm.core import frequencies

    spec = RopeSpec.from_dict(complete(rope, config))
    if spec.is_dynamic:
        raise RopeConfigError(
            f"rope_type: {spec.rope_type!r} cannot be exported: its frequencies change with the "
            "length of the sequence, and a portable config holds one fixed list; allowed: fixed "
            "methods, for example ntk_aware with the factor of one length"
        )
    if spec.short_factor != spec.long_factor:
        raise RopeConfigError(
            "short_factor, long_factor: they differ, so the frequencies change with the length "
            "and Resonance would be lost on one side; allowed: fixed methods"
        )
    if GLOBAL_LAYERS in (config.get("rope_parameters") or {}) or config.get("rope_local_base_freq"):
        raise RopeConfigError(
            f"model_type: {config.get('model_type')!r} has several RoPEs by layer type; allowed: "
            "models with one, because vLLM's longrope takes its length from the whole model"
        )
    dim = rotary_dim(config, spec.to_dict())
    plain = frequencies.powers(spec.rope_theta, dim)
    factors = (plain / frequencies.inv_freq(spec, dim)).tolist()
    scale = frequencies.attention_factor(spec)
    limit = context_limit(rope, config)
    original = spec.original_max_position_embeddings or limit
    result = {
        "rope_type": "longrope",
        "rope_theta": spec.rope_theta,
        "factor": limit / original,
        "original_max_position_embeddings": original,
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": scale,  # transformers
        "short_mscale": scale,  # vLLM
        "long_mscale": scale,
    }
    if spec.partial_rotary_factor != 1.0:
        result["partial_rotary_factor"] = spec.partial_rotary_factor
    return result


def export_checkpoint(checkpoint: Path, rope: Mapping[str, Any], out: Path) -> int:
    """Write a checkpoint with a portable rope config.

    Args:
        checkpoint: folder with config.json and weights.
        rope: the request.
        out: new folder. Weights are hard-linked, or copied across file systems; other files are
            copied; only config.json is rewritten.

    Returns:
        Longest sequence in tokens, to be given to vLLM as `--max-model-len`.

    Raises:
        RopeConfigError: the method cannot be exported.
        OSError: the checkpoint has no config.json, or `out` is not empty.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"out: {out} is not empty; give a new folder")
    params = portable_rope(rope, config)
    limit = context_limit(rope, config)
    for key in ("rope_scaling", "rope_theta", "rope_precision"):
        config.pop(key, None)
    config["rope_parameters"] = params
    config["max_position_embeddings"] = limit
    # Both libraries look for this key at the top first; vLLM's default length is this one.
    config["original_max_position_embeddings"] = params["original_max_position_embeddings"]
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(checkpoint.iterdir()):
        if source.is_file() and source.name != "config.json":
            _place(source.resolve(), out / source.name)
    text = json.dumps(config, indent=2) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
    return limit


def _place(source: Path, target: Path) -> None:
    if source.suffix in WEIGHTS:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system: a copy does as well
    shutil.copy2(source, target)
