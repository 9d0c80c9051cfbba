"""Where the needles of RULER's questions lie in their prompts, and which were found."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_harness.results.sample_lines import (
    document_of,
    parsed_lines,
    responses_of,
    rows_of_first_filter,
)

DEPTHS = 10
"""Parts of a prompt that the picture of depth tells apart."""


@dataclass(frozen=True, slots=True)
class Needle:
    """One needle of one question: its depth in the prompt, from 0 to 1, and whether it was told."""

    depth: float
    found: bool

    @property
    def part(self) -> int:
        """The part of the prompt that it lies in, the first being 0 of `DEPTHS`."""
        return min(int(self.depth * DEPTHS), DEPTHS - 1)


def needles_of(path: Path) -> Iterator[Needle]:
    """The needles of a samples file of RULER's `niah_*` tasks.

    Raises:
        ResultsError: the file cannot be read.
    """
    for row in rows_of_first_filter(parsed_lines(path)):
        yield from needles_in(row)


def needles_in(row: dict[str, Any]) -> Iterator[Needle]:
    """The needles of a logged sample of RULER's; nothing where it holds no prompt.

    A needle is an expected answer, its depth where the prompt has it; it is found where an answer
    holds it, as RULER scores.
    """
    doc = document_of(row)
    prompt, wanted = doc.get("input"), doc.get("outputs")
    if not isinstance(prompt, str) or not isinstance(wanted, list):
        return
    told = " ".join(responses_of(row)).lower()
    for needle in wanted:
        place = prompt.find(needle) if isinstance(needle, str) and needle else -1
        if place >= 0:
            yield Needle(place / len(prompt), needle.lower() in told)
