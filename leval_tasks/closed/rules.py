"""How responses are read, compared and scored: a rule for each kind of answer.

The comparison and the rules reproduce the scorer of `OpenLMLab/LEval` at cd34b050 (2024-07-09) to
the digit, quirks included: published numbers depend on them. Beyond the official score, a judgement
records whether an answer was read from the response or only assumed.
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
FACT_MARK = "[fact:"
FINAL_OUTPUT = "the final output"
EXCLUDED_PHRASES = (
    "will be",
    "of the code",
    "is",
    "would be",
    "the value of",
    "the result of",
    "printed",
)
DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Extraction:
    """The text that the official comparison sees, and whether it was read from the response."""

    answer: str
    parsed: bool


@dataclass(frozen=True)
class Judgement:
    """The official score of one response, from 0 to 1, and the extracted answer for people to read.

    `strict` is the score with 0 where an answer was not read from the response, `parsed` whether
    all were, `parts` the scores of the parts by name (SFiction).
    """

    score: float
    strict: float
    parsed: bool
    answer: str
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Return whether an answer that was read from the response has the full score."""
        return self.parsed and self.score == 1.0


class Rule(ABC):
    """How one task's responses are read and compared with the reference."""

    between: ClassVar[str] = ""
    """Text between the answers to two prompts in a prediction file."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Names of further metrics, fractions of which more is better."""
    guess_score: float | None = None
    """Expected official score of a guess; None where undefined or dependent on the references."""

    @abstractmethod
    def read(self, response: str, gold: str) -> Extraction:
        """Return the answer in one response; `gold` is the raw reference, whose form some rules need."""

    def reference(self, gold: str) -> str:
        """Return the reference in the form that is compared."""
        return gold

    def chance(self, golds: Sequence[str]) -> float | None:
        """Return the expected official score of a guess, a fraction; None where undefined."""
        return self.guess_score

    def join(self, responses: Sequence[str]) -> str:
        """Return the text that prediction files hold, from the responses to all prompts of a question."""
        return responses[0]

    def judge(self, response: str, gold: str) -> Judgement:
        """Score one response against the raw reference."""
        answer = self.read(response, gold)
        score = compare(answer.answer, self.reference(gold))
        return Judgement(score, score if answer.parsed else 0.0, answer.parsed, answer.answer)

    def part_scores(self, judged: Judgement, number: int) -> Mapping[str, float | None]:
        """Score of each of `parts`, or None, for question `number` (from 0) of a document."""
        return judged.parts


def compare(prediction: str, reference: str) -> float:
    """Return the official score of an extracted prediction against an extracted reference: 0, 0.25 or 1."""
    predicted = _normalise(prediction)
    expected = _normalise(reference)
    if all(letter in LETTERS for letter in expected):
        if predicted == expected:
            return 1.0
        some_of_them = all(letter in expected for letter in predicted)
        return PARTIAL_CREDIT if some_of_them else 0.0
    try:
        return float(float(prediction) == float(reference))
    except ValueError:
        return float(_squeeze(reference) in _squeeze(prediction))


def _normalise(text: str) -> str:
    """Return a text without ASCII punctuation and articles, with single blanks; the case is kept."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.translate(DROP_PUNCTUATION)).split())


def _squeeze(text: str) -> str:
    return text.lower().replace(" ", "")


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value, the same on every Python: 3.12 changed `sum`."""
    return math.fsum(values) / len(values)


class Letters(Rule):
    """Letters of A to D; the reference is `B`, `ACD` or `(B) option text`.

    Where `several` may be right, a part of them earns a quarter. Else the first capital A to D of a
    response counts, even inside a word.
    """

    def __init__(self, *, several: bool) -> None:
        self.several = several
        if not several:
            self.guess_score = 1 / len(LETTERS)

    def read(self, response: str, gold: str) -> Extraction:
        """Return the chosen letters, in the order in which the official scorer looks for them."""
        if not response.strip():
            return Extraction("None", parsed=False)
        if response in LETTERS:
            return Extraction(response, parsed=True)
        letters = _letters(response)
        if letters and not self.several:
            return Extraction(letters[0], parsed=True)
        rest = response.lstrip(LETTERS)
        prefix = response[: len(response) - len(rest)]
        if len(prefix) > 1:
            return Extraction("".join(sorted(set(prefix))), parsed=True)
        rest = rest.split("Question")[0]
        marked = re.findall(r"[A-Z](?=[\s.)])", rest)
        answer = "".join(sorted(set(_letters(prefix + "".join(marked)))))
        if answer:
            return Extraction(answer, parsed=True)
        run = re.search(r"[A-D]+", rest)
        if run is None:  # the official scorer assumes A
            return Extraction("A", parsed=False)
        return Extraction(run.group(), parsed=True)

    def reference(self, gold: str) -> str:
        """Return the letters of the reference's first word."""
        return _letters(gold.split()[0] if gold.strip() else "") or "A"

    def chance(self, golds: Sequence[str]) -> float | None:
        """Return the score of one of 15 sets at random, where several letters may be right.

        Of the sets, `2**n - 2` are proper parts of `n` right letters and earn a quarter.
        """
        if not self.several or not golds:
            return self.guess_score
        sizes = [len(set(self.reference(gold))) for gold in golds]
        return mean([(1 + PARTIAL_CREDIT * (2**size - 2)) / 15 for size in sizes])


def _letters(text: str) -> str:
    return "".join(c for c in text if c in LETTERS)


class LastNumber(Rule):
    """The number that a worked solution ends in; the reference is read by the same rule."""

    guess_score = 0.0

    def read(self, response: str, gold: str) -> Extraction:
        """Return the digits of the number."""
        stated = re.search(r"The answer is (\S+)", response)
        if stated:
            token = stated.group(1)
        else:
            pieces = response.split("\n\n")[0].split(" ")
            token = next((p for p in reversed(pieces) if any(map(str.isdigit, p))), "")
        # digits of every script, as the official scorer's `str.isdigit` takes them
        digits = "".join(filter(str.isdigit, token.split(".")[0]))
        return Extraction(digits, parsed=bool(digits))

    def reference(self, gold: str) -> str:
        """Return the digits of the reference."""
        return self.read(gold, gold).answer


class PrintedOutput(Rule):
    """The printed output of code anywhere in a window of the response."""

    guess_score = 0.0

    def read(self, response: str, gold: str) -> Extraction:
        """Return the window in which the official scorer looks: three pieces longer than the reference."""
        size = len(gold.split()) + 3
        text = self.reference(response)
        for piece in EXCLUDED_PHRASES:
            text = text.replace(piece, "")
        # re.split keeps an empty piece for a leading or trailing blank, as the official split does
        pieces = re.split(r"\s+", text.split(FINAL_OUTPUT)[-1])
        window = " ".join(pieces[:size] if FINAL_OUTPUT in text else pieces[-size:])
        return Extraction(window, parsed=bool(window.strip()))

    def reference(self, gold: str) -> str:
        """Return the printed output in the form in which responses are searched for it."""
        text = re.sub(r"\s+", " ", gold)
        for piece in (",", "'", "\\", ".0"):
            text = text.replace(piece, "")
        return text.replace("] [", "][").replace("[ [", "[[").replace("] ]", "]]")


class TrueTwice(Rule):
    """True or false, in the story and in our world; the score is the mean of both."""

    between = FACT_MARK
    parts = ("loyalty", "factuality")
    guess_score = 0.5

    def read(self, response: str, gold: str) -> Extraction:
        """Return `true` or `false` from one of the two answers, else the error mark."""
        for word in response.lower().split():
            for value in ("true", "false"):
                if value in word:
                    return Extraction(value, parsed=True)
        return Extraction("<error>", parsed=False)

    def join(self, responses: Sequence[str]) -> str:
        """Return the stored form of the two answers; a single text is in that form already."""
        if len(responses) == 1:
            return responses[0]
        loyalty, fact = responses
        return f"{loyalty} {FACT_MARK} {fact}]"

    def judge(self, response: str, gold: str) -> Judgement:
        """Score both answers of the stored form.

        Without `[fact:` the official scorer crashes; here both parts score 0.
        """
        answers = [self.read(text, gold) for text in _stored(response)]
        scores = [0.0, 0.0]
        if FACT_MARK in response.lower():
            pairs = zip(answers, _stored(gold), strict=True)
            scores = [compare(answer.answer, part.strip()) for answer, part in pairs]
        return Judgement(
            score=mean(scores),
            strict=mean(scores),
            parsed=all(answer.parsed for answer in answers),
            answer=", ".join(answer.answer for answer in answers),
            parts=dict(zip(self.parts, scores, strict=True)),
        )


def _stored(text: str) -> tuple[str, str]:
    """Return the loyalty text and the fact text of the stored form, without its last character, a `]`."""
    loyalty, *fact = text.lower().split(FACT_MARK)
    return loyalty, fact[0][:-1] if fact else ""


class TopicName(Rule):
    """The topic's name anywhere in the response; a guess has no chance level.

    The three questions about a conversation ask for its first, second and third topic in turn.
    """

    parts = ("first", "second", "third")

    def read(self, response: str, gold: str) -> Extraction:
        """Return the whole response."""
        return Extraction(response, bool(response.strip()))

    def part_scores(self, judged: Judgement, number: int) -> Mapping[str, float | None]:
        """Return the score at the position that the question asks for, None at the others."""
        scores: dict[str, float | None] = dict.fromkeys(self.parts)
        scores[self.parts[number % len(self.parts)]] = judged.score
        return scores
