"""Typed models of settings, with pydantic's errors in the form of `resonance_vllm.errors`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from resonance_vllm.errors import SettingError, UserError, hint, near, not_allowed, shown

Model = TypeVar("Model", bound=BaseModel)


def _none_if_wrong(value: object, validated: Any) -> Any:
    try:
        return validated(value)
    except ValidationError:
        return None


LENIENT = WrapValidator(_none_if_wrong)
"""For a field of what others write whose value may be anything: None where it is another type."""


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
                    about = {"key": key, "known": known}
                    raise PydanticCustomError("unknown_key", "unknown setting", about)
        return content

    def changed(self, error: type[ValueError] = SettingError, **changes: Any) -> Self:
        """A copy in which some fields, named as outside, have another value.

        Raises:
            ValueError: as `error`; there is no such field, or the value is not allowed.
        """
        fields = type(self).model_fields
        written = {
            fields[name].alias or name: getattr(self, name) for name in self.model_fields_set
        }
        return read(type(self), {**written, **changes}, error=error)


def field_names(model: type[BaseModel]) -> list[str]:
    """Keys that a model reads, as they are written outside."""
    return [field.alias or name for name, field in model.model_fields.items()]


def read(
    model: type[Model], content: object, where: str = "", error: type[ValueError] = SettingError
) -> Model:
    """A typed model from plain data.

    Args:
        model: the class.
        content: what was written.
        where: how the user calls the place of it, for instance `config.models.llama`.
        error: raised with one line for each thing that is wrong.
    """
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        raise error("\n".join(sentences(wrong, content, where))) from None


Place = tuple[int | str, ...]


def sentences(wrong: ValidationError, content: object, where: str = "") -> list[str]:
    """What is wrong, a sentence for each field, in the order in which pydantic found it."""
    problems: dict[Place, list[ErrorDetails]] = {}
    for problem in wrong.errors(include_url=False):
        problems.setdefault(_place(problem, content), []).append(problem)
    # Of a union, only the member that fits best is reported, by the error inside of it.
    outer = {
        place
        for place, each in problems.items()
        if all(problem["type"] in _ALLOWED for problem in each)
        and any(other != place and other[: len(place)] == place for other in problems)
    }
    return [
        _sentence(".".join([where] * bool(where) + [_written(part) for part in place]), each)
        for place, each in problems.items()
        if place not in outer
    ]


def _written(key: int | str) -> str:
    """A key in a message; one with control characters is quoted."""
    return key if isinstance(key, str) and key.isprintable() and len(key) <= 120 else shown(key)


def _place(problem: ErrorDetails, content: object) -> Place:
    """Where a problem is in what was written: pydantic adds the members of unions to its own."""
    loc, target = problem["loc"], problem["input"]
    if problem["type"] == "missing":
        return (*_place_of(loc[:-1], content, target), loc[-1])
    place = _place_of(loc, content, target)
    return (*place, problem["ctx"]["key"]) if problem["type"] == "unknown_key" else place


def _place_of(loc: Place, content: object, target: object) -> Place:
    exact = _descend(loc, content, target)
    if exact is not None:
        return exact
    kept: list[int | str] = []
    for part in loc:  # a validator made something else of the content, or a key itself is wrong
        if _holds(content, part):
            content = content[part]  # type: ignore[index]
            kept.append(part)
        elif isinstance(part, str) and part.isidentifier() and part not in _MEMBERS:
            kept.append(part)
    return tuple(kept)


def _descend(loc: Place, content: object, target: object) -> Place | None:
    """The parts of `loc` that are keys on the way from `content` to `target`; None without one."""
    if not loc:
        return () if content is target else None
    part, rest = loc[0], loc[1:]
    inside = _descend(rest, content[part], target) if _holds(content, part) else None  # type: ignore[index]
    return _descend(rest, content, target) if inside is None else (part, *inside)


def _holds(content: object, part: int | str) -> bool:
    if isinstance(content, Mapping):
        return part in content
    return isinstance(content, list | tuple) and isinstance(part, int) and part < len(content)


_MEMBERS = frozenset({"int", "float", "str", "bool", "none", "dict", "list", "tuple"})
_ALLOWED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "none_required": "null",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"),
        "a mapping (key: value)",
    ),
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
    "too_short": ("min_length", "at least {} of them"),
    "too_long": ("max_length", "at most {} of them"),
    "string_too_short": ("min_length", "text of at least {} character(s)"),
    "string_too_long": ("max_length", "text of at most {} character(s)"),
}


def _sentence(place: str, problems: Sequence[ErrorDetails]) -> str:
    first = problems[0]
    start = f"{place}: " if place else ""
    if first["type"] == "missing":
        return f"{start}missing"
    if first["type"] == "unknown_key":
        return f"{start}unknown setting{hint(first['ctx']['key'], first['ctx']['known'])}"
    if first["type"] in ("value_error", "assertion_error"):
        error = first["ctx"]["error"]
        if isinstance(error, UserError) and place:  # each line begins with a field of this place
            return "\n".join(f"{place}.{line}" for line in str(error).split("\n"))
        return f"{start}{error}"
    names = [name for problem in problems for name in _names(problem)]
    if names and len(problems) == 1:
        return f"{start}{shown(first['input'])} is not allowed{hint(first['input'], names)}"
    allowed = " or ".join(dict.fromkeys(_allowed(problem) for problem in problems))
    message = not_allowed(place or "settings", first["input"], allowed)
    return message + near(first["input"], names)


def _names(problem: ErrorDetails) -> list[str]:
    """The values of a `Literal`, which pydantic gives as `'a', 'b' or 'c'`."""
    if problem["type"] != "literal_error":
        return []
    quoted = re.findall(r"'(?:[^'\\]|\\.)*'|[^\s,]+", problem["ctx"]["expected"])
    return [name.strip("'") for name in quoted if name != "or"]


def _allowed(problem: ErrorDetails) -> str:
    kind = problem["type"]
    if kind == "value_error":
        return str(problem["ctx"]["error"]).rpartition("allowed: ")[2]
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        bound = problem["ctx"][name]
        return text.format(int(bound) if bound == int(bound) else f"{bound:g}")
    if kind == "literal_error":
        return ", ".join(_names(problem))
    return _ALLOWED.get(kind, problem["msg"].removeprefix("Input should be "))
