"""Long text that every Python brings along: the language reference of `pydoc_data.topics`."""

import hashlib
import platform
from collections.abc import Mapping, Sequence

SEPARATOR = "\n\n"


def distinct_topics(topics: Mapping[str, str]) -> list[str]:
    """Names of the topics to keep, sorted: none whose text is contained in another kept one.

    Of equal texts the first name in the alphabet stays. The same passage is shipped under
    several names, and a repeated passage is predicted from its first copy instead of the language.
    """
    texts = {name: text.strip() for name, text in topics.items() if text.strip()}
    return sorted(name for name in texts if not _contained(name, texts))


def _contained(name: str, texts: Mapping[str, str]) -> bool:
    text = texts[name]
    return any(
        text in other and (len(other) > len(text) or other_name < name)
        for other_name, other in texts.items()
        if other_name != name
    )


def language_reference(topics: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """The joined text and what identifies it: Python version and SHA-256.

    Args:
        topics: Topic texts by name; by default those of the running Python.
    """
    if topics is None:
        from pydoc_data.topics import topics as shipped

        topics = shipped
    text = SEPARATOR.join(topics[name].strip() for name in distinct_topics(topics))
    return text, {
        "python_version": platform.python_version(),
        "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
    }


def equal_cuts(n: int, size: int) -> Sequence[tuple[int, int]]:
    """Bounds of as many pieces of `size` tokens as `n` tokens hold; what remains is left out."""
    return [(start, start + size) for start in range(0, n - size + 1, size)]
