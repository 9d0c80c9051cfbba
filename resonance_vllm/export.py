"""Portable checkpoints: a fixed method written as per-dimension `longrope`.

Stock transformers and stock vLLM run that type without this package: each divides the plain
frequencies by one factor per feature. The angle is then their float32 product of position and
frequency, so the exact phase of Resonance is lost.
"""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.overrides import with_rope
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.checkpoint.rope_dict import model_specific_keys
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.common.files import parse_json, write_text
from resonance_vllm.core.method import plain_frequencies
from resonance_vllm.core.remapping import RemappedMethod
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, RopeRequest, RopeSpec
from resonance_vllm.verify import RotaryReport, compare_states, differing_constants

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
"""Files that are hard-linked, because they are large and never change."""


def export_checkpoint(checkpoint: Path, request: RopeRequest, out: Path) -> int:
    """Write a checkpoint with a portable RoPE config into a new folder.

    Weights are hard-linked, or copied across file systems; of the other files only config.json is
    rewritten. Stock transformers then builds the model from it, without weights, and every rotary
    module is compared with the request. `check` shows what vLLM builds.

    Args:
        checkpoint: folder of the checkpoint.
        request: RoPE settings, completed from its config.
        out: the new folder.

    Returns:
        Longest sequence in tokens, for vLLM's `--max-model-len`.

    Raises:
        RopeConfigError: `out` exists, no fixed list of factors has the method's frequencies, or the
            model's stock code would not rotate by them.
    """
    if out.exists():
        raise RopeConfigError(f"out: {out} already exists")
    model = PositionConfig.from_checkpoint(str(checkpoint))
    rope = model.complete(request)
    requested = _requested_rotation(checkpoint, rope)
    out.mkdir(parents=True)
    try:
        content = json.dumps(_portable_config(checkpoint, rope, model, requested), indent=2) + "\n"
        write_text(out / "config.json", content)
        _verify_export(checkpoint, rope, str(out), requested)
        _copy_files(checkpoint, out)
    except BaseException:
        shutil.rmtree(out)
        raise
    return length_limit(model, rope)


def _copy_files(checkpoint: Path, out: Path) -> None:
    """Link or copy the files of a checkpoint that are not in the new folder yet."""
    for source in checkpoint.iterdir():
        target = out / source.name
        if source.suffix in WEIGHT_SUFFIXES:
            with contextlib.suppress(OSError):  # links do not cross file systems
                target.hardlink_to(source.resolve())
        if source.is_file() and not target.exists():
            shutil.copy2(source, target)


def _requested_rotation(checkpoint: Path, rope: RopeSpec) -> RotaryReport:
    """Return the one rotation of a checkpoint with a method.

    Raises:
        RopeConfigError: no fixed list of factors can express it.
    """
    from resonance_vllm.hf.inspection import report_of_checkpoint

    if isinstance(rope.method, RemappedMethod):
        raise rope.method.unsupported_error("a portable checkpoint holds frequencies alone")
    if rope.method.depends_on_length or rope.method.switch_length is not None:
        raise RopeConfigError(
            f"rope_type: frequencies of {rope.rope_type!r} change with the length of the sequence; "
            "allowed: ntk_aware with the factor of one length"
        )
    reports = report_of_checkpoint(str(checkpoint), rope)
    first = reports[0]
    for report in reports:
        if report.layer_type is not None or report.inv_freq != first.inv_freq:
            raise RopeConfigError(
                f"{report.name}: is one of several rotations, by layer type or module; transformers "
                "runs longrope only where all layers share one. Use the method with this package"
            )
    if not all(first.inv_freq):
        raise RopeConfigError(
            f"{first.name}: some features have zero frequency, which longrope cannot express"
        )
    return first


def _portable_config(
    checkpoint: Path, rope: RopeSpec, model: PositionConfig, requested: RotaryReport
) -> dict[str, Any]:
    """Return the content of config.json with `longrope` in its language model's settings.

    `short_factor` and `long_factor` are both `b^(-2j/d) / inv_freq_j`. Keys that belong to the
    model stay.
    """
    file = checkpoint / "config.json"
    config: dict[str, Any] = parse_json(file.read_text(encoding="utf-8-sig"), str(file))
    text = config
    for name in model.nested:
        text = text.get(name, text)  # older files of some families are flat
    for key in ("rope_scaling", "rope_theta", "rope_precision"):
        text.pop(key, None)
    method = rope.method
    limit = length_limit(model, rope)
    original_length = method.original_length or limit
    plain = plain_frequencies(method.rope_theta, 2 * len(requested.inv_freq)).tolist()
    factors = [
        plain_frequency / frequency
        for plain_frequency, frequency in zip(plain, requested.inv_freq, strict=True)
    ]
    parameters = {
        **model_specific_keys(model.rope),
        "rope_type": "longrope",
        "rope_theta": method.rope_theta,
        "factor": limit / original_length,
        ORIGINAL_LENGTH_KEY: original_length,
        "short_factor": factors,
        "long_factor": factors,
        # transformers reads the first of these attention factors, vLLM the other two.
        "attention_factor": requested.attention_factor,
        "short_mscale": requested.attention_factor,
        "long_mscale": requested.attention_factor,
    }
    if method.partial_rotary_factor != 1:
        parameters["partial_rotary_factor"] = method.partial_rotary_factor
    text["rope_parameters"] = parameters
    # Both libraries prefer the original context length beside the dictionary; vLLM serves it unless
    # it is given another length.
    text[ORIGINAL_LENGTH_KEY] = original_length
    text["max_position_embeddings"] = limit
    return config


def _verify_export(
    checkpoint: Path, rope: RopeSpec, exported: str, requested: RotaryReport
) -> None:
    """Refuse an export from which stock code would build another model than requested."""
    from resonance_vllm.hf.building import build_on_meta
    from resonance_vllm.hf.inspection import report_of_checkpoint

    try:
        held = report_of_checkpoint(exported)
        wanted_model = build_on_meta(with_rope(read_config(str(checkpoint)), rope))
        exported_model = build_on_meta(read_config(exported))
        constants = differing_constants(wanted_model, exported_model)
    except Exception as error:
        raise RopeConfigError(f"rope_type: an exported config builds no model: {error}") from error
    clauses = [constant.description for constant in constants]
    for report in held:
        differences = compare_states(report.state, requested.state)
        clauses += [f"{report.name}: {clause}" for clause in differences]
    if clauses:
        raise RopeConfigError(f"rope_type: not what an exported config runs: {clauses[0]}")
