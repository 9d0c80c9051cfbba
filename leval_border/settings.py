"""Settings from outside as typed models; what pydantic finds wrong is told in our dialect."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from leval_border.errors import SettingError, hint, not_allowed

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Base of everything that users write for us: frozen, strictly typed, no unknown keys.

    Strict means that text is no number and 1 no truth value; an integer stands for a float, and
    where a tuple is meant a list may be written (`Field(strict=False)` on such a field).
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
                    end = hint(key, known).replace("{", "{{").replace("}", "}}")
                    raise PydanticCustomError("unknown_key", "unknown setting" + end, {"key": key})
        return content


def field_names(model: type[BaseModel]) -> list[str]:
    """Keys that a model reads, as they are written outside."""
    return [field.alias or name for name, field in model.model_fields.items()]


def read(
    model: type[Model],
    content: object,
    where: str = "",
    error: type[ValueError] = SettingError,
) -> Model:
    """A typed model from plain data.

    Args:
        model: the class.
        content: what was written.
        where: how the user calls the place of it, for instance `config.models.llama`.
        error: what to raise.

    Raises:
        ValueError: as `error`, with one line for each thing that is wrong.
    """
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        raise error("\n".join(sentences(wrong, where))) from None


def sentences(wrong: ValidationError, where: str = "") -> list[str]:
    """What is wrong, a sentence for each field, in the order in which pydantic found it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in wrong.errors(include_url=False):
        problem = dict(each)
        place = _place(where, each["loc"], problem)
        found.setdefault(place, []).append(problem)
    return [_sentence(place, problems) for place, problems in found.items()]


# What pydantic adds to a place for the members of a union: no part of what was written.
_TAGS = ("[", "function-")
_TYPES = frozenset(
    {"int", "float", "str", "bool", "none", "dict", "list", "tuple", "constrained-int"}
    | {"constrained-float", "constrained-str"}
)


def _place(where: str, loc: Sequence[int | str], problem: Mapping[str, Any]) -> str:
    parts = [where] if where else []
    for part in loc:
        text = str(part)
        if isinstance(part, str) and (text in _TYPES or any(tag in text for tag in _TAGS)):
            continue
        parts.append(text)
    if problem["type"] == "unknown_key":
        parts.append(str(problem["ctx"]["key"]))
    return ".".join(parts) or "settings"


_ALLOWED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "mapping_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "too_short": ("min_length", "at least {} of them"),
    "string_too_short": ("min_length", "text of at least {} character"),
    "string_too_long": ("max_length", "text of at most {} characters"),
}


def _sentence(place: str, problems: Sequence[Mapping[str, Any]]) -> str:
    first = problems[0]
    if first["type"] == "missing":
        return f"{place}: missing"
    if first["type"] in ("value_error", "assertion_error"):
        return f"{place}: {first['ctx']['error']}" if "ctx" in first else f"{place}: {first['msg']}"
    if first["type"] == "unknown_key":
        return f"{place}: {first['msg']}"
    if first["type"] == "literal_error" and len(problems) == 1:
        names = [
            name.strip("' ") for name in first["ctx"]["expected"].replace(" or ", ", ").split(",")
        ]
        return f"{place}: {first['input']!r} is not allowed{hint(first['input'], names)}"
    allowed = dict.fromkeys(_allowed(problem) for problem in problems)
    return not_allowed(place, first["input"], " or ".join(allowed))


def _allowed(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return text.format(f"{problem['ctx'][name]:g}")
    if kind == "literal_error":
        return str(problem["ctx"]["expected"]).replace("'", "")
    return _ALLOWED.get(kind, str(problem["msg"]))
