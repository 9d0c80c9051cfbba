"""Portable checkpoints: a fixed method written as per-dimension `longrope`.

Stock transformers and stock vLLM run that type without us: each divides the plain frequencies by
one factor a feature. The angle is then their float32 product, so the exact phase is lost.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resonance_vllm.config import ModelPositions, hf_overrides, length_limit
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.spec import RopeRequest, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.files import parse_json, write_text
from resonance_vllm.positions import model_keys
from resonance_vllm.verify import RotaryReport

# Files that hold weights: linked where the file system can, never rewritten.
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def check_there(checkpoint: Path) -> None:
    """Raise FileNotFoundError for a folder that is no checkpoint."""
    if not (checkpoint / "config.json").is_file():
        raise FileNotFoundError(f"{checkpoint} holds no config.json, so it is no checkpoint")


def check_fixed(rope: RopeSpec) -> None:
    """Raise RopeConfigError for a method that no fixed list of frequencies can hold."""
    if isinstance(rope.method, MappedMethod):
        raise rope.method.refusal("a portable checkpoint holds frequencies alone")
    if rope.method.follows_length or rope.method.switch_length is not None:
        raise RopeConfigError(
            f"rope_type: {rope.rope_type!r} cannot be exported: its frequencies change with the "
            "length of the sequence, and a portable checkpoint holds one fixed list; allowed: "
            "fixed methods, for example ntk_aware with the factor of one length"
        )


def divisors(rope: RopeSpec, inv_freq: Sequence[float]) -> list[float]:
    """Plain frequency over frequency, one a feature.

    Raises:
        RopeConfigError: a feature stands still.
    """
    if not all(inv_freq):
        raise RopeConfigError(
            f"rope_type: {rope.rope_type!r} cannot be exported: features of it stand still, and a "
            "list of divisors holds no frequency of 0"
        )
    plain = plain_frequencies(rope.method.rope_theta, 2 * len(inv_freq)).tolist()
    return [a / b for a, b in zip(plain, inv_freq, strict=True)]


def portable_rope(rope: RopeSpec, model: ModelPositions, held: RotaryReport) -> dict[str, Any]:
    """`rope_parameters` of type `longrope` for the rotation that a model holds with a method.

    `short_factor` = `long_factor` = `b^(-2j/d) / inv_freq_j`, and the attention factor stands under
    the keys of both libraries. Keys that are the model's own stay.
    """
    limit = length_limit(model, rope)
    original = rope.method.trained_length or limit
    factors = divisors(rope, held.inv_freq)
    result = {
        **model_keys(model.rope),
        "rope_type": "longrope",
        "rope_theta": rope.method.rope_theta,
        "factor": limit / original,
        "original_max_position_embeddings": original,
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": held.attention_factor,  # transformers
        "short_mscale": held.attention_factor,  # vLLM
        "long_mscale": held.attention_factor,
    }
    if rope.method.partial_rotary_factor != 1.0:
        result["partial_rotary_factor"] = rope.method.partial_rotary_factor
    return result


def export_checkpoint(
    checkpoint: Path, request: RopeRequest, out: Path, *, ask_vllm: bool = False
) -> int:
    """Write a checkpoint with a portable rope config.

    Weights are hard-linked into the new folder `out`, or copied across file systems; of the other
    files only config.json is rewritten. Stock transformers builds the model by it first, without
    weights, and has to turn as requested; with `ask_vllm` the installed vLLM, too, which takes as
    long as its import.

    Returns:
        Longest sequence in tokens, to be given to vLLM as `--max-model-len`.

    Raises:
        RopeConfigError: the method follows the length of the sequence, so that no fixed list of
            factors has its frequencies; or the model's stock code would not turn by the config.
        OSError: the checkpoint has no config.json, or `out` is not empty.
    """
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"out: {out} is a file; give a new folder")
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"out: {out} is not empty; give a new folder")
    check_there(checkpoint)
    model = ModelPositions.of_checkpoint(str(checkpoint))
    rope = model.complete(request)
    check_fixed(rope)
    from resonance_vllm.export.comparison import compare, compare_vllm, requested_rotation

    overrides = hf_overrides(rope, model)
    held = requested_rotation(checkpoint, rope, overrides)
    content = json.dumps(_portable_config(checkpoint, rope, model, held), indent=2) + "\n"
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(content, encoding="utf-8")
        compare(checkpoint, overrides, Path(scratch), held)
        if ask_vllm:
            compare_vllm(Path(scratch), held)
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(checkpoint.iterdir()):
        if source.is_file() and source.name != "config.json":
            _place(source.resolve(), out / source.name)
    write_text(out / "config.json", content)
    return length_limit(model, rope)


def _portable_config(
    checkpoint: Path, rope: RopeSpec, model: ModelPositions, held: RotaryReport
) -> dict[str, Any]:
    """The content of config.json with the settings where its language model keeps them."""
    file = checkpoint / "config.json"
    config: dict[str, Any] = parse_json(file.read_text(encoding="utf-8-sig"), str(file))
    text = config
    for name in model.nested:
        text = text.get(name, text)  # an older file of the family is flat
    parameters = portable_rope(rope, model, held)
    for key in ("rope_scaling", "rope_theta", "rope_precision"):
        text.pop(key, None)
    text |= {
        "rope_parameters": parameters,
        "max_position_embeddings": length_limit(model, rope),
        # Both libraries look for this key at the top first; vLLM's default length is this one.
        "original_max_position_embeddings": parameters["original_max_position_embeddings"],
    }
    return config


def _place(source: Path, target: Path) -> None:
    if source.suffix in WEIGHTS:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system: a copy does as well
    shutil.copy2(source, target)
