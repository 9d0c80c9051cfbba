"""What a model really runs with, on transformers and on vLLM: both build it without weights."""

import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from resonance_vllm.config import (
    ModelPositions,
    fixed_for_vllm,
    hf_overrides,
    length_limit,
    vllm_hf_overrides,
)
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.verify import RotaryReport, differences

LIBRARIES = ("transformers", "vllm")
PLUGIN_GROUP, PLUGIN = "vllm.general_plugins", "resonance_rope"
REGISTER = "resonance_vllm.vllm:register"
_LOOK = 4096
"""Rows of a table from which frequencies are read."""


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
    limit = limit_of(model, rope, context_length)
    hf = {"limit": limit, "overrides": hf_overrides(rope, model, context_length) if rope else {}}
    vllm: dict[str, Any] = {"limit": None}
    lines: list[str] = []
    with contextlib.suppress(RopeConfigError):  # vLLM refuses it then
        served = vllm_hf_overrides(rope, model, context_length) if rope else {}
        serve = serve_command(path, served, context_length or limit)
        vllm = {"limit": limit, "overrides": served, "serve": serve}
        lines = about_vllm(rope, model, context_length) if rope else []
    sides: dict[str, Any] = {}
    held: dict[str, list[RotaryReport]] = {}
    for library, written, look in (
        ("transformers", hf, partial(_hf_report, path, rope, context_length)),
        ("vllm", vllm, partial(_vllm_report, path, model, rope, context_length)),
    ):
        if library not in libraries:
            sides[library] = {"not_asked": "by --library"}
        elif not installed(library):
            sides[library] = {"not_installed": f"{library} is not installed"}
        else:
            try:
                held[library] = look()
                sides[library] = {"modules": [_plain(each) for each in held[library]], **written}
            except Exception as error:  # noqa: BLE001 - model code raises anything
                sides[library] = {"refused": refusal(error), **written}
    if len(held) == len(LIBRARIES):
        lines = [*_different(**held), *lines]
    elif held and any("refused" in side for side in sides.values()):
        lines.append(f"refused: {next(iter(held))} alone runs it")
    return {**sides, "disagreements": lines}


def installed(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def limit_of(
    model: ModelPositions, rope: RopeSpec | None, context_length: int | None = None
) -> int | None:
    """Longest sequence in tokens, on transformers and on vLLM; None where it is unknown."""
    with contextlib.suppress(RopeConfigError):
        return length_limit(model, rope, context_length)
    return None


def _plain(held: RotaryReport) -> dict[str, Any]:
    """A report as JSON has it."""
    fields = asdict(held)
    return {"name": fields.pop("module"), **fields, "inv_freq": list(held.inv_freq)}


def refusal(error: Exception) -> str:
    """An error in one line, those of vLLM's config without pydantic's frame."""
    text = " ".join(str(error).rpartition("Value error, ")[2].partition(" [type=")[0].split())[:500]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _hf_report(path: str, rope: RopeSpec | None, length: int | None) -> list[RotaryReport]:
    from resonance_vllm.hf import report_of_checkpoint

    return report_of_checkpoint(path, rope, length)


def _vllm_report(
    path: str, model: ModelPositions, rope: RopeSpec | None, length: int | None
) -> list[RotaryReport]:
    if rope is None:
        return vllm_report(path, {}, length)
    limit = length or length_limit(model, rope)
    return vllm_report(path, vllm_hf_overrides(rope, model, length), limit)


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
        RopeConfigError: the model has no RoPE; vLLM's own error where it refuses the model.
    """
    import torch

    # standard output is for what commands answer; vLLM reads this when it is imported
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    from resonance_vllm.vllm import Apart, asked_by, register
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
        spec = next((each.spec for each in asked_by(config).values()), None)
        return _hf_report(path, spec, int(config.max_model_len))
    with set_current_vllm_config(engine):
        _one_process()
        where = Apart(torch.device("cpu"), _LOOK)
        try:
            built = built_apart(engine, where)
        except (NotImplementedError, RuntimeError):  # model code that reads its weights
            built = built_apart(engine, where, weights="cpu")
    held = rotary_report(built, config.hf_text_config)
    if not held:
        raise RopeConfigError(f"{type(built).__name__} has no rotary position embeddings in vLLM")
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
        return f"its entry point {PLUGIN} is {found.get(PLUGIN)}: install leval-harness again"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"excluded by VLLM_PLUGINS={allowed!r}; add {PLUGIN} to it"
    return None


def about_vllm(
    rope: RopeSpec, model: ModelPositions, context_length: int | None = None
) -> list[str]:
    """What vLLM does otherwise by settings, beside what its modules hold at start-up."""
    on_vllm, lines = fixed_for_vllm(rope, model, context_length), []
    if rope.rope_type != on_vllm.rope_type:
        lines.append(
            f"type: {rope.rope_type} on transformers, {on_vllm.rope_type} on vLLM, which fixes "
            "frequencies at start-up; they agree for sequences of the served length"
        )
    if not on_vllm.is_stock and (problem := plugin_problem()):
        lines.append(f"plugin: {on_vllm.rope_type} will be refused by vLLM ({problem})")
    return lines


def _different(transformers: list[RotaryReport], vllm: list[RotaryReport]) -> list[str]:
    """Where the rotations of the two libraries differ, as sentences.

    A library that names no layer types has one rotation for all.
    """
    lines: dict[str, None] = {}
    for one, other in itertools.product(transformers, vllm):
        kinds = {one.layer_type, other.layer_type} - {None}
        if len(kinds) > 1:
            continue
        where = "".join(["rotation", *(f" of {kind}" for kind in kinds)])
        if wrong := differences(other.turns, one.turns):
            lines[f"{where}: on vLLM {'; '.join(wrong)}"] = None
        if one.exact_phase != other.exact_phase:
            exact = "transformers" if one.exact_phase else "vLLM"
            lines[f"{where}: exact phase on {exact} alone"] = None
    return list(lines)
