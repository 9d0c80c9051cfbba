"""Portable checkpoints: a fixed method written as per-dimension `longrope`.

Stock transformers and stock vLLM run that type without us: each divides the plain frequencies by
one factor a feature. The angle is then their float32 product, so the exact phase is lost.
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
from resonance_vllm.core.spec import NATIVE_LENGTH_KEY, RopeRequest, RopeSpec
from resonance_vllm.verify import RotaryReport, compare_states, differing_constants


def export_checkpoint(checkpoint: Path, request: RopeRequest, out: Path) -> int:
    """Write a checkpoint with a portable rope config into a new folder.

    Weights are hard-linked, or copied across file systems; of the other files only config.json is
    rewritten. Stock transformers builds the model by it, without weights, and is compared. What
    vLLM builds, `check` tells.

    Returns:
        Longest sequence in tokens, to be given to vLLM as `--max-model-len`.

    Raises:
        RopeConfigError: no fixed list of factors has the method's frequencies, or the model's stock
            code would not turn by the config.
    """
    if out.exists():
        raise RopeConfigError(f"out: {out} is there already; give a new folder")
    model = PositionConfig.from_checkpoint(str(checkpoint))
    rope = model.complete(request)
    asked = _asked_rotation(checkpoint, rope)
    out.mkdir(parents=True)
    try:
        content = json.dumps(_config(checkpoint, rope, model, asked), indent=2) + "\n"
        write_text(out / "config.json", content)
        _compare(checkpoint, rope, str(out), asked)
        for source in checkpoint.iterdir():
            target = out / source.name
            if source.suffix in (".safetensors", ".bin", ".pt"):
                with contextlib.suppress(OSError):  # across file systems
                    target.hardlink_to(source.resolve())
            if source.is_file() and not target.exists():
                shutil.copy2(source, target)
    except BaseException:
        shutil.rmtree(out)
        raise
    return length_limit(model, rope)


def _asked_rotation(checkpoint: Path, rope: RopeSpec) -> RotaryReport:
    """The one rotation of a checkpoint with a method; refused where no fixed list can hold it."""
    from resonance_vllm.hf.inspection import report_of_checkpoint

    if isinstance(rope.method, RemappedMethod):
        raise rope.method.unsupported_error("a portable checkpoint holds frequencies alone")
    if rope.method.depends_on_length or rope.method.switch_length is not None:
        raise RopeConfigError(
            f"rope_type: frequencies of {rope.rope_type!r} change with the length of the sequence; "
            "allowed: ntk_aware with the factor of one length"
        )
    one, *others = report_of_checkpoint(str(checkpoint), rope)
    if any(each.layer_type is not None or each.inv_freq != one.inv_freq for each in (one, *others)):
        raise RopeConfigError(f"{one.name}: is one of several rotations; a portable config has 1")
    if not all(one.inv_freq):
        raise RopeConfigError(f"{one.name}: some features stand still, which no divisor says")
    return one


def _config(
    checkpoint: Path, rope: RopeSpec, model: PositionConfig, asked: RotaryReport
) -> dict[str, Any]:
    """The content of config.json with `longrope` where its language model keeps its settings.

    `short_factor` = `long_factor` = `b^(-2j/d) / inv_freq_j`. Keys that are the model's own stay.
    """
    file = checkpoint / "config.json"
    config: dict[str, Any] = parse_json(file.read_text(encoding="utf-8-sig"), str(file))
    text = config
    for name in model.nested:
        text = text.get(name, text)  # an older file of the family is flat
    for key in ("rope_scaling", "rope_theta", "rope_precision"):
        text.pop(key, None)
    limit, method = length_limit(model, rope), rope.method
    original = method.native_length or limit
    plain = plain_frequencies(method.rope_theta, 2 * len(asked.inv_freq)).tolist()
    factors = [a / b for a, b in zip(plain, asked.inv_freq, strict=True)]
    # transformers has one attention factor, vLLM two
    scales = ("attention_factor", "short_mscale", "long_mscale")
    share = method.partial_rotary_factor
    text["rope_parameters"] = {
        **model_specific_keys(model.rope),
        "rope_type": "longrope",
        "rope_theta": method.rope_theta,
        "factor": limit / original,
        NATIVE_LENGTH_KEY: original,
        "short_factor": factors,
        "long_factor": factors,
        **dict.fromkeys(scales, asked.attention_factor),
        **({"partial_rotary_factor": share} if share != 1 else {}),
    }
    # Both libraries look for the native context length at the top first; it is vLLM's default length.
    text |= {NATIVE_LENGTH_KEY: original, "max_position_embeddings": limit}
    return config


def _compare(checkpoint: Path, rope: RopeSpec, exported: str, asked: RotaryReport) -> None:
    """Refuse unless stock code turns as asked by the config in a folder, and differs in no more."""
    from resonance_vllm.hf.building import build_on_meta
    from resonance_vllm.hf.inspection import report_of_checkpoint

    try:
        held = report_of_checkpoint(exported)
        models = with_rope(read_config(str(checkpoint)), rope.to_dict()), read_config(exported)
        wrong = [words for *_, words in differing_constants(*map(build_on_meta, models))]
    except Exception as error:
        raise RopeConfigError(f"rope_type: an exported config builds no model: {error}") from error
    for each in held:
        wrong += [f"{each.name}: {clause}" for clause in compare_states(each.state, asked.state)]
    if wrong:
        raise RopeConfigError(f"rope_type: not what an exported config runs: {wrong[0]}")
