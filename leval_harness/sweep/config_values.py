"""Kinds of single values in a sweep config, as types that pydantic checks."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from leval_border.errors import UserError, not_allowed, shown

Item = TypeVar("Item")
Items = TypeVar("Items", tuple[Any, ...], dict[str, Any])

LARGEST = 10**15


def _text(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError(f"{shown(value)} is not allowed; allowed: text that is not empty")
    return value


def _name(characters: str, said: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{characters}]{{0,79}}", value):
            raise ValueError(
                f"{shown(value)} is not allowed; allowed: a name of up to 80 letters, digits{said} "
                "beginning with a letter or digit"
            )
        return value

    return AfterValidator(check)


def listed(value: object) -> Sequence[object]:
    """A single value stands for a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def filled(values: Items) -> Items:
    """Refuse what is empty."""
    if not values:
        raise ValueError("empty is not allowed; allowed: at least one")
    return values


def _once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise UserError(f"{i}: {shown(value)} is there twice")
    return values


def _plain(value: Any, place: str) -> Any:
    """A value that JSON can hold: cells are written as JSON."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not key.strip() or "\0" in key:
                raise UserError(not_allowed(place, key, "keys that are text"))
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}.{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float) and abs(value) <= LARGEST**20 and math.isfinite(value):
        return value
    allowed = "text, a finite number, true, false, null, a list or a mapping of these"
    raise UserError(not_allowed(place, value, allowed))


Text = Annotated[str, AfterValidator(_text)]
Label = Annotated[str, _name("._+()=, @-", ", blanks and ._+()=,@-")]
"""A name that stands in tables."""
FolderName = Annotated[str, _name("._-", " and ._-")]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""NumPy's generator takes no larger one."""
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Several = Annotated[
    tuple[Item, ...],
    Field(strict=False),
    BeforeValidator(listed),
    AfterValidator(filled),
    AfterValidator(_once),
]
"""A list without repetition; a single value counts as a list of one."""
PlainMapping = Annotated[
    dict[Text, Any],
    AfterValidator(lambda content: {key: _plain(value, key) for key, value in content.items()}),
]
"""Passed through to lm-eval, to a model or to tasks, who know the keys."""
