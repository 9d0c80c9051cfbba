"""Portable checkpoints: a fixed method written as per-dimension `longrope`.

Stock transformers and stock vLLM run that type without us: each divides the plain frequencies by
one factor a feature. The angle is then their float32 product, so the exact phase is lost.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from leval_border.files import write_text
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.spec import RopeRequest, RopeSpec
from resonance_vllm.limits import length_limit
from resonance_vllm.positions import ModelPositions

# Files that hold weights: linked where the file system can, never rewritten.
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def check_fixed(rope: RopeSpec) -> None:
    """Raise RopeConfigError for a method whose frequencies no fixed list can hold."""
    if rope.method.follows_length or rope.method.switch_length is not None:
        raise RopeConfigError(
            f"rope_type: {rope.rope_type!r} cannot be exported: its frequencies change with the "
            "length of the sequence, and a portable checkpoint holds one fixed list; allowed: "
            "fixed methods, for example ntk_aware with the factor of one length"
        )


def divisors(rope: RopeSpec, dim: int) -> list[float]:
    """Plain frequency over frequency, one a feature of `dim` rotated dimensions."""
    from resonance_vllm.core.frequencies import inv_freq

    return (plain_frequencies(rope.method.rope_theta, dim) / inv_freq(rope, dim)).tolist()


def portable_rope(rope: RopeSpec, model: ModelPositions) -> dict[str, Any]:
    """`rope_parameters` of type `longrope` with the frequencies of a fixed method.

    `short_factor` = `long_factor` = `b^(-2j/d) / inv_freq_j`, and the attention factor stands under
    the keys of both libraries.

    Raises:
        RopeConfigError: the method follows the length of the sequence (`dynamic`, or a `longrope`
            whose two lists differ), so no fixed list of factors has its frequencies.
    """
    check_fixed(rope)
    if model.by_layer_type:
        raise RopeConfigError(
            f"model_type: {model.model_type!r} has several RoPEs by layer type; allowed: "
            "models with one, because vLLM's longrope takes its length from the whole model"
        )
    method = rope.method
    dim = model.rotary_dim(method.partial_rotary_factor)
    factors = divisors(rope, dim)
    limit = length_limit(model, rope)
    original = method.trained_length or limit
    result = {
        "rope_type": "longrope",
        "rope_theta": method.rope_theta,
        "factor": limit / original,
        "original_max_position_embeddings": original,
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": method.scale(),  # transformers
        "short_mscale": method.scale(),  # vLLM
        "long_mscale": method.scale(),
    }
    if method.partial_rotary_factor != 1.0:
        result["partial_rotary_factor"] = method.partial_rotary_factor
    return result


def export_checkpoint(checkpoint: Path, request: RopeRequest, out: Path) -> int:
    """Write a checkpoint with a portable rope config.

    Weights are hard-linked into the new folder `out`, or copied across file systems; of the other
    files only config.json is rewritten.

    Returns:
        Longest sequence in tokens, to be given to vLLM as `--max-model-len`.

    Raises:
        RopeConfigError: the method cannot be exported.
        OSError: the checkpoint has no config.json, or `out` is not empty.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"out: {out} is not empty; give a new folder")
    model = ModelPositions.of_checkpoint(str(checkpoint))
    rope = model.complete(request)
    parameters = portable_rope(rope, model)
    limit = length_limit(model, rope)
    for key in ("rope_scaling", "rope_theta", "rope_precision"):
        config.pop(key, None)
    config |= {
        "rope_parameters": parameters,
        "max_position_embeddings": limit,
        # Both libraries look for this key at the top first; vLLM's default length is this one.
        "original_max_position_embeddings": parameters["original_max_position_embeddings"],
    }
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(checkpoint.iterdir()):
        if source.is_file() and source.name != "config.json":
            _place(source.resolve(), out / source.name)
    write_text(out / "config.json", json.dumps(config, indent=2) + "\n")
    return limit


def _place(source: Path, target: Path) -> None:
    if source.suffix in WEIGHTS:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system: a copy does as well
    shutil.copy2(source, target)
