"""How responses become scores: what every rule shares.

The comparison and the rules reproduce the scorer at `OpenLMLab/LEval` cd34b050 (2024-07-09) to the
digit, quirks included: they decide published numbers. A judgement also says whether an answer was
read from the response or only assumed, which the official scorer does not tell.
"""

import math
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

LETTERS = "ABCD"
PARTIAL_CREDIT = 0.25
PROMPT_TAIL = 100
"""Characters at a prompt's end in which a chat template opens the answer."""
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Extraction:
    """What is made of a response: the text that the official comparison sees.

    `parsed` is False where the response held no answer, so that `answer` is empty, an error mark or
    the scorer's fallback "A".
    """

    answer: str
    parsed: bool


@dataclass(frozen=True)
class Judgement:
    """What one response is worth.

    Attributes:
        score: official score, a fraction 0..1.
        strict: the same, but 0 where an answer was not read from the response.
        parsed: whether every answer was read from the response.
        answer: the extracted answer, for people to read.
        parts: scores of the parts by name (SFiction).
    """

    score: float
    strict: float
    parsed: bool
    answer: str
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Full score, and for an answer that was really given."""
        return self.parsed and self.score == 1.0


@dataclass(frozen=True)
class Summary:
    """Scores of a whole task of `n` responses, fractions 0..1; `unparsed` counts responses."""

    n: int
    exact_match: float
    exact_match_strict: float
    unparsed: int
    parts: dict[str, float]


class Rule(ABC):
    """How one task's responses are read, compared and summed up.

    Attributes:
        parts: further metrics by name, fractions of which more is better.
        guess: how one would guess, for the note on chance: a phrase before `for QuALITY (25%)`, or
            a whole sentence with `{title}` where chance depends on the references.
        guess_score: expected official score of a guess, a fraction; None where undefined, or where
            it depends on the references.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    guess: ClassVar[str] = ""
    guess_score: ClassVar[float | None] = None

    @abstractmethod
    def read(self, response: str, gold: str) -> Extraction:
        """The answer in one response; `gold` is the raw reference, whose form some rules need."""

    def reference(self, gold: str) -> str:
        """The reference in the form that is compared."""
        return gold

    def chance(self, golds: Sequence[str]) -> float | None:
        """Expected official score of a reader who guesses, a fraction; None where undefined."""
        return self.guess_score

    def join(self, responses: Sequence[str]) -> str:
        """What is judged, from a question's responses, one a prompt."""
        return responses[0]

    def judge(self, response: str, gold: str) -> Judgement:
        """Score one response against the raw reference."""
        answer = self.read(response, gold)
        score = compare(answer.answer, self.reference(gold))
        return Judgement(score, score if answer.parsed else 0.0, answer.parsed, answer.answer)

    def parts_of(self, judged: Judgement, number: int) -> Mapping[str, float | None]:
        """Each of `parts` for the question of this number (from 0); None where it has none."""
        return judged.parts

    def summarise(
        self, judged: Sequence[Judgement], numbers: Sequence[int] | None = None
    ) -> Summary:
        """Task score of judgements; `numbers` are their places in the file where some are missing.

        Raises:
            ValueError: there are no judgements.
        """
        if not judged:
            raise ValueError("There is nothing to score: no responses.")
        numbers = range(len(judged)) if numbers is None else numbers
        rows = [self.parts_of(each, at) for at, each in zip(numbers, judged, strict=True)]
        known = {name: [v for row in rows if (v := row[name]) is not None] for name in self.parts}
        have = [parts_known(row) for row in rows]
        return Summary(
            len(judged),
            mean_of_parts([each.score for each in judged], have),
            mean_of_parts([each.strict for each in judged], have),
            sum(not each.parsed for each in judged),
            {name: mean(values) for name, values in known.items() if values},
        )


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value, the same on every Python: 3.12 adds otherwise."""
    return math.fsum(values) / len(values)


def parts_known(row: Mapping[str, float | None]) -> tuple[str, ...]:
    """The parts that a question has."""
    return tuple(name for name, value in row.items() if value is not None)


def mean_of_parts(values: Sequence[float], have: Sequence[tuple[str, ...]]) -> float:
    """Mean of a score in which every part weighs the same, however many questions have it.

    Args:
        values: a score a question.
        have: the parts that each question has; none where a rule knows no parts.
    """
    by_part: dict[str, list[float]] = {}
    for value, names in zip(values, have, strict=True):
        for name in names:
            by_part.setdefault(name, []).append(value)
    if len({len(each) for each in by_part.values()}) < 2:
        return mean(values)
    return mean([mean(each) for each in by_part.values()])


def compare(prediction: str, reference: str) -> float:
    """Official score of an extracted prediction against an extracted reference: 0, 0.25 or 1."""
    p, g = _normalise(prediction), _normalise(reference)
    if all(c in LETTERS for c in g):
        if p == g:
            return 1.0
        return PARTIAL_CREDIT if all(c in g for c in p) else 0.0
    x, y = _as_float(prediction), _as_float(reference)
    if x is not None and y is not None:
        return float(x == y)
    return float(_squeeze(reference) in _squeeze(prediction))


def _normalise(text: str) -> str:
    """Without ASCII punctuation and the words a, an, the; blanks collapsed, case kept."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.translate(_DROP_PUNCTUATION)).split())


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _squeeze(text: str) -> str:
    return text.lower().replace(" ", "")


def remove_thinking(response: str, end_mark: str, *, opened: bool = False) -> tuple[str, bool]:
    """Drop what a reasoning model thinks before it answers; an empty mark keeps everything.

    `opened` is whether the prompt has opened the thinking already, see `opens_thinking`.

    Returns:
        The text after the last mark without leading blanks, and whether anything was removed. A
        response whose thinking is open and never ends holds no answer: all of it is removed.
    """
    if thinking_unfinished(response, end_mark, opened=opened):
        return "", True
    if end_mark and end_mark in response:
        return response.rsplit(end_mark, 1)[1].lstrip(), True
    return response, False


def thinking_unfinished(response: str, end_mark: str, *, opened: bool = False) -> bool:
    """Whether a response thinks to its end: the generation limit came before the answer.

    It may have thought and spoken before: what begins at the start of a line behind the last end
    is another thinking.
    """
    if not end_mark:
        return False
    mark, (_, ended, rest) = _open_mark(end_mark), response.rpartition(end_mark)
    if opened and not ended:
        return True
    begins = r"(^|\n)\s*" if ended else r"\A\s*"
    return bool(mark) and re.search(begins + re.escape(mark), rest) is not None


def opens_thinking(prompt: str, end_mark: str) -> bool:
    """Whether a prompt's last words open the thinking, as some chat templates do for the model."""
    mark, tail = _open_mark(end_mark), prompt[-PROMPT_TAIL:]
    return bool(mark) and tail.rfind(mark) > tail.rfind(end_mark)


THINKING = {
    "</think>": "<think>",
    "</thinking>": "<thinking>",
    "</thought>": "<thought>",
    "</seed:think>": "<seed:think>",
    "[/THINK]": "[THINK]",
    "◁/think▷": "◁think▷",
    "<|END_THINKING|>": "<|START_THINKING|>",
    "<|end_of_thought|>": "<|begin_of_thought|>",
    "<|channel|>final<|message|>": "<|channel|>analysis<|message|>",
}
"""What ends thinking, and what begins it, in the templates of published models."""


def _open_mark(end_mark: str) -> str:
    """`<think>` for `</think>`; empty where a mark has no such twin."""
    mark = end_mark.replace("/", "", 1)
    return THINKING.get(end_mark, "" if mark == end_mark else mark)
