"""What a model really runs with: each library builds its rotary modules, without weights."""

import contextlib
import importlib.util
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resonance_vllm.checkpoint.limits import length_limit, length_notes
from resonance_vllm.checkpoint.overrides import hf_overrides, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.verify import RotaryReport

LIBRARIES = ("transformers", "vllm")


@dataclass
class LibraryReport:
    """What one library builds for a checkpoint with RoPE settings.

    Attributes:
        modules: the rotary modules that it builds; None where it was not asked, is not installed or
            refused.
        limit: longest sequence in tokens; None where it is unknown.
        overrides: keys of config.json with which it runs the settings; None where they cannot be
            written for it.
        serve: the command of a server, for a shell; vLLM alone.
        refused: why it does not build the model with the settings.
        not_installed: a sentence, where the library is not installed.
        not_asked: a sentence, where the caller did not ask for the library.
    """

    modules: list[RotaryReport] | None = None
    limit: int | None = None
    overrides: dict[str, Any] | None = None
    serve: str | None = None
    refused: str | None = None
    not_installed: str | None = None
    not_asked: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that have a value as JSON holds them; `limit` may be null."""
        result: dict[str, Any] = {}
        if self.overrides is not None:
            result |= {"limit": self.limit, "overrides": self.overrides}
        for key in ("serve", "refused", "not_installed", "not_asked"):
            value = getattr(self, key)
            if value is not None:
                result[key] = value
        if self.modules is not None:
            result["modules"] = [
                {**asdict(module), "inv_freq": list(module.inv_freq)} for module in self.modules
            ]
        return result


@dataclass(frozen=True)
class CheckReport:
    """What both libraries build for a checkpoint.

    Attributes:
        transformers: what transformers builds.
        vllm: what vLLM builds.
        notes: sentences about the lengths that a user should know, see `length_notes`.
    """

    transformers: LibraryReport
    vllm: LibraryReport
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return both libraries as JSON holds them, and `notes` where there are some."""
        result: dict[str, Any] = {
            "transformers": self.transformers.to_dict(),
            "vllm": self.vllm.to_dict(),
        }
        if self.notes:
            result["notes"] = self.notes
        return result


def report(
    path: str,
    model: PositionConfig,
    rope: RopeSpec | None,
    context_length: int | None = None,
    libraries: Sequence[str] = LIBRARIES,
) -> CheckReport:
    """Build a checkpoint's rotary modules on each library and return what they hold.

    Args:
        path: checkpoint folder or hub name.
        model: what its config says.
        rope: complete settings; None is the unmodified checkpoint.
        context_length: longest sequence in tokens that will be used; None is the limit.
        libraries: those to ask, of `LIBRARIES`.
    """
    limit = limit_or_none(model, rope, context_length)

    def in_transformers(side: LibraryReport) -> list[RotaryReport]:
        from resonance_vllm.hf.inspection import report_of_checkpoint

        side.overrides = hf_overrides(rope, model, context_length) if rope else {}
        side.limit = limit
        return report_of_checkpoint(path, rope, context_length)

    def in_vllm(side: LibraryReport) -> list[RotaryReport]:
        from resonance_vllm.vllm.inspection import report_of_checkpoint

        overrides = vllm_hf_overrides(rope, model, context_length) if rope else {}
        side.overrides = overrides
        side.limit = limit
        side.serve = serve_command(path, overrides, context_length or limit)
        # The unmodified checkpoint is served at vLLM's own length unless another one is requested.
        default_length = limit if rope else None
        return report_of_checkpoint(path, overrides, context_length or default_length)

    return CheckReport(
        transformers=_library_report("transformers", libraries, in_transformers),
        vllm=_library_report("vllm", libraries, in_vllm),
        notes=length_notes(model, rope, context_length),
    )


def _library_report(
    library: str,
    libraries: Sequence[str],
    build: Callable[[LibraryReport], list[RotaryReport]],
) -> LibraryReport:
    """Return what a library builds, or why it does not."""
    if library not in libraries:
        return LibraryReport(not_asked="by --library")
    if not is_installed(library):
        return LibraryReport(not_installed=f"{library} is not installed")
    side = LibraryReport()
    try:
        side.modules = build(side)
    except Exception as error:  # noqa: BLE001 - model code raises anything
        side.refused = refusal_message(error)
    return side


def is_installed(library: str) -> bool:
    """Return whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def limit_or_none(
    model: PositionConfig, rope: RopeSpec | None, context_length: int | None = None
) -> int | None:
    """Return the longest sequence in tokens (`length_limit`), or None where it is unknown."""
    with contextlib.suppress(RopeConfigError):
        return length_limit(model, rope, context_length)
    return None


def refusal_message(error: Exception) -> str:
    """Return an error in one line, those of vLLM's config without pydantic's frame."""
    text = str(error).rpartition("Value error, ")[2].partition(" [type=")[0]
    text = " ".join(text.split())[:500]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def serve_command(path: str, overrides: Mapping[str, Any], length: int | None) -> str:
    """Return the shell command of a vLLM server with overrides of config.json.

    Args:
        path: checkpoint folder or hub name.
        overrides: value of `--hf-overrides`; none are written if it is empty.
        length: `--max-model-len` in tokens; None leaves it to vLLM.
    """
    words = ["vllm", "serve", path]
    if overrides:
        words += ["--hf-overrides", json.dumps(overrides)]
    if length:
        words += ["--max-model-len", str(length)]
    return shlex.join(words)
