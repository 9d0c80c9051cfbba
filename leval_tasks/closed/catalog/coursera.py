"""Coursera: questions about a lecture; one or more letters are right."""

from collections.abc import Sequence

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import (
    PARTIAL_CREDIT,
    Extraction,
    Rule,
    letters_of,
    mean,
    read_letters,
)


class SeveralLetters(Rule):
    """One or more letters of A to D are right; a part of them earns a quarter."""

    guess = (
        "{title} questions may have several right letters; chance is the expected official score "
        "of one of the 15 sets of letters A to D, drawn at random, over the gold answers read: "
        "(1 + 0.25 (2^k - 2)) / 15 where k letters are right, since a part of the right set earns "
        "0.25."
    )

    def read(self, response: str, gold: str) -> Extraction:
        """The chosen letters."""
        return read_letters(response, several=True)

    def reference(self, gold: str) -> str:
        """The reference's letters."""
        return letters_of(gold)

    def chance(self, golds: Sequence[str]) -> float | None:
        """Mean over the references, see `guess`."""
        sizes = [len(set(letters_of(gold))) for gold in golds]
        if not sizes:
            return None
        return mean([(1 + PARTIAL_CREDIT * (2**size - 2)) / 15 for size in sizes])


TASK = ClosedTask(
    key="coursera",
    title="Coursera",
    place=1,
    file=PublishedFile(
        name="coursera.jsonl",
        documents=15,
        questions=172,
        sha256="03ef77fcbd191545ee9f750487d1e6b209352e6440cadc6671f0c9f4fcb753a5",
    ),
    system_prompt=(
        "Now you are given a very long document. Please follow the instruction based on this "
        "document. For multi-choice questions, there could be a sinlge correct option or multiple "
        "correct options. Please only provide the letter corresponding to the answer (like A or "
        "AB) when answering. "
    ),
    rule=SeveralLetters(),
    in_group=True,
)
