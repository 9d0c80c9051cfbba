"""CodeU: a code base with a few calls at its end; the reference is what they print."""

import re

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import Extraction, Rule

MARK = "the final output"
_LEFT_OUT = (
    "will be",
    "of the code",
    "is",
    "would be",
    "the value of",
    "the result of",
    "printed",
)


class PrintedOutput(Rule):
    """The printed output anywhere in a window of the response."""

    guess = "nothing"
    guess_score = 0.0

    def read(self, response: str, gold: str) -> Extraction:
        """The window in which the official scorer looks: three pieces longer than the reference."""
        size = len(gold.split()) + 3
        text = self.reference(response)
        for piece in _LEFT_OUT:
            text = text.replace(piece, "")
        # re.split keeps an empty piece for a leading or trailing blank, as the official split does
        if MARK in text:
            pieces = re.split(r"\s+", text.split(MARK)[-1])[:size]
        else:
            pieces = re.split(r"\s+", text)[-size:]
        window = " ".join(pieces)
        return Extraction(window, parsed=bool(window.strip()))

    def reference(self, gold: str) -> str:
        """The printed output in the form in which responses are searched for it."""
        text = re.sub(r"\s+", " ", gold)
        for piece in (",", "'", "\\", ".0"):
            text = text.replace(piece, "")
        return text.replace("] [", "][").replace("[ [", "[[").replace("] ]", "]]")


TASK = ClosedTask(
    key="codeu",
    title="CodeU",
    place=5,
    file=PublishedFile(
        name="codeU.jsonl",
        documents=90,
        questions=90,
        git_blob="eeb7995451645f5a43229162841ef6f5aa1b2d2a",
    ),
    system_prompt=(
        "Now you are given a code base consisting of a large amount of functions and the "
        "corresponding comments. In the end, I will call some functions defined in the code base. "
        "Please carefully read these codes and comments and answer the question."
    ),
    form="steps",
    rule=PrintedOutput(),
    truncation="left",
    own_clusters=True,
    in_group=True,
)
