"""What a model really runs with, on transformers and on vLLM: both build it without weights."""

import contextlib
import importlib.util
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.overrides import hf_overrides, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.verify import RotaryReport

LIBRARIES = ("transformers", "vllm")


def report(
    path: str,
    model: PositionConfig,
    rope: RopeSpec | None,
    context_length: int | None = None,
    libraries: Sequence[str] = LIBRARIES,
) -> dict[str, Any]:
    """What each library's rotary modules hold, and how long a sequence may be.

    Args:
        path: checkpoint folder or hub name.
        model: its config.
        rope: complete settings; None looks at the checkpoint as it is.
        context_length: longest sequence in tokens that will be used.
        libraries: those that are asked.

    Returns:
        `transformers` and `vllm`, each with `limit` in tokens (None where it is unknown),
        `overrides` of config.json and `modules`, the fields of `RotaryReport`; or `refused` with
        the reason in place of modules; or `not_installed` or `not_asked` alone. vLLM's has `serve`,
        the command of a server, too.
    """
    limit = limit_or_none(model, rope, context_length)

    def in_transformers(side: dict[str, Any]) -> list[RotaryReport]:
        from resonance_vllm.hf.inspection import report_of_checkpoint

        overrides = hf_overrides(rope, model, context_length) if rope else {}
        side |= {"limit": limit, "overrides": overrides}
        return report_of_checkpoint(path, rope, context_length)

    def in_vllm(side: dict[str, Any]) -> list[RotaryReport]:
        from resonance_vllm.vllm.inspection import report_of_checkpoint

        overrides = vllm_hf_overrides(rope, model, context_length) if rope else {}
        serve = serve_command(path, overrides, context_length or limit)
        side |= {"limit": limit, "overrides": overrides, "serve": serve}
        return report_of_checkpoint(path, overrides, context_length or (limit if rope else None))

    sides: dict[str, dict[str, Any]] = {}
    for library, look in zip(LIBRARIES, (in_transformers, in_vllm), strict=True):
        side = sides[library] = {}
        if library not in libraries:
            side["not_asked"] = "by --library"
        elif not is_installed(library):
            side["not_installed"] = f"{library} is not installed"
        else:
            try:
                held = [{**asdict(each), "inv_freq": list(each.inv_freq)} for each in look(side)]
                side["modules"] = held
            except Exception as error:  # noqa: BLE001 - model code raises anything
                side["refused"] = refusal_message(error)
    return sides


def is_installed(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def limit_or_none(
    model: PositionConfig, rope: RopeSpec | None, context_length: int | None = None
) -> int | None:
    """Longest sequence in tokens, on transformers and on vLLM; None where it is unknown."""
    with contextlib.suppress(RopeConfigError):
        return length_limit(model, rope, context_length)
    return None


def refusal_message(error: Exception) -> str:
    """An error in one line, those of vLLM's config without pydantic's frame."""
    text = " ".join(str(error).rpartition("Value error, ")[2].partition(" [type=")[0].split())[:500]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def serve_command(path: str, overrides: Mapping[str, Any], length: int | None) -> str:
    """The command of a server of vLLM with overrides, for a shell."""
    words = ["vllm", "serve", path]
    words += ["--hf-overrides", json.dumps(overrides)] if overrides else []
    return shlex.join([*words, *(["--max-model-len", str(length)] if length else [])])
