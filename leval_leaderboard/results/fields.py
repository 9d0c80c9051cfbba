"""Reading single fields of untrusted JSON: the right type, a finite number, a plain file name."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WrapValidator

from leval_border.errors import UserError, shown
from leval_border.settings import sentences
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


def _none_if_wrong(value: object, read: Any) -> Any:
    try:
        return read(value)
    except ValidationError:
        return None


LENIENT = WrapValidator(_none_if_wrong)
"""For a field whose value may be anything at all: None where it is of another type."""

Object = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]
"""An object; null is an empty one."""

Model = TypeVar("Model", bound=BaseModel)


def read_model(model: type[Model], path: Path) -> Model:
    """A JSON file as a typed model.

    Raises:
        ResultsError: not readable, not JSON, nested too deep, or not what the model says.
    """
    return _typed(model, read_json(path), path)


def read_versioned(model: type[Model], path: Path) -> Model:
    """A JSON file of ours as a typed model.

    Raises:
        NewerSchemaError: its layout is newer than this reader.
        ResultsError: as `read_model`.
    """
    content = read_json(path)
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path}: schema_version {shown(version)} is newer than {SCHEMA_VERSION}, the newest "
            "this version of leval-harness reads; upgrade leval-harness"
        )
    return _typed(model, content, path)


def _typed(model: type[Model], content: dict[str, Any], path: Path) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        about = (f"{path}: {each}" for each in sentences(wrong, content))
        raise ResultsError("\n".join(about)) from None


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
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return None
    number = float(value)
    return number if math.isfinite(number) and abs(number) <= LARGEST_NUMBER else None


def pair(value: object) -> tuple[float, float] | None:
    """`[numerator, denominator]` with a positive denominator, else None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    top, bottom = finite(value[0]), finite(value[1])
    return None if top is None or bottom is None or bottom <= 0 else (top, bottom)


def plain_name(name: object) -> bool:
    """Whether `name` is a file name without any folder part, so that joining it stays inside."""
    return (
        isinstance(name, str)
        and 0 < len(name) < LONGEST_NAME
        and name not in {".", ".."}
        and not set(name) & set("/\\\0")
    )
