"""Typed models of settings, with pydantic's errors in the form of `resonance_vllm.errors`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from resonance_vllm.errors import SettingError, UserError, hint, near, not_allowed

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Base of everything that users write for us: frozen, strictly typed, no unknown keys.

    Strict means that text is no number and 1 no truth value; an integer stands for a float, and
    where a tuple is meant a list may be written (`Field(strict=False)` on such a field). A
    validator of one field raises a `ValueError` without its name; one of the model a `UserError`
    that begins with the name of a field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any) -> Any:
        """Refuse an unknown key with the near ones: pydantic alone would not name those."""
        if isinstance(content, Mapping) and cls.model_config.get("extra") == "forbid":
            known = field_names(cls)
            for key in content:
                if key not in known:
                    raise SettingError(f"{key}: unknown setting{hint(key, known)}")
        return content

    def changed(self, **changes: Any) -> Self:
        """A copy in which some fields, named as outside, have another value.

        Raises:
            SettingError: there is no such field, or the value is not allowed.
        """
        fields = type(self).model_fields
        written = {
            fields[name].alias or name: getattr(self, name) for name in self.model_fields_set
        }
        return read(type(self), {**written, **changes})


def field_names(model: type[BaseModel]) -> list[str]:
    """Keys that a model reads, as they are written outside."""
    return [field.alias or name for name, field in model.model_fields.items()]


def read(
    model: type[Model], content: object, where: str = "", error: type[ValueError] = SettingError
) -> Model:
    """A typed model from plain data; `where` is its place as the user calls it.

    Raises:
        ValueError: as `error`, one line for each thing that is wrong.
    """
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        raise error("\n".join(sentences(wrong, content, where))) from None


Place = tuple[int | str, ...]

_WORDS = {
    "Input should be ": "",
    " should have at": " of at",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid dictionary": "a mapping",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "greater than or equal to": "a number of at least",
    "less than or equal to": "a number of at most",
    "greater than": "a number above",
    "less than": "a number below",
}
"""Of pydantic's messages, in plain English."""


def sentences(wrong: ValidationError, content: object, where: str = "") -> list[str]:
    """What is wrong, a sentence for each field, in the order in which pydantic found it."""
    found: dict[Place, list[ErrorDetails]] = {}
    for problem in wrong.errors(include_url=False):
        found.setdefault(_place(problem, content), []).append(problem)
    return [
        _sentence(".".join([where] * bool(where) + [str(part) for part in place]), problems)
        for place, problems in found.items()
        # of a union, the member that got farthest
        if not any(other != place and other[: len(place)] == place for other in found)
    ]


def _place(problem: ErrorDetails, content: object) -> Place:
    """Keys that lead to a problem; pydantic puts the names of a union's members between them."""
    kept: list[int | str] = []
    for part in problem["loc"]:
        inside = isinstance(content, Mapping) and part in content
        if inside or (isinstance(content, list | tuple) and isinstance(part, int)):
            content = content[part]  # type: ignore[index]
            kept.append(part)
    # absent keys: one that is missing, and one whose default does not fit another key
    absent = problem["type"] == "missing" or (problem["type"] == "order" and not kept)
    return (*kept, *problem["loc"][-1:]) if absent else tuple(kept)


def _sentence(place: str, problems: Sequence[ErrorDetails]) -> str:
    first = problems[0]
    if first["type"] == "missing":
        return f"{place}: missing"
    errors = [each["ctx"]["error"] for each in problems if each["type"] == "value_error"]
    for error in errors:
        if isinstance(error, UserError):  # each line begins with a field of this place
            start = f"{place}." if place else ""
            return "\n".join(start + line for line in str(error).split("\n"))
    if len(errors) == len(problems):
        return f"{place}: {errors[0]}" if place else str(errors[0])
    allowed = " or ".join(dict.fromkeys(_allowed(problem) for problem in problems))
    message = not_allowed(place or "settings", first["input"], allowed)
    literals = [each["msg"] for each in problems if each["type"] == "literal_error"]
    return message + near(first["input"], re.findall(r"'([^']*)'", " ".join(literals)))


def _allowed(problem: ErrorDetails) -> str:
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"]).rpartition("allowed: ")[2]
    text = problem["msg"]
    if problem["type"] == "literal_error":  # `'a', 'b' or 'c'`
        text = text.replace("'", "").replace(" or ", ", ")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text
