"""Reading files that may come from anybody: bounded, typed, never out of the results folder."""

import hashlib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from leval_harness.layout import SCHEMA_VERSION
from resonance_vllm import files as json_texts
from resonance_vllm.errors import UserError, shown
from resonance_vllm.settings import LENIENT, read

LONGEST_NAME = 300
LARGEST_NUMBER = 1e15
LARGEST_JSON = 64 * 2**20
DEEPEST_JSON = 60


class ResultsError(UserError):
    """A results folder or one of its files that cannot be read; the message names the file."""


class NewerSchemaError(ResultsError):
    """A file written by a version of leval-harness that is newer than this one."""


class Outside(BaseModel):
    """Base of what other programs write: unknown keys are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, populate_by_name=True)


EMPTY_IF_NULL = BeforeValidator(lambda value: {} if value is None else value)
Object = Annotated[dict[str, Any], EMPTY_IF_NULL]
Text = Annotated[str | None, LENIENT]
Flag = Annotated[bool | None, LENIENT]

Model = TypeVar("Model", bound=BaseModel)


def read_model(model: type[Model], path: Path) -> Model:
    """A JSON file as a typed model.

    Raises:
        NewerSchemaError: a file of ours with a layout newer than this reader's.
        ResultsError: not readable, not JSON, nested too deep, or not what the model requires.
    """
    return typed(model, read_json(path), path)


def typed(model: type[Model], content: dict[str, Any], path: Path) -> Model:
    """The same for the parsed content of a file."""
    version = content.get("schema_version") if "schema_version" in model.model_fields else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path}: schema_version {shown(version)} is newer than {SCHEMA_VERSION}, the newest "
            "this version of leval-harness reads; upgrade leval-harness"
        )
    try:
        return read(model, content, error=ResultsError)
    except ResultsError as error:
        lines = str(error).splitlines()
        raise ResultsError("\n".join(f"{path}: {line}" for line in lines)) from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ResultsError: not readable, too large, not JSON, nested too deep, or not an object.
    """
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """The same for the content of a file; `path` is for the message."""
    parsed = json_texts.parse_json(content, f"{path}", ResultsError)
    if not isinstance(parsed, dict):
        raise ResultsError(f"{path}: expected an object, found {type(parsed).__name__}")
    level: list[Any] = [parsed]
    for _ in range(DEEPEST_JSON):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [x for each in inner for x in each if isinstance(x, dict | list)]
    if level:
        raise ResultsError(f"{path}: nested more than {DEEPEST_JSON} deep; no results are")
    return parsed


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe would block, a device may never end.

    Raises:
        ResultsError: it is something else, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ResultsError(f"{path}: is no regular file; results are not read from it")
    try:
        return path.open("rb")
    except OSError as error:
        raise ResultsError(f"{path}: not readable ({error})") from error


def read_bytes(path: Path) -> bytes:
    """The content of a regular file of at most `LARGEST_JSON` bytes; errors as in `read_json`."""
    with open_regular(path) as handle:
        try:
            content = handle.read(LARGEST_JSON + 1)
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error
    if len(content) > LARGEST_JSON:
        raise ResultsError(f"{path}: larger than {LARGEST_JSON >> 20} MiB")
    return content


def refused(folder: Path, name: str, root: Path | None = None) -> str:
    """Why a name is not read as a regular file of a folder; empty where it is one.

    A link may not leave `root`, which is the folder itself by default.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        return "is no name of a file in there"
    try:
        real, limit = (folder / name).resolve(), (root or folder).resolve()
        if not real.is_relative_to(limit):
            return "is a link that leaves the folder of the results"
        return "" if real.is_file() else "is no regular file"
    except (OSError, ValueError, RuntimeError):  # a text that can be no path, links in a ring
        return "is no regular file"


def finite(value: object) -> float | None:
    """`value` as a float if it is a finite number of sensible size, else None.

    Booleans are not numbers here, and an integer of a thousand digits is not a score.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        return None
    return float(value)


Number = Annotated[float | None, BeforeValidator(finite)]
"""None where it is no number at all, too large, or not finite."""


def machine_of(host: Mapping[str, Any]) -> str:
    """A machine by what decides its speed, never its name; empty where that is not known."""
    device, cores = host.get("device"), host.get("cores")
    if isinstance(device, str) and device:
        return device
    return f"{cores} CPU cores" if isinstance(cores, int) else ""


def short_name(text: str) -> str:
    """A name of at most `LONGEST_NAME` characters; a longer one ends in its digest."""
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 11]}… #{digest(text)}"


def digest(text: str) -> str:
    """Eight hex digits that distinguish a text from others."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
