"""What is hidden in a haystack, how it is asked for, and when it counts as found.

Sentences, questions, numbers of needles and the rule of the score are those of RULER (Hsieh et al.
2024), as lm-eval 0.4.13 has them in `lm_eval/tasks/ruler`. From the same state of a random
generator this module draws what lm-eval draws there.
"""

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

from resonance_vllm.common.errors import RunError

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
"""The sentence that is hidden; `kind` is `numbers`, `words` or `uuids`."""

ASK_FOR_ONE = (
    "A special magic {one} is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the {one} afterwards.\n{context}\nWhat is the special magic {one} for {query} "
    "mentioned in the provided text?"
)
ASK_FOR_SEVERAL = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} "
    "for {query} mentioned in the provided text?"
)
ANSWER_FOR_ONE = "The special magic {one} for {query} mentioned in the provided text is"
ANSWER_FOR_SEVERAL = "The special magic {kind} for {query} mentioned in the provided text are"
"""What the answer begins with, so that it is given at once."""

GRID = tuple(round(number * 100 / 39) for number in range(40))
"""RULER's 40 depths, percent, from which those of further needles are drawn."""

ORDER_SEED = 42
"""Seed of the order of several needles, which RULER fixes."""


@dataclass(frozen=True)
class Variant:
    """How many needles are hidden and asked for.

    Attributes:
        keys: keys that are hidden.
        values: values of each key, one needle for each.
        queries: keys that are asked for.
    """

    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def needles(self) -> int:
        """Return the number of needles in the haystack."""
        return self.keys * self.values

    @property
    def several(self) -> bool:
        """Return whether more than one value is asked for."""
        return self.queries * self.values > 1


VARIANTS: Mapping[str, Variant] = {
    "single": Variant(),
    "multikey": Variant(keys=4),
    "multivalue": Variant(values=4),
    "multiquery": Variant(keys=4, queries=4),
}
"""The kinds of needle tasks in RULER."""


@dataclass(frozen=True)
class Needle:
    """One hidden value.

    Attributes:
        key: what it is named by.
        value: what is to be retrieved.
        depth: its place in the haystack, percent.
    """

    key: str
    value: str
    depth: int


@dataclass(frozen=True)
class Question:
    """What is hidden in a prompt, and what is asked.

    Attributes:
        kind: `numbers`, `words` or `uuids`: what the values are.
        needles: what is hidden, from the beginning of the haystack to its end.
        queries: keys that are asked for.
        values: values of these keys, which the answer has to contain.
    """

    kind: str
    needles: tuple[Needle, ...]
    queries: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def query(self) -> str:
        """Return the keys as the question names them."""
        if len(self.queries) == 1:
            return self.queries[0]
        return f"{', '.join(self.queries[:-1])}, and {self.queries[-1]}"

    def sentence(self, needle: Needle) -> str:
        """Return the sentence that hides a needle."""
        return NEEDLE.format(kind=self.kind, key=needle.key, value=needle.value)

    def prompt(self, context: str) -> str:
        """Return the user's message around a haystack."""
        text = ASK_FOR_SEVERAL if len(self.values) > 1 else ASK_FOR_ONE
        return text.format(one=self.kind[:-1], kind=self.kind, query=self.query, context=context)

    @property
    def answer_prefix(self) -> str:
        """Return what the answer begins with."""
        text = ANSWER_FOR_SEVERAL if len(self.values) > 1 else ANSWER_FOR_ONE
        return text.format(one=self.kind[:-1], kind=self.kind, query=self.query)


class KeyWords(Sequence[str]):
    """The sorted words `adjective-noun` of all adjectives and nouns, as a list would have them.

    There are millions, so that a word is made when it is asked for. Words sort by their adjectives
    first. All words of an adjective are then the sorted nouns behind it, and only the number of
    them is needed. An exception are adjectives that continue another one (`well`, `well-known`):
    words of both are mixed, and are the only ones that are made and sorted here.

    Args:
        adjectives: in any order.
        nouns: in any order.
    """

    def __init__(self, adjectives: Iterable[str], nouns: Iterable[str]) -> None:
        self._nouns = sorted(set(nouns))
        # Sorted, the beginnings that continue another one follow it: together they are a group.
        groups: list[list[str]] = []
        for beginning in sorted({f"{adjective}-" for adjective in adjectives}):
            if groups and beginning.startswith(groups[-1][0]):
                groups[-1].append(beginning)
            else:
                groups.append([beginning])
        self._group_names = [group[0] for group in groups]
        """The shortest beginning of each group, `well-`, in the order of the words."""
        self._sorted_words = {
            group[0]: sorted({beginning + noun for beginning in group for noun in self._nouns})
            for group in groups
            if len(group) > 1
        }
        """Group of several beginnings -> all its words."""
        sizes = [len(self._sorted_words.get(name, self._nouns)) for name in self._group_names]
        self._starts = [0, *accumulate(sizes)]
        """Index of the first word of each group, and after them the number of all words."""

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return the word at an index."""
        group = bisect_right(self._starts, index) - 1
        name = self._group_names[group]
        within_group = index - self._starts[group]
        if name in self._sorted_words:
            return self._sorted_words[name][within_group]
        return name + self._nouns[within_group]


@cache
def key_words() -> KeyWords:
    """Return the words of RULER: every adjective of `wonderwords` with every noun, sorted.

    Raises:
        RunError: the package is not installed.
    """
    try:
        import wonderwords
    except ImportError as error:
        raise RunError(
            "retrieval_niah needs the package wonderwords, from which keys are drawn: pip install "
            "wonderwords"
        ) from error
    words = wonderwords.RandomWord()._categories
    return KeyWords(words["adjectives"], words["nouns"])


def _number(rng: Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _word(rng: Random) -> str:
    return str(rng.choice(key_words()))


def _uuid(rng: Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


DRAWN: Mapping[str, Callable[[Random], str]] = {"numbers": _number, "words": _word, "uuids": _uuid}
"""Kind of a key or value -> the function that draws one."""


def draw_question(variant: Variant, key_type: str, value_type: str, rng: Random) -> Question:
    """Draw keys, values, depths and queries, in the order in which lm-eval's RULER draws them.

    Args:
        variant: how many of each.
        key_type: `words` or `uuids`.
        value_type: `numbers`, `words` or `uuids`.
        rng: is advanced as lm-eval advances its own for a haystack of running text.
    """
    keys: list[str] = []
    values: list[list[str]] = []
    for _ in range(variant.keys):
        keys.append(DRAWN[key_type](rng))
        values.append([DRAWN[value_type](rng) for _ in range(variant.values)])
    pairs = [(key, value) for key, of_key in zip(keys, values, strict=True) for value in of_key]
    Random(ORDER_SEED).shuffle(pairs)
    depths = sorted(rng.sample(GRID, len(pairs)))
    queried = rng.sample(range(variant.keys), variant.queries)
    return Question(
        kind=value_type,
        needles=tuple(Needle(*pair, depth) for pair, depth in zip(pairs, depths, strict=True)),
        queries=tuple(keys[number] for number in queried),
        values=tuple(value for number in queried for value in values[number]),
    )


def move_needle(question: Question, value: str, depth: int) -> Question:
    """Return a question with the needle of one value at another depth, all others where they are."""
    needles = [
        Needle(needle.key, needle.value, depth) if needle.value == value else needle
        for needle in question.needles
    ]
    needles.sort(key=lambda needle: needle.depth)
    return Question(question.kind, tuple(needles), question.queries, question.values)


def is_found(value: str, response: str) -> bool:
    """Return whether a response contains a value, whatever the case of its letters."""
    return value.lower() in response.lower()


def share_found(values: Sequence[str], response: str) -> float:
    """Return the share of the values that a response contains: the score of RULER."""
    return sum(is_found(value, response) for value in values) / len(values)
