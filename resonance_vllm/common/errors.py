"""Error messages: the field as the user wrote it, its value, what is allowed, what is near."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can correct: printed without a traceback, exit code 2."""


class RunError(UserError):
    """What failed while it ran, though input and settings could be right: exit code 1."""


class SettingError(UserError):
    """A setting or option that is wrong."""


class RopeConfigError(SettingError):
    """RoPE settings that cannot be run: the message names field, value and what is allowed."""


def short_repr(value: object) -> str:
    """A short quotation of a value for a message, control characters escaped."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def error_message(error: BaseException) -> str:
    """The reason that a library gives, in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def escape_control_characters(text: str) -> str:
    """Text for a terminal: control characters, which could steer it, are written as escapes."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def choices_hint(name: object, known: Iterable[str]) -> str:
    """`; allowed: a, b; did you mean 'a'?`: the end of a message; long lists are left out."""
    names = list(dict.fromkeys(known))
    listed = f"; allowed: {', '.join(names)}" if 0 < len(names) <= 40 else ""
    return listed + did_you_mean(name, names)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'a'?`, or nothing if no name is similar."""
    text = name if isinstance(name, str) else short_repr(name)
    names = {each.casefold(): each for each in known}
    matches = difflib.get_close_matches(text.casefold(), names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(names[m]) for m in matches)}?" if matches else ""


def install_hint(extra: str) -> str:
    """How an extra of this project is installed."""
    return f"install the extra {extra} (in a checkout: pip install '.[{extra}]')"


def invalid_value_message(field: str, value: object, allowed: str) -> str:
    """`field: value is not allowed; allowed: ...`, for what is no list of names."""
    return f"{field}: {short_repr(value)} is not allowed; allowed: {allowed}"


def check_choice(
    field: str, value: object, allowed: Iterable[str], error: type[ValueError] = SettingError
) -> str:
    """The value of a field if it is one of the allowed names; else `error` with near ones."""
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    raise error(f"{field}: {short_repr(value)} is not allowed{choices_hint(value, names)}")
