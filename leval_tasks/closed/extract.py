"""From a model's response to its answer, by the rules of L-Eval's official scorer.

Every function here is one rule of the scorer at `OpenLMLab/LEval` cd34b050 (scorer of 2024-07-09),
quirks included: they decide published numbers. An `Extraction` also says whether the answer was
read from the response or only assumed, which the official scorer does not tell.
"""

import re
from dataclasses import dataclass

LETTERS = "ABCD"
FACT_MARK = "[fact:"


@dataclass(frozen=True)
class Extraction:
    """What is made of a response.

    Attributes:
        answer: the text that the official comparison sees.
        parsed: False where the response held no answer, so that `answer` is empty, an error mark
            or the scorer's fallback "A".
    """

    answer: str
    parsed: bool


def _keep_letters(text: str) -> str:
    return "".join(c for c in text if c in LETTERS)


def choice_gold(gold: str) -> str:
    """Letters of a multiple-choice reference such as `ACD` or `(B) option text`."""
    pieces = gold.split()
    return _keep_letters(pieces[0] if pieces else "") or "A"


def choice(response: str, *, several: bool) -> Extraction:
    """Letters that a multiple-choice response chooses.

    Args:
        response: what the model wrote.
        several: Coursera, where more than one letter may be right; otherwise the first capital
            A to D anywhere counts, even inside a word.
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


def gsm(response: str) -> Extraction:
    """Digits of the number that a worked solution ends in; the same rule reads the reference."""
    stated = re.search(r"The answer is (\S+)", response)
    if stated:
        token = stated.group(1)
    else:
        pieces = response.split("\n\n", 1)[0].split(" ")
        token = next((p for p in reversed(pieces) if re.search(r"[0-9]", p)), "")
    digits = re.sub(r"[^0-9]", "", token.split(".", 1)[0])
    return Extraction(digits, parsed=bool(digits))


def _codeu_clean(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    for piece in (",", "'", "\\", ".0"):
        text = text.replace(piece, "")
    return text.replace("] [", "][").replace("[ [", "[[").replace("] ]", "]]")


def codeu_gold(gold: str) -> str:
    """The output that the code prints, in the form in which responses are searched for it."""
    return _codeu_clean(gold)


def codeu(response: str, gold: str) -> Extraction:
    """The window of a response in which the official scorer looks for the printed output.

    Args:
        response: what the model wrote.
        gold: the raw reference; the window is three pieces longer than it.
    """
    size = len(gold.split()) + 3
    text = _codeu_clean(response)
    for piece in (
        "will be",
        "of the code",
        "is",
        "would be",
        "the value of",
        "the result of",
        "printed",
    ):
        text = text.replace(piece, "")
    mark = "the final output"
    # re.split keeps an empty piece for a leading or trailing blank, as the official split does
    if mark in text:
        pieces = re.split(r"\s+", text.split(mark)[-1])[:size]
    else:
        pieces = re.split(r"\s+", text)[-size:]
    window = " ".join(pieces)
    return Extraction(window, parsed=bool(window.strip()))


def truth(part: str) -> Extraction:
    """`true` or `false` from one of SFiction's two answers, else the error mark."""
    for word in part.lower().split():
        for value in ("true", "false"):
            if value in word:
                return Extraction(value, parsed=True)
    return Extraction("<error>", parsed=False)


def join_sfiction(loyalty: str, fact: str) -> str:
    """The stored form of SFiction's two answers."""
    return f"{loyalty} [fact: {fact}]"


def split_sfiction(stored: str) -> tuple[str, str | None]:
    """Loyalty text and fact text of the stored form, lower-cased.

    The fact text loses its last character, meant to be the bracket. It is None where the stored
    form has no `[fact:`, where the official scorer crashes.
    """
    parts = stored.lower().split(FACT_MARK)
    return parts[0], parts[1][:-1] if len(parts) > 1 else None


def remove_thinking(response: str, end_mark: str) -> tuple[str, bool]:
    """Drop what a reasoning model thinks before it answers.

    Args:
        response: what the model wrote.
        end_mark: what ends its thinking, such as `</think>`; empty keeps everything.

    Returns:
        The text after the last mark without leading blanks, and whether anything was removed. A
        response that opens its thinking and never ends it holds no answer: all of it is removed.
    """
    if not end_mark:
        return response, False
    if end_mark in response:
        return response.rsplit(end_mark, 1)[1].lstrip(), True
    open_mark = end_mark.replace("/", "", 1)
    if open_mark != end_mark and response.lstrip().startswith(open_mark):
        return "", True
    return response, False
