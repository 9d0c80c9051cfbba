"""Multiple choice: which letters a response chooses, by the official scorer's rules."""

import re

from leval_tasks.closed.rules import LETTERS, Extraction, Rule

SYSTEM_ONE_LETTER = (
    "Now you are given a very long document. Please follow the instruction based on this "
    "document. For multi-choice questions, there is only a sinlge correct option. Please only "
    "provide the letter corresponding to the answer (like A or B) when answering. For other "
    "questions, please directly give the concise and accurate answer. "
)


class OneLetter(Rule):
    """One letter of A to D is right; the reference is `B` or `(B) option text`."""

    guess = "one of four letters"
    guess_score = 1 / len(LETTERS)

    def read(self, response: str, gold: str) -> Extraction:
        """The chosen letter."""
        return read_letters(response, several=False)

    def reference(self, gold: str) -> str:
        """The reference's letter."""
        return letters_of(gold)


def letters_of(gold: str) -> str:
    """Letters of a multiple-choice reference such as `ACD` or `(B) option text`."""
    pieces = gold.split()
    return _keep_letters(pieces[0] if pieces else "") or "A"


def read_letters(response: str, *, several: bool) -> Extraction:
    """Letters that a multiple-choice response chooses.

    Where not `several` may be right, the first capital A to D anywhere counts, even inside a word.
    """
    if not response.strip():
        return Extraction("None", parsed=False)
    if response in LETTERS:
        return Extraction(response, parsed=True)
    if not several:
        first = next((c for c in response if c in LETTERS), None)
        if first:
            return Extraction(first, parsed=True)
    rest = response.lstrip(LETTERS)
    prefix = response[: len(response) - len(rest)]
    if len(prefix) > 1:
        return Extraction("".join(sorted(set(prefix))), parsed=True)
    rest = rest.split("Question", 1)[0]
    marked = re.findall(r"[A-Z](?=[\s.)])", rest)
    answer = "".join(sorted(set(_keep_letters(prefix + "".join(marked)))))
    if answer:
        return Extraction(answer, parsed=True)
    run = re.search(r"[A-D]+", rest)
    if run:
        return Extraction(run.group(), parsed=True)
    return Extraction("A", parsed=False)


def _keep_letters(text: str) -> str:
    return "".join(c for c in text if c in LETTERS)
