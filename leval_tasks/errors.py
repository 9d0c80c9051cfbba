"""Errors that a user can mend: what is wrong, what is allowed, what to do.

All derive from `ValueError`, so that lm-eval stops with the message and the command line prints it
without a traceback.
"""

import difflib
from collections.abc import Iterable


class TaskError(ValueError):
    """A task cannot run as asked."""


class SettingError(TaskError):
    """A setting has a value that is not allowed."""


class DataError(TaskError):
    """Documents are missing, unreadable, altered or not in L-Eval's layout."""


class HubUnreachableError(DataError):
    """The hub cannot be asked at all, so no other file can be had either."""


class PredictionError(DataError):
    """A prediction file is not in L-Eval's published format."""


class TokenizerError(TaskError):
    """No tokenizer is known to the task, or it cannot say where its tokens lie in the text."""


class ContextLengthError(TaskError):
    """The context length is unknown, too small for the prompt or above the backend's limit."""


def one_of(
    field: str, value: object, allowed: Iterable[str], error: type[ValueError] = SettingError
) -> str:
    """Return `value` if it is allowed.

    Args:
        field: name of the setting, for the message.
        value: what was given.
        allowed: the allowed values.
        error: what to raise.

    Raises:
        ValueError: as `error`; names the setting, the value, what is allowed and the nearest match.
    """
    choices = list(allowed)
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise error(f"{field} is {value!r}; allowed: {', '.join(choices)}.{hint}")
