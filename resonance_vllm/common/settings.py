"""Typed models of settings, and pydantic's messages in one line for each field that is wrong."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from resonance_vllm.common.errors import SettingError, UserError, choices_hint, short_repr

Model = TypeVar("Model", bound=BaseModel)
UNKNOWN_KEY = "unknown_key"
"""Type of the error of a key that a model does not have."""


class Settings(BaseModel):
    """Base of all settings that users write: frozen, strictly typed, without unknown keys.

    A tuple that may be written as a list has `Field(strict=False)`. A validator of one field raises
    a `ValueError` without its name; one of the model a `UserError` that begins with a field's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse unknown keys, and suggest known ones with similar names, which pydantic does not.

        The other keys are validated all the same, so that all mistakes are shown at once.

        Args:
            content: what is to be validated.
            handler: pydantic's own validation.
        """
        unknown: list[Any] = []
        if isinstance(content, Mapping) and cls.model_config.get("extra") == "forbid":
            unknown = [key for key in content if key not in field_names(cls)]
        if not unknown:
            return handler(content)
        problems = [_unknown_key(key, content[key], field_names(cls)) for key in unknown]
        try:
            handler({key: value for key, value in content.items() if key not in unknown})
        except ValidationError as error:
            problems += [
                _raised_again(problem)
                for problem in error.errors(include_url=False)
                # a key that is missing here is most likely the one that was misspelt
                if problem["type"] != "missing" or len(problem["loc"]) > 1
            ]
        raise ValidationError.from_exception_data(cls.__name__, problems)

    def with_changes(self, **changes: Any) -> Self:
        """Return a validated copy in which some fields, by their outside names, have another value."""
        fields = type(self).model_fields  # not model_dump, which skips excluded fields
        written = {
            fields[name].alias or name: getattr(self, name) for name in self.model_fields_set
        }
        return parse_settings(type(self), {**written, **changes})


def _unknown_key(key: Any, value: Any, known: list[str]) -> InitErrorDetails:
    """Return the error of a key that a model does not have."""
    message = f"unknown setting{choices_hint(key, known)}"
    kind = PydanticCustomError(UNKNOWN_KEY, "{message}", {"message": message})
    return InitErrorDetails(type=kind, loc=(str(key),), input=value)


def _raised_again(problem: ErrorDetails) -> InitErrorDetails:
    """Return an error of pydantic as it takes it."""
    kind: Any = problem["type"]
    if kind == UNKNOWN_KEY:
        kind = PydanticCustomError(UNKNOWN_KEY, "{message}", problem["ctx"])
    return InitErrorDetails(
        type=kind, loc=problem["loc"], input=problem["input"], ctx=problem.get("ctx", {})
    )


def field_names(model: type[BaseModel]) -> list[str]:
    """Return the keys that a model reads, as they are written outside."""
    return [field.alias or name for name, field in model.model_fields.items()]


def parse_settings(
    model: type[Model], content: object, where: str = "", error: type[ValueError] = SettingError
) -> Model:
    """Parse plain data into a typed model.

    Args:
        model: the type.
        content: what YAML or JSON held.
        where: how the user calls the place of `content`; begins every line of an error.
        error: type of the error.

    Raises:
        ValueError: as `error`, with a line for each field that is wrong.
    """
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        raise error("\n".join(_error_lines(wrong, content, where))) from None


Location = tuple[int | str, ...]
"""Keys and indices that lead to a value in the content."""


def _error_lines(wrong: ValidationError, content: object, where: str) -> Iterator[str]:
    """Yield a line for each field that is wrong; of a union, for the member that got farthest."""
    problems_at: dict[Location, list[ErrorDetails]] = {}
    for problem in wrong.errors(include_url=False):
        problems_at.setdefault(_location(problem, content), []).append(problem)
    for location, problems in problems_at.items():
        if _has_deeper(location, problems_at):
            continue
        prefix = [where] if where else []
        field = ".".join(prefix + [str(part) for part in location])
        yield from _lines_at(field, problems)


def _has_deeper(location: Location, locations: Iterable[Location]) -> bool:
    """Return whether another location is inside this one: it says more precisely what is wrong."""
    return any(other != location and other[: len(location)] == location for other in locations)


def _lines_at(field: str, problems: list[ErrorDetails]) -> Iterator[str]:
    """Yield what is wrong with one field."""
    for problem in problems:
        raised = problem.get("ctx", {}).get("error")
        if problem["type"] == "value_error" and isinstance(raised, UserError):
            # Each of its lines begins with the name of a field inside this one.
            for line in str(raised).split("\n"):
                yield f"{field}.{line}" if field else line
            return
    message = _message(problems[0])
    yield f"{field}: {message}" if field else message


def _location(problem: ErrorDetails, content: object) -> Location:
    """Return the keys that lead to a problem.

    pydantic puts the names of a union's members between them, which are not in the content.
    """
    location: list[int | str] = []
    for part in problem["loc"]:
        is_key = isinstance(content, Mapping) and part in content
        is_index = isinstance(content, list | tuple) and isinstance(part, int)
        if is_key or is_index:
            content = content[part]  # type: ignore[index]
            location.append(part)
    if problem["type"] == "missing":  # the key is not in the content
        return (*location, *problem["loc"][-1:])
    return tuple(location)


def _message(problem: ErrorDetails) -> str:
    """Return pydantic's message with the given value, or the message of a validator."""
    if problem["type"] == "missing":
        return "missing"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == UNKNOWN_KEY:
        return problem["msg"]
    value = problem["input"]
    if isinstance(value, Mapping | list | tuple):
        return problem["msg"]
    return f"{problem['msg']} ({short_repr(value)} given)"
