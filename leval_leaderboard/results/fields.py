"""Reading single fields of untrusted JSON: the right type, a finite number, a file inside."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WrapValidator

from leval_border.errors import UserError, shown
from leval_border.settings import read
from leval_leaderboard.layout import SCHEMA_VERSION

LONGEST_NAME = 300
LARGEST_NUMBER = 1e15


class ResultsError(UserError):
    """A results folder or one of its files that cannot be read; the message names the file."""


class NewerSchemaError(ResultsError):
    """Written by a version of leval-harness that is newer than this one."""


class Outside(BaseModel):
    """Base of what others write: keys that we do not know are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, populate_by_name=True)


def _none_if_wrong(value: object, validated: Any) -> Any:
    try:
        return validated(value)
    except ValidationError:
        return None


LENIENT = WrapValidator(_none_if_wrong)
"""For a field whose value may be anything at all: None where it is of another type."""

EMPTY_IF_NULL = BeforeValidator(lambda value: {} if value is None else value)
Object = Annotated[dict[str, Any], EMPTY_IF_NULL]

Model = TypeVar("Model", bound=BaseModel)


def read_model(model: type[Model], path: Path) -> Model:
    """A JSON file as a typed model.

    Raises:
        NewerSchemaError: a file of ours whose layout is newer than this reader.
        ResultsError: not readable, not JSON, nested too deep, or not what the model says.
    """
    content = read_json(path)
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
    """Parse a JSON file whose top level is an object.

    Raises:
        ResultsError: not readable, not JSON, nested too deep, or not an object.
    """
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ResultsError(f"{path}: expected an object, found {type(parsed).__name__}")
    return parsed


def finite(value: object) -> float | None:
    """`value` as a float if it is a finite number of sensible size, else None.

    Booleans are not numbers here, and an integer of a thousand digits is not a score.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        return None
    return float(value)


def pair(value: object) -> tuple[float, float] | None:
    """`[numerator, denominator]` with a positive denominator, else None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    top, bottom = finite(value[0]), finite(value[1])
    return None if top is None or bottom is None or bottom <= 0 else (top, bottom)


def file_in(folder: Path, name: str, root: Path | None = None) -> Path | None:
    """A regular file of a folder by its plain name; None if there is none inside `root`.

    `root` is the folder itself where none is given; a link may not leave it.
    """
    path = folder / name
    try:
        real, limit = path.resolve(), (root or folder).resolve()
        is_inside = Path(name).name == name and real.is_file() and real.is_relative_to(limit)
    except (OSError, ValueError):  # a text that can be no path
        is_inside = False
    return path if is_inside else None
