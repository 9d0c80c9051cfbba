"""Scores of responses: L-Eval's official rules, and the same without guesses.

The comparison and the extractions reproduce the official scorer to the digit. A response without
`[fact:` makes that scorer crash on SFiction; here its fact answer is unparsed and both parts
score 0.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from leval_tasks.closed import extract
from leval_tasks.errors import one_of

RULES = ("coursera", "gsm", "quality", "toefl", "codeu", "sfiction", "topic_retrieval")
PARTIAL_CREDIT = 0.25
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Judgement:
    """What one response is worth.

    Attributes:
        score: official score, a fraction 0..1 (SFiction: mean of its two answers).
        strict: the same, but 0 where an answer was not read from the response.
        parsed: whether every answer was read from the response.
        answer: the extracted answer, for people to read.
        parts: scores of the parts by name (SFiction: loyalty, factuality); empty for other tasks.
    """

    score: float
    strict: float
    parsed: bool
    answer: str
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def right(self) -> bool:
        """Full score, and for an answer that was really given."""
        return self.parsed and self.score == 1.0


def normalise(text: str) -> str:
    """Without ASCII punctuation and the words a, an, the; blanks collapsed, case kept."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.translate(_DROP_PUNCTUATION)).split())


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def compare(prediction: str, reference: str) -> float:
    """Official score of an extracted prediction against an extracted reference: 0, 0.25 or 1."""
    p, g = normalise(prediction), normalise(reference)
    if all(c in extract.LETTERS for c in g):
        if p == g:
            return 1.0
        return PARTIAL_CREDIT if all(c in g for c in p) else 0.0
    x, y = _as_float(prediction), _as_float(reference)
    if x is not None and y is not None:
        return float(x == y)
    return float(_squeeze(reference) in _squeeze(prediction))


def _squeeze(text: str) -> str:
    return text.lower().replace(" ", "")


def judge(rule: str, response: str, gold: str) -> Judgement:
    """Score one response.

    Args:
        rule: one of `RULES`.
        response: what the model wrote; for SFiction the stored form `X [fact: Y]`.
        gold: the raw reference answer.

    Raises:
        SettingError: an unknown rule.
    """
    one_of("rule", rule, RULES)
    if rule == "sfiction":
        return judge_sfiction(response, gold)
    if rule == "gsm":
        found, reference = extract.gsm(response), extract.gsm(gold).answer
    elif rule == "codeu":
        found, reference = extract.codeu(response, gold), extract.codeu_gold(gold)
    elif rule == "topic_retrieval":
        found, reference = extract.Extraction(response, bool(response.strip())), gold
    else:
        found = extract.choice(response, several=rule == "coursera")
        reference = extract.choice_gold(gold)
    score = compare(found.answer, reference)
    return Judgement(score, score if found.parsed else 0.0, found.parsed, found.answer)


def judge_sfiction(stored: str, gold: str) -> Judgement:
    """Score SFiction's loyalty and fact answers; the task's score is their mean."""
    loyalty_gold, fact_gold = (part.strip() for part in _two_parts(gold))
    loyalty_text, fact_text = extract.split_sfiction(stored)
    loyalty = extract.truth(loyalty_text)
    fact = extract.truth(fact_text or "")
    scores = (compare(loyalty.answer, loyalty_gold), compare(fact.answer, fact_gold))
    if fact_text is None:
        scores = (0.0, 0.0)
    mean = sum(scores) / 2
    return Judgement(
        mean,
        mean,
        loyalty.parsed and fact.parsed,
        f"{loyalty.answer}, {fact.answer}",
        (("loyalty", scores[0]), ("factuality", scores[1])),
    )


def _two_parts(gold: str) -> tuple[str, str]:
    loyalty, fact = extract.split_sfiction(gold)
    return loyalty, fact or ""


@dataclass(frozen=True)
class Summary:
    """Scores of a whole task; fractions 0..1.

    Attributes:
        n: number of responses.
        exact_match: official task score.
        exact_match_strict: the same without guesses.
        unparsed: how many responses held no answer.
        parts: further figures by name: loyalty and factuality, or first, second and third.
    """

    n: int
    exact_match: float
    exact_match_strict: float
    unparsed: int
    parts: dict[str, float]


TOPIC_POSITIONS = ("first", "second", "third")


def summarise(rule: str, judgements: Sequence[Judgement]) -> Summary:
    """Task score of judgements in file order (which tells topic retrieval's three groups).

    Raises:
        ValueError: there are no judgements.
    """
    if not judgements:
        raise ValueError("There is nothing to score: no responses.")
    parts: dict[str, float] = {}
    scores = [j.score for j in judgements]
    strict = [j.strict for j in judgements]
    exact, exact_strict = mean(scores), mean(strict)
    if rule == "topic_retrieval":
        groups = [g for g in (scores[i::3] for i in range(3)) if g]
        parts = {name: mean(g) for name, g in zip(TOPIC_POSITIONS, groups, strict=False)}
        exact = mean(list(parts.values()))
        exact_strict = mean([mean(g) for g in (strict[i::3] for i in range(3)) if g])
    elif rule == "sfiction":
        parts = {
            name: mean([dict(j.parts)[name] for j in judgements])
            for name in ("loyalty", "factuality")
        }
    unparsed = sum(not j.parsed for j in judgements)
    return Summary(len(judgements), exact, exact_strict, unparsed, parts)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)
