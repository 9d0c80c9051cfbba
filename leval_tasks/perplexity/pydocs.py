"""Long text that every Python brings along: the language reference of `pydoc_data.topics`."""

import hashlib
import logging
import platform
import random
from collections.abc import Mapping
from typing import Any

from leval_border.errors import SettingError
from leval_tasks.errors import DataError
from leval_tasks.perplexity.documents import Drawn, TokenizedText
from leval_tasks.perplexity.model import Reader
from leval_tasks.perplexity.settings import ReadingPlan

logger = logging.getLogger(__name__)

PYDOCS = "pydocs"
SEPARATOR = "\n\n"


def distinct_topics(topics: Mapping[str, str]) -> list[str]:
    """Names of the topics to keep, sorted: none whose text is contained in another kept one.

    Of equal texts the first name in the alphabet stays. The same passage is shipped under
    several names, and a repeated passage is predicted from its first copy instead of the language.
    """
    texts = {name: text.strip() for name, text in topics.items() if text.strip()}

    def contained(name: str) -> bool:
        text = texts[name]
        return any(
            text in other and (len(other) > len(text) or other_name < name)
            for other_name, other in texts.items()
            if other_name != name
        )

    return sorted(name for name in texts if not contained(name))


def language_reference(topics: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """The joined topics, by default this Python's, and what identifies them: version, SHA-256."""
    if topics is None:
        from pydoc_data.topics import topics as shipped

        topics = shipped
    text = SEPARATOR.join(topics[name].strip() for name in distinct_topics(topics))
    return text, {
        "python_version": platform.python_version(),
        "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
    }


def equal_cuts(n: int, size: int) -> list[tuple[int, int]]:
    """Bounds of as many pieces of `size` tokens as `n` tokens hold; what remains is left out."""
    return [(start, start + size) for start in range(0, n - size + 1, size)]


def draw_pydocs(reader: Reader, plan: ReadingPlan) -> tuple[Drawn, dict[str, Any]]:
    """Documents of equal token length from the language reference, drawn with the seed.

    A document fills one window of the longest context; in the modes whose windows move it is twice
    as long. `max_tokens` sets another size.

    Raises:
        DataError: The language reference is shorter than one document.
        SettingError: `min_tokens` asks for longer documents than are cut.
    """
    text, identity = language_reference()
    tokens, ends = reader.encode(text)
    moving = plan.mode in ("sliding", "disjoint")
    size = plan.max_tokens or (plan.longest - plan.bos) * (2 if moving else 1)
    if plan.min_tokens > size:
        raise SettingError(
            f"min_tokens={plan.min_tokens} is more than the {size} tokens of each document of "
            "ppl_pydocs; leave it out, or set max_tokens, which is their size"
        )
    cuts = equal_cuts(len(tokens), size)
    if not cuts:
        raise DataError(
            f"the language reference has {len(tokens)} tokens, fewer than one document of {size}; "
            "take a shorter context_length, or ppl_pg19"
        )
    chosen = sorted(random.Random(plan.seed).sample(cuts, min(plan.num_docs, len(cuts))))
    if len(cuts) < plan.num_docs:
        logger.info("num_docs=%d: the text gives %d documents", plan.num_docs, len(cuts))
    documents = []
    for start, end in chosen:
        first = ends[start - 1] if start else 0
        documents.append(
            TokenizedText(
                f"{PYDOCS}-{start}",
                text[first : ends[end - 1]],
                tokens[start:end],
                [place - first for place in ends[start:end]],
            )
        )
    left_out = {"tokens_after_the_last_cut": len(tokens) - cuts[-1][1]}
    data = {
        "source": "pydoc_data.topics",
        "path": f"Python {identity['python_version']}",
        "sample": False,
        "python_version": identity["python_version"],
        "files": {"pydoc_data/topics.py": identity["sha256"]},
    }
    return Drawn(documents, left_out), data
