"""What a model really runs with, on transformers and on vLLM: both build it without weights."""

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from resonance_vllm.config import (
    ModelPositions,
    fixed_for_vllm,
    hf_overrides,
    length_limit,
    vllm_hf_overrides,
    vllm_limit,
)
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.spec import LENGTH, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.verify import NoRope, RotaryReport, Turns, differences

LIBRARIES = ("transformers", "vllm")
PLUGIN_GROUP, PLUGIN = "vllm.general_plugins", "resonance_rope"
REGISTER = "resonance_vllm.vllm:register"
_LOOK = 4096
"""Rows of a table from which frequencies are read."""

Side = dict[str, Any]


def report(
    path: str,
    model: ModelPositions,
    rope: RopeSpec | None,
    context_length: int | None = None,
    libraries: Sequence[str] = LIBRARIES,
) -> dict[str, Any]:
    """What each library's rotary modules hold, how long a sequence may be, and where they differ.

    Args:
        path: checkpoint folder or hub name.
        model: its config.
        rope: complete settings; None looks at the checkpoint as it is.
        context_length: longest sequence in tokens that will be used.
        libraries: those that are asked.

    Returns:
        `transformers` and `vllm`, each with `limit` in tokens (None where it is unknown),
        `overrides` of config.json and `modules` (name, layer_type, inv_freq in radians a token,
        attention_factor, exact_phase), or `refused` with the reason in place of modules, or
        `not_installed` or `not_asked` alone; vLLM's has `serve`, the command of a server, too.
        `disagreements` are sentences.

    Raises:
        RopeConfigError: the settings cannot be written for this model.
    """
    on_vllm = rope is None or not isinstance(rope.method, MappedMethod)
    served = vllm_hf_overrides(rope, model, context_length) if rope and on_vllm else {}
    of_hf, of_vllm = limits(model, rope, context_length)
    hf = _side("transformers", libraries, lambda: _hf_report(path, rope, context_length))
    vllm = _side("vllm", libraries, lambda: _vllm_report(path, rope, served, context_length))
    lines = _disagreements(hf, vllm)
    if not _absent(hf):
        written = hf_overrides(rope, model, context_length) if rope else {}
        hf |= {"limit": of_hf, "overrides": written}
    if not _absent(vllm):
        vllm |= {"limit": of_vllm}
        if on_vllm:
            command = serve_command(path, served, context_length or of_vllm)
            vllm |= {"overrides": served, "serve": command}
        lines += about_vllm(rope, model, context_length) if rope and on_vllm else []
    if not _absent(hf) and not _absent(vllm) and of_hf != of_vllm:
        lines.insert(0, f"limit: {of_hf} tokens on transformers, {of_vllm} on vLLM")
    return {"transformers": hf, "vllm": vllm, "disagreements": lines}


def installed(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def _absent(side: Side) -> bool:
    return "not_installed" in side or "not_asked" in side


def limits(
    model: ModelPositions, rope: RopeSpec | None, context_length: int | None = None
) -> tuple[int | None, int | None]:
    """Longest sequence in tokens on transformers and on vLLM; None where it is unknown."""
    model = model.with_length(context_length or (rope.method.trained_length if rope else None))
    on_hf = _known(lambda: length_limit(model, rope, context_length))
    if rope is None:
        return on_hf, _known(lambda: vllm_limit(model))
    return on_hf, None if isinstance(rope.method, MappedMethod) else on_hf


def _side(library: str, asked: Sequence[str], look: Callable[[], list[RotaryReport]]) -> Side:
    """What a library built; any error that it raises on a config is its reason to refuse."""
    if library not in asked:
        return {"not_asked": "by --library"}
    if not installed(library):
        return {"not_installed": f"{library} is not installed"}
    try:
        return {"modules": [_plain(each) for each in look()]}
    except Exception as error:  # noqa: BLE001 - model code raises anything
        return {"refused": _reason(error)}


def _plain(held: RotaryReport) -> dict[str, Any]:
    """A report as JSON has it."""
    fields = asdict(held)
    return {"name": fields.pop("module"), **fields, "inv_freq": list(held.inv_freq)}


def _reason(error: Exception) -> str:
    """An error in one line, those of vLLM's config without pydantic's frame."""
    text = " ".join(str(error).rpartition("Value error, ")[2].partition(" [type=")[0].split())[:500]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _known(look: Callable[[], int]) -> int | None:
    try:
        return look()
    except RopeConfigError:
        return None


def _hf_report(path: str, rope: RopeSpec | None, length: int | None) -> list[RotaryReport]:
    from resonance_vllm.hf import report_of_checkpoint

    return report_of_checkpoint(path, rope, length)


def _vllm_report(
    path: str, rope: RopeSpec | None, overrides: dict[str, Any], length: int | None
) -> list[RotaryReport]:
    if rope is not None:
        rope.method.for_vllm({"rope_type": rope.rope_type})  # says why, where vLLM cannot
    return vllm_report(path, overrides, length)


def vllm_report(
    path: str, overrides: Mapping[str, Any] | None = None, max_model_len: int | None = None
) -> list[RotaryReport]:
    """The rotations that vLLM builds for a checkpoint, one entry a module and layer type.

    vLLM sets up a process group of this process alone, for its life.

    Args:
        path: checkpoint folder (weights and tokenizer are not read) or hub name.
        overrides: as vLLM takes its `hf_overrides`.
        max_model_len: longest sequence in tokens; None is what vLLM derives.

    Raises:
        NoRope: the model has no RoPE; vLLM's own error where it refuses the model.
    """
    import torch

    # standard output is for what commands answer; vLLM reads this when it is imported
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    from resonance_vllm.vllm import Apart, asked_by, register, transformers_report
    from resonance_vllm.vllm_exchange import built_apart
    from resonance_vllm.vllm_held import rotary_report

    register()
    # weights that this device cannot read are not read here
    overrides = {**(overrides or {}), "quantization_config": None}
    engine = EngineArgs(
        model=path,
        hf_overrides=overrides,
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        language_model_only=True,
    ).create_engine_config()
    config = engine.model_config
    if config.using_transformers_backend():  # for whose models vLLM changes transformers' classes
        return transformers_report(config, asked_by(config))
    with set_current_vllm_config(engine):
        _one_process()
        where = Apart(torch.device("cpu"), _LOOK)
        try:
            built = built_apart(engine, where)
        except (NotImplementedError, RuntimeError):  # model code that reads its weights
            built = built_apart(engine, where, weights="cpu")
    held = rotary_report(built, config.hf_text_config)
    if not held:
        raise NoRope(f"{type(built).__name__} has no rotary position embeddings in vLLM")
    return held


def _one_process() -> None:
    """Process groups as vLLM wants them, with this process in all."""
    import torch
    from vllm.distributed import (
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    if torch.distributed.is_initialized():
        destroy_model_parallel()  # which groups there are depends on the model
    else:
        with tempfile.NamedTemporaryFile() as file:
            name = file.name
        init_distributed_environment(1, 0, f"file://{name}", 0, "gloo")
    initialize_model_parallel()


def serve_command(path: str, overrides: Mapping[str, Any], length: int | None) -> str:
    """The command of a server of vLLM with overrides, for a shell."""
    words = ["vllm", "serve", path]
    words += ["--hf-overrides", json.dumps(overrides)] if overrides else []
    return shlex.join([*words, *(["--max-model-len", str(length)] if length else [])])


def plugin_problem() -> str | None:
    """Why vLLM will not load our plugin; None where it will."""
    found = {each.name: each.value for each in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    if found.get(PLUGIN) != REGISTER:
        is_there = f"is {found[PLUGIN]}, of another version" if PLUGIN in found else "is missing"
        return f"its entry point {PLUGIN} {is_there}: install leval-harness again with pip"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"excluded by VLLM_PLUGINS={allowed!r}; add {PLUGIN} to it"
    return None


def length_remark(model: ModelPositions) -> str | None:
    """A remark on a trained length that the config does not state; None without one."""
    qwen3 = model.model_type in ("qwen3", "qwen3_moe") and model.max_position_embeddings == 40960
    if not qwen3 or not model.plain:
        return None
    return (
        "max_position_embeddings 40960 is 32768 and room beside it (the model cards on hf.co/Qwen: "
        f"32,768 for outputs, 8,192 for prompts); a method scales from 40960 unless {LENGTH}=32768 "
        "is given"
    )


def remedy(model: ModelPositions, rope: RopeSpec | None, length: int) -> str:
    """The setting that allows a context length in tokens above the limit."""
    spec = rope
    if rope is None and model.scaled:
        with contextlib.suppress(RopeConfigError):  # a type of the model's own
            spec = model.shipped()
    method = spec.rope_type if spec and spec.method.extension is not None else "yarn"
    original = (spec.method.trained_length if spec else None) or model.original_length
    return f"--rope {method}:factor={-(-length // original)}, or a shorter length"


def _disagreements(hf: Side, vllm: Side) -> list[str]:
    """Where the rotations of the two libraries differ, as sentences."""
    refusing = [name for name, side in (("transformers", hf), ("vLLM", vllm)) if "refused" in side]
    if len(refusing) == 1 and not _absent(hf) and not _absent(vllm):
        return [f"refused: {refusing[0]} alone refuses it"]
    both = "modules" in hf and "modules" in vllm
    return _different(hf["modules"], vllm["modules"]) if both else []


def about_vllm(
    rope: RopeSpec, model: ModelPositions, context_length: int | None = None
) -> list[str]:
    """What vLLM does otherwise by settings, beside what its modules hold at start-up."""
    on_vllm = fixed_for_vllm(rope, model, context_length)
    lines = []
    if rope.rope_type != on_vllm.rope_type:
        lines.append(
            f"type: {rope.rope_type} on transformers, {on_vllm.rope_type} on vLLM, which fixes "
            "frequencies at start-up; they agree for sequences of the served length"
        )
    if rope.method.switch_length is not None:
        lines.append(
            f"lists: transformers changes factors at {rope.method.switch_length} tokens of each "
            "sequence, vLLM takes those of the served length for all"
        )
    problem = None if on_vllm.is_stock else plugin_problem()
    if problem:
        lines.append(f"plugin: {on_vllm.rope_type} will be refused by vLLM ({problem})")
    return lines


def _different(ours: list[Side], theirs: list[Side]) -> list[str]:
    """How the rotations of a layer type differ, as sentences."""
    kinds = [kind for kind in dict.fromkeys(one["layer_type"] for one in [*ours, *theirs]) if kind]
    lines: list[str] = []
    for kind in kinds or [None]:
        where = f" of {kind}" if kind else ""
        # A library that names no layer types has one rotation for all.
        on_hf, on_vllm = (
            [one for one in side if one["layer_type"] in (kind, None)] for side in (ours, theirs)
        )
        if not on_hf or not on_vllm:
            alone = "transformers" if on_hf else "vLLM"
            lines.append(f"layers: a rotation{where} is held on {alone} alone")
            continue
        for one, other in itertools.product(on_hf, on_vllm):
            if wrong := differences(_turns(other), _turns(one)):
                lines.append(f"rotation{where}: on vLLM {'; '.join(wrong)}")
            if one["exact_phase"] != other["exact_phase"]:
                exact = "transformers" if one["exact_phase"] else "vLLM"
                lines.append(f"exact phase{where}: on {exact} alone")
    return list(dict.fromkeys(lines))


def _turns(module: Side) -> Turns:
    import torch

    frequencies = torch.tensor(module["inv_freq"], dtype=torch.float64)
    return Turns(frequencies, module["attention_factor"])
