"""Where the needles of RULER's questions lie in their prompts, and which were found."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leval_leaderboard.results.samples import (
    document_of,
    parsed_lines,
    responses_of,
    rows_of_first_filter,
)


@dataclass(frozen=True, slots=True)
class Needle:
    """One needle of one question: its depth in the prompt, from 0 to 1, and whether it was told."""

    depth: float
    found: bool


def needles_of(path: Path) -> Iterator[Needle]:
    """The needles of a samples file of RULER's `niah_*` tasks; nothing where it holds no prompts.

    A needle is an expected answer, its depth where the prompt has it; it is found where an answer
    holds it, as RULER scores.

    Raises:
        ResultsError: the file cannot be read.
    """
    for row in rows_of_first_filter(parsed_lines(path)):
        doc = document_of(row)
        prompt, wanted = doc.get("input"), doc.get("outputs")
        if not isinstance(prompt, str) or not isinstance(wanted, list):
            continue
        told = " ".join(responses_of(row)).lower()
        for needle in wanted:
            place = prompt.find(needle) if isinstance(needle, str) and needle else -1
            if place >= 0:
                yield Needle(place / len(prompt), needle.lower() in told)
