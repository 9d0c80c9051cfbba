"""Errors, and messages with the field, its value, what is allowed and similar names."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can correct; printed without a traceback, exit code 2."""


class RunError(UserError):
    """A failure while something ran, though input and settings may be right; exit code 1."""


class SettingError(UserError):
    """A setting or option that is wrong."""


class RopeConfigError(SettingError):
    """RoPE settings that cannot be run: the message names field, value and what is allowed."""


def short_repr(value: object) -> str:
    """Return the repr of a value for a message, cut at 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def error_message(error: BaseException) -> str:
    """Return an exception's message in one line of at most 300 characters, or its type's name."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def escape_control_characters(text: str) -> str:
    """Return text for a terminal, with control characters, which could steer it, as escapes."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def choices_hint(name: object, known: Iterable[str]) -> str:
    """Return the end of a message, `; allowed: a, b; did you mean 'a'?`.

    Args:
        name: what the user wrote.
        known: the allowed names; more than 40 are not listed.
    """
    names = list(dict.fromkeys(known))
    listed = f"; allowed: {', '.join(names)}" if 0 < len(names) <= 40 else ""
    return listed + did_you_mean(name, names)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'a'?` for similar names, or nothing if no name is similar."""
    text = name if isinstance(name, str) else short_repr(name)
    names = {known_name.casefold(): known_name for known_name in known}
    matches = difflib.get_close_matches(text.casefold(), names, n=3, cutoff=0.6)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(repr(names[match]) for match in matches)}?"


def install_hint(extra: str) -> str:
    """Return how an extra of this project is installed."""
    return f"install the extra {extra} (in a checkout: pip install '.[{extra}]')"


def invalid_value_message(field: str, value: object, allowed: str) -> str:
    """Return `field: value is not allowed; allowed: ...`, where that is not a list of names."""
    return f"{field}: {short_repr(value)} is not allowed; allowed: {allowed}"


def check_choice(
    field: str, value: object, allowed: Iterable[str], error: type[ValueError] = SettingError
) -> str:
    """Return the value of a field if it is one of the allowed names.

    Args:
        field: as the user wrote it.
        value: what the user gave.
        allowed: names.
        error: type of the error.

    Raises:
        ValueError: as `error`, with the allowed names and similar ones.
    """
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    raise error(f"{field}: {short_repr(value)} is not allowed{choices_hint(value, names)}")
