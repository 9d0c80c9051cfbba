"""What a model really runs with, on transformers and on vLLM: both build it and are compared."""

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from resonance_vllm.config import (
    ModelPositions,
    fixed_for_vllm,
    length_limit,
    vllm_hf_overrides,
    vllm_limit,
)
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.spec import LENGTH, RopeSpec
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.vectors import rope_vectors
from resonance_vllm.verify import NoRope, RotaryReport

PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN = "resonance_rope"
# Checkpoints whose config.json misleads about the length that they scale from: model type and
# positions -> that length, and where the model card has it.
CARDS = {
    (kind, 40960): (32768, "the model cards on hf.co/Qwen: 32,768 for outputs, 8,192 for prompts")
    for kind in ("qwen3", "qwen3_moe")
}

LIBRARIES = ("transformers", "vllm")
ABSENT = ("not_installed", "not_asked")

Side = dict[str, Any]
logger = logging.getLogger(__name__)


def installed(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def plugin_problem() -> str | None:
    """Why vLLM will not load our plugin; None where it will."""
    names = {point.name for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    if PLUGIN not in names:
        return f"no entry point {PLUGIN} in {PLUGIN_GROUP}; install leval-harness"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"excluded by VLLM_PLUGINS={allowed!r}; add {PLUGIN} to it"
    return None


def importing_vllm(
    libraries: Sequence[str] = LIBRARIES,
) -> AbstractContextManager[subprocess.Popen[str] | None]:
    """A process for `report` that imports vLLM meanwhile; None where vLLM is not to be asked."""
    if "vllm" not in libraries or not installed("vllm"):
        return nullcontext()
    from resonance_vllm.vllm.build import importing

    return importing()


def report(
    path: str,
    model: ModelPositions,
    rope: RopeSpec | None,
    context_length: int | None = None,
    libraries: Sequence[str] = LIBRARIES,
    vllm_process: subprocess.Popen[str] | None = None,
) -> dict[str, Any]:
    """What each library's rotary modules hold, how long a sequence may be, and where they differ.

    With settings each library also runs a small model of the family on a few tokens.

    Args:
        path: checkpoint folder or hub name.
        model: its config.
        rope: complete settings; None looks at the checkpoint as it is.
        context_length: longest sequence in tokens that will be used.
        libraries: those that are asked; the two build side by side, vLLM in its own process.
        vllm_process: from `importing_vllm`; None starts one.

    Returns:
        `transformers` and `vllm`, each with `limit` in tokens (None where it is unknown) and
        `modules` (the fields of `RotaryReport`), or `refused` with the reason in place of these, or
        `not_installed` or `not_asked` alone; `disagreements`, a list of sentences.

    Raises:
        RopeConfigError: the settings cannot be written for this model.
    """
    looks = {
        "transformers": lambda: _by_transformers(path, rope, context_length),
        "vllm": lambda: _by_vllm(path, model, rope, context_length, vllm_process),
    }
    asked = [library for library in LIBRARIES if library in libraries]
    with ThreadPoolExecutor(1) as beside:
        later = beside.submit(_side, asked[-1], looks[asked[-1]]) if len(asked) > 1 else None
        sides = {asked[0]: _side(asked[0], looks[asked[0]])}
        if later is not None:
            sides[asked[-1]] = later.result()
    hf, vllm = (sides.get(library, {"not_asked": "by --library"}) for library in LIBRARIES)
    known = model.with_length(context_length or (rope.method.trained_length if rope else None))
    for side, limit in zip((hf, vllm), limits(known, rope, context_length), strict=True):
        side |= {} if _absent(side) else {"limit": limit}
    lines = [] if _absent(hf) or _absent(vllm) else _disagreements(hf, vllm)
    if rope is not None and not _absent(vllm):
        lines += about_vllm(rope, known, context_length)
    return {"transformers": hf, "vllm": vllm, "disagreements": lines}


def _absent(side: Side) -> bool:
    return any(reason in side for reason in ABSENT)


def limits(
    model: ModelPositions, rope: RopeSpec | None, context_length: int | None = None
) -> tuple[int | None, int | None]:
    """Longest sequence in tokens on transformers and on vLLM; None where it is unknown."""
    return (
        _limit(lambda: length_limit(model, rope, context_length)),
        _limit(lambda: vllm_limit(model.overridden(_for_vllm(model, rope, context_length)))),
    )


def _for_vllm(model: ModelPositions, rope: RopeSpec | None, length: int | None) -> dict[str, Any]:
    return {} if rope is None else vllm_hf_overrides(rope, model, length)


def length_remark(model: ModelPositions) -> str | None:
    """A remark on a trained length that the config does not state; None without one."""
    known = CARDS.get((str(model.model_type), model.max_position_embeddings or 0))
    if known is None or not model.plain:
        return None
    length, source = known
    return (
        f"max_position_embeddings {model.max_positions} is {length} and room beside it ({source}); "
        f"a method scales from the config's number unless {LENGTH}={length} is given"
    )


def _by_transformers(
    path: str, rope: RopeSpec | None, length: int | None
) -> Sequence[RotaryReport]:
    from resonance_vllm.hf import report_of_checkpoint

    return report_of_checkpoint(path, rope, length)


def _by_vllm(
    path: str,
    model: ModelPositions,
    rope: RopeSpec | None,
    length: int | None,
    process: subprocess.Popen[str] | None,
) -> Sequence[RotaryReport]:
    overrides = _for_vllm(model, rope, length)
    from resonance_vllm.vllm.build import report_of_checkpoint

    return report_of_checkpoint(
        path, overrides, max_model_len=length, run=bool(overrides), process=process
    )


def _side(library: str, look: Callable[[], Sequence[RotaryReport]]) -> Side:
    """What a library built; any error that it raises on a config is its reason to refuse."""
    if not installed(library):
        return {"not_installed": f"{library} is not installed"}
    try:
        return {"modules": [_plain(each) for each in look()]}
    except NoRope as error:
        return {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - model code raises anything
        text = " ".join(str(error).split())
        return {"refused": f"{type(error).__name__}: {text[:500]}"}


def _plain(held: RotaryReport) -> dict[str, Any]:
    """A report as JSON has it: lists in place of tuples."""
    return {**asdict(held), "inv_freq": list(held.inv_freq)}


def _limit(look: Callable[[], int]) -> int | None:
    try:
        return look()
    except RopeConfigError:
        return None


def _disagreements(hf: Side, vllm: Side) -> list[str]:
    """Where the two limits, and what the two hold for each layer type, differ."""
    lines: list[str] = []
    if hf["limit"] != vllm["limit"]:
        lines.append(f"limit: {hf['limit']} tokens on transformers, {vllm['limit']} on vLLM")
    refusing = [name for name, side in (("transformers", hf), ("vLLM", vllm)) if "refused" in side]
    if len(refusing) == 1:
        lines.append(f"refused: {refusing[0]} alone refuses it")
    if refusing:
        return lines
    ours, theirs = _by_layer_type(hf["modules"]), _by_layer_type(vllm["modules"])
    every = dict.fromkeys([*ours, *theirs])
    named: list[str | None] = [layer_type for layer_type in every if layer_type]
    # A library that names no layer types has one rotation for all.
    for layer_type in named or [None]:
        pair = [held.get(layer_type, held.get(None)) for held in (ours, theirs)]
        where = "" if layer_type is None else f" of {layer_type}"
        if pair[0] is None or pair[1] is None:
            alone = "vLLM" if pair[0] is None else "transformers"
            lines.append(f"layers: a rotation{where} is held on {alone} alone")
        else:
            lines += _differences(pair[0], pair[1], where)
    return list(dict.fromkeys(lines))


def _by_layer_type(modules: Sequence[dict[str, Any]]) -> dict[str | None, list[dict[str, Any]]]:
    """Layer type -> its rotations, modules that hold the same one once."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for module in modules:
        same = found.setdefault(module["layer_type"], [])
        if not any(_same(module, other) for other in same):
            same.append(module)
    return found


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return not _differences([one], [other], "")


def _differences(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], where: str
) -> list[str]:
    """How the rotations of one layer type differ, as sentences."""
    if len(ours) != 1 or len(theirs) != 1:
        apart = [one for one in ours if not any(_same(one, other) for other in theirs)]
        apart += [one for one in theirs if not any(_same(one, other) for other in ours)]
        return [f"modules{where}: {one['module']} has no counterpart" for one in apart]
    (one,), (other,) = ours, theirs
    sizes = len(one["inv_freq"]), len(other["inv_freq"])
    if sizes[0] != sizes[1]:
        return [f"features{where}: {sizes[0]} on transformers, {sizes[1]} on vLLM"]
    lines = []
    outcome = rope_vectors.compare(one, other)
    if outcome.features:
        since = rope_vectors.visible_from(one["inv_freq"], other["inv_freq"])
        lines.append(f"frequencies{where}: up to {outcome.far:.2%} apart, from position {since}")
    if outcome.attention_factor:
        held, expected = outcome.attention_factor
        lines.append(f"attention factor{where}: {expected:.6g} on transformers, {held:.6g} on vLLM")
    if one["exact_phase"] != other["exact_phase"]:
        exact = "transformers" if one["exact_phase"] else "vLLM"
        lines.append(f"exact phase{where}: on {exact} alone")
    return lines


def about_vllm(
    rope: RopeSpec, model: ModelPositions, context_length: int | None = None
) -> list[str]:
    """How vLLM's side differs by its settings, beside what its modules hold at start-up."""
    if isinstance(rope.method, MappedMethod):
        return []  # it refuses the method
    on_vllm = fixed_for_vllm(rope, model, context_length)
    seen = model.overridden(vllm_hf_overrides(rope, model, context_length))
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
    served = min(context_length or vllm_limit(seen), vllm_limit(seen))
    rows = on_vllm.method.stock_rows(seen.max_positions)
    if on_vllm.is_stock and rows < served:
        lines.append(
            f"cache: {rows} rows for {served} positions; vLLM reads beyond the table without a "
            "check"
        )
    problem = None if on_vllm.is_stock else plugin_problem()
    if problem:
        lines.append(f"plugin: {on_vllm.rope_type} will be refused by vLLM ({problem})")
    return lines
