"""Whether a name is another one misspelt, where names that nobody knows pass."""

import difflib

SHORTEST = 5
"""Letters of a name that can be meant; shorter ones have neighbours that mean something else."""

ALIKE = 0.88
"""Ratio of `difflib` from which two long names are taken for one."""


def is_misspelt(key: str, name: str) -> bool:
    """Whether a key is a name in capitals or with hyphens, or a near miss of it."""
    ours = key.strip().casefold().replace("-", "_").replace(" ", "_")
    return ours == name or is_near_miss(ours, name)


def is_near_miss(key: str, name: str) -> bool:
    """Whether a key is one slip of the fingers away from a name, or hardly more in a long one.

    A slip is a letter too many, too few or in place of another, or two that changed places.
    """
    if len(name) < SHORTEST or key == name:
        return False
    if difflib.SequenceMatcher(None, key, name).ratio() >= ALIKE:
        return True
    while key[:1] == name[:1]:
        key, name = key[1:], name[1:]
    while key[-1:] == name[-1:]:
        key, name = key[:-1], name[:-1]
    return max(len(key), len(name)) == 1 or (len(key) == 2 and key == name[::-1])
