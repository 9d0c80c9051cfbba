"""What can be wrong with a sweep, as exceptions whose message is for the user."""

import difflib
from collections.abc import Iterable

from leval_border.errors import SettingError


class ConfigError(SettingError):
    """A sweep config that cannot be run as it is written (wrong usage: exit code 2)."""


class ModelNotFoundError(ConfigError):
    """A model whose files cannot be found, so that nothing can be said of its identity."""


class SweepError(OSError):
    """A sweep that cannot go on, for a reason outside its cells."""


class SweepLockedError(SweepError):
    """Another process works on the same results folder."""


class CellError(OSError):
    """A cell ended without its results; the message is its reason."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` where something like `name` is known, else the known names.

    Args:
        name: what was written.
        known: what could have been written.

    Returns:
        A clause that continues an error message.
    """
    names = sorted(set(known))
    matches = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if matches:
        return "; did you mean " + " or ".join(f"'{match}'" for match in matches) + "?"
    return f"; known: {', '.join(names)}" if names else ""
