"""Typed models of settings; pydantic's messages, a line for each field that is wrong."""

from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from resonance_vllm.common.errors import SettingError, UserError, choices_hint, short_repr

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Base of everything that users write for us: frozen, strictly typed, no unknown keys.

    A tuple that may be written as a list has `Field(strict=False)`. A validator of one field raises
    a `ValueError` without its name; one of the model a `UserError` that begins with a field's name.
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
                    raise SettingError(f"{key}: unknown setting{choices_hint(key, known)}")
        return content

    def with_changes(self, **changes: Any) -> Self:
        """A checked copy in which some fields, named as outside, have another value."""
        fields = type(self).model_fields  # no dump: it leaves out what is not recorded
        written = {
            fields[name].alias or name: getattr(self, name) for name in self.model_fields_set
        }
        return parse_settings(type(self), {**written, **changes})


def field_names(model: type[BaseModel]) -> list[str]:
    """Keys that a model reads, as they are written outside."""
    return [field.alias or name for name, field in model.model_fields.items()]


def parse_settings(
    model: type[Model], content: object, where: str = "", error: type[ValueError] = SettingError
) -> Model:
    """A typed model from plain data; `where` is its place as the user calls it.

    An `error` has one line for each thing that is wrong.
    """
    try:
        return model.model_validate(content)
    except ValidationError as wrong:
        raise error("\n".join(_lines(wrong, content, where))) from None


def _lines(wrong: ValidationError, content: object, where: str) -> Iterator[str]:
    """What is wrong, a line for each field; of a union, the member that got farthest."""
    found: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for problem in wrong.errors(include_url=False):
        found.setdefault(_place(problem, content), []).append(problem)
    for place, problems in found.items():
        if any(other != place and other[: len(place)] == place for other in found):
            continue
        start = ".".join([where] * bool(where) + [str(part) for part in place])
        errors = [each["ctx"]["error"] for each in problems if each["type"] == "value_error"]
        ours = [each for each in errors if isinstance(each, UserError)]
        if ours:  # each line begins with a field of this place
            yield from (f"{start}.{line}" if start else line for line in str(ours[0]).split("\n"))
        else:
            yield ": ".join([start] * bool(start) + [_said(problems[0])])


def _place(problem: ErrorDetails, content: object) -> tuple[int | str, ...]:
    """Keys that lead to a problem; pydantic puts the names of a union's members between them."""
    kept: list[int | str] = []
    for part in problem["loc"]:
        inside = isinstance(content, Mapping) and part in content
        if inside or (isinstance(content, list | tuple) and isinstance(part, int)):
            content = content[part]  # type: ignore[index]
            kept.append(part)
    return (*kept, *problem["loc"][-1:]) if problem["type"] == "missing" else tuple(kept)


def _said(problem: ErrorDetails) -> str:
    """The message of pydantic with the given value, or the words of a validator of ours."""
    if problem["type"] == "missing":
        return "missing"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    value = problem["input"]
    given = "" if isinstance(value, Mapping | list | tuple) else f" ({short_repr(value)} given)"
    return problem["msg"] + given
