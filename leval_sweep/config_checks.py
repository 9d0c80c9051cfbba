"""Checks of single values of a sweep config: each returns the value or says what is wrong."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from leval_sweep.errors import ConfigError, near_matches

Check = Callable[[Any, str], Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+()=, @-]{0,79}")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def known_keys(value: Any, where: str, known: Mapping[str, Check]) -> dict[str, Any]:
    """A mapping whose keys are all in `known`, every value checked by the check of its key.

    Raises:
        ConfigError: no mapping, an unknown key (near matches are given), a value that is refused.
    """
    mapping(value, where)
    checked = {}
    for key, item in value.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'{near_matches(str(key), known)}")
        checked[key] = known[key](item, f"{where}.{key}")
    return checked


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping with text keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: must be a mapping (key: value), not {value!r}")
    return dict(value)


def text(value: Any, where: str) -> str:
    """Non-empty text."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(f"{where}: must be text, not {value!r}")
    return value


def label(value: Any, where: str) -> str:
    """A name that stands in tables: letters, digits and `._+()=, @-`, up to 80."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(
            f"{where}: {value!r} must be a name of up to 80 letters, digits, blanks and ._+()=,@- "
            "beginning with a letter or digit"
        )
    return value


def folder_name(value: Any, where: str) -> str:
    """A name that can be a folder: letters, digits and `._-`, up to 80, never leading a dot."""
    if not isinstance(value, str) or not _FOLDER.fullmatch(value):
        raise ConfigError(
            f"{where}: {value!r} must be a name of up to 80 letters, digits and ._-, "
            "beginning with a letter or digit"
        )
    return value


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: must be true or false, not {value!r}")
    return value


def flag_or_name(value: Any, where: str) -> bool | str:
    """True, false, or the name of a chat template."""
    return value if isinstance(value, bool) else text(value, where)


def positive_int(value: Any, where: str) -> int:
    """A whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: must be a whole number above 0, not {value!r}")
    return value


def count(value: Any, where: str) -> int:
    """A whole number, zero included."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{where}: must be a whole number, 0 or more, not {value!r}")
    return value


def positive_number(value: Any, where: str) -> float:
    """A finite number above zero."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{where}: must be a number above 0, not {value!r}")
    return float(value)


def amount(value: Any, where: str) -> float:
    """A finite number, zero included."""
    return 0.0 if value == 0 and not isinstance(value, bool) else positive_number(value, where)


def one_of(*allowed: str) -> Check:
    """A check for one of a few words."""

    def check(value: Any, where: str) -> str:
        if value not in allowed:
            near = near_matches(str(value), allowed)
            raise ConfigError(f"{where}: must be one of {', '.join(allowed)}, not {value!r}{near}")
        return str(value)

    return check


def optional(check: Check) -> Check:
    """The same check with `null` allowed."""
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check) -> Check:
    """A check for a non-empty list without repetition; a single value counts as a list of one."""

    def check_list(value: Any, where: str) -> tuple[Any, ...]:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise ConfigError(f"{where}: must not be empty")
        checked = tuple(check(item, f"{where}.{i}") for i, item in enumerate(items))
        for i, item in enumerate(checked):
            if item in checked[:i]:
                raise ConfigError(f"{where}.{i}: {item!r} is there twice")
        return checked

    return check_list


def mapping_of(check: Check, key_check: Check = text) -> Check:
    """A check for a mapping whose values pass `check` and whose keys pass `key_check`."""

    def check_mapping(value: Any, where: str) -> dict[str, Any]:
        mapping(value, where)
        return {key_check(k, where): check(item, f"{where}.{k}") for k, item in value.items()}

    return check_mapping


def plain(value: Any, where: str) -> Any:
    """A value that JSON can hold: cells are written as JSON."""
    if isinstance(value, Mapping):
        return {text(k, where): plain(item, f"{where}.{k}") for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}.{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ConfigError(f"{where}: {value!r} must be text, a finite number, true, false or null")


def plain_mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping that JSON can hold."""
    mapping(value, where)
    return dict(plain(value, where))
