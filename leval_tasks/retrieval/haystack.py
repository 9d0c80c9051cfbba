"""The text in which needles are hidden: its sentences or lines, and how many tokens they have."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Any

from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import RetrievalSettings, read_metadata
from leval_tasks.perplexity.corpora import (
    JSONL,
    PYDOCS,
    PYSOURCE,
    described_python,
    file_of_corpus,
    language_reference,
    own_file,
    standard_library,
)
from leval_tasks.perplexity.documents import Encode
from leval_tasks.retrieval.needles import DRAWN, NEEDLE, Question
from resonance_vllm.common.errors import SettingError

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The line that RULER's simplest haystack repeats."""

BETWEEN_SENTENCES = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s(?=["'(\[]?[A-Z0-9])""")
"""The blank between two sentences of text whose white space is single blanks."""

LONGEST_SENTENCE = 60
"""Words after which a sentence is divided: text without full stops has places for needles, too."""

CHARACTERS_PER_TOKEN = 5
"""Of a text that is probably long enough; where it is not, more is read."""

LINE_BREAK = "\n"
BLANK = " "


@dataclass(frozen=True)
class Haystack:
    """A text that is divided where needles can be inserted.

    Attributes:
        pieces: its sentences or lines.
        joiner: text between two pieces: a blank between sentences, a line break between lines.
        token_ends: for each piece, the tokens from the beginning of the text to its end.
    """

    pieces: Sequence[str]
    joiner: str
    token_ends: Sequence[int]

    def pieces_within(self, tokens: int) -> int:
        """Return how many whole pieces the first `tokens` tokens hold."""
        return bisect_right(self.token_ends, tokens)

    def with_needles(self, question: Question, number: int) -> str:
        """Return the first `number` pieces with the needles of a question at their depths."""
        placed = [
            (int(number * (needle.depth / 100)), question.sentence(needle))
            for needle in question.needles
        ]
        return insert(self.pieces[:number], placed, self.joiner)


def insert(pieces: Sequence[str], placed: Sequence[tuple[int, str]], joiner: str) -> str:
    """Return a text with sentences inserted, character by character as RULER does.

    Args:
        pieces: sentences or lines of the text.
        placed: piece before which a sentence is inserted, and the sentence, in ascending order.
        joiner: text between two pieces.
    """
    parts: list[str] = []
    start = 0
    for position, sentence in [*placed, (len(pieces), None)]:
        # RULER joins sentences with a blank even where nothing is before it
        if position > start or joiner == BLANK:
            parts.append(joiner.join(pieces[start:position]))
        if sentence is not None:
            parts.append(sentence)
        start = position
    return joiner.join(parts)


def read_haystack(
    settings: RetrievalSettings, encode: Encode, longest: int
) -> tuple[Haystack, dict[str, Any]]:
    """Return the haystack of a run, and the description of its data.

    Args:
        settings: where the text comes from, and what the sentences of `needles` are about.
        encode: tokenizes a text.
        longest: tokens that the haystack needs at least.

    Raises:
        DataError: a file is missing or damaged, or the text is too short.
        SettingError: `file` does not exist, or `haystack` is given, too.
    """
    if settings.file and "haystack" in settings.model_fields_set:
        raise SettingError(
            f"file: the haystack is set to {settings.haystack!r}; give either file or haystack"
        )
    name = JSONL if settings.file else settings.haystack
    pieces, joiner, data = _pieces_of(name, settings)
    return divided(pieces, joiner, encode, longest, name), data


def _pieces_of(name: str, settings: RetrievalSettings) -> tuple[Iterable[str], str, dict[str, Any]]:
    """Return the pieces of a haystack, the text between them, and the description of its data."""
    if name in MADE:
        return MADE[name](settings), LINE_BREAK, {"source": name}
    if name == PYSOURCE:
        files, data = standard_library()
        return lines(file.text for file in files), LINE_BREAK, data
    if name == PYDOCS:
        text, digest = language_reference()
        return lines([text]), LINE_BREAK, described_python("pydoc_data.topics", digest)
    if name == JSONL:
        documents, data = own_file(settings.file)
    else:
        documents, data = file_of_corpus(name, settings.data_dir)
    return sentences(document.text for document in documents), BLANK, data


def _noise(settings: RetrievalSettings) -> Iterator[str]:
    """Yield one line for ever."""
    return repeat(NOISE)


def _other_needles(settings: RetrievalSettings) -> Iterator[str]:
    """Yield needles that nobody asks for, for ever."""
    rng = Random(f"{settings.seed}/haystack")
    while True:
        key = DRAWN[settings.key_type](rng)
        value = DRAWN[settings.value_type](rng)
        yield NEEDLE.format(kind=settings.value_type, key=key, value=value)


MADE: Mapping[str, Callable[[RetrievalSettings], Iterator[str]]] = {
    "noise": _noise,
    "needles": _other_needles,
}
"""Haystack that needs no text -> the function that makes its lines."""


def haystack_file(metadata: Mapping[str, Any]) -> str | None:
    """Return the file of a corpus that a needle grid reads; None where it reads none of `data_dir`.

    The text of Python counts as a file, as for the other tasks on running text.
    """
    settings = read_metadata(RetrievalSettings, metadata)
    if settings.file or settings.haystack in MADE:
        return None
    return f"{settings.haystack}.jsonl"


def lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of texts, one text after the other."""
    for text in texts:
        yield from text.split(LINE_BREAK)


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of texts in which all white space has become single blanks."""
    for text in texts:
        for sentence in BETWEEN_SENTENCES.split(" ".join(text.split())):
            words = sentence.split(" ")
            for start in range(0, len(words), LONGEST_SENTENCE):
                yield " ".join(words[start : start + LONGEST_SENTENCE])


def divided(
    pieces: Iterable[str], joiner: str, encode: Encode, longest: int, name: str
) -> Haystack:
    """Return a haystack of at least `longest` tokens from the first of some pieces.

    Raises:
        DataError: all pieces together have fewer tokens.
    """
    remaining = iter(pieces)
    taken: list[str] = []
    characters = 0
    enough = CHARACTERS_PER_TOKEN * longest
    while True:
        is_exhausted = True
        for piece in remaining:
            taken.append(piece)
            characters += len(piece) + len(joiner)
            if characters >= enough:
                is_exhausted = False
                break
        _, ends = encode(joiner.join(taken))
        if len(ends) >= longest:
            return Haystack(taken, joiner, _token_ends(taken, joiner, ends))
        if is_exhausted:
            raise DataError(
                f"haystack: {name} has {len(ends)} tokens, and the longest context_length needs "
                f"{longest}; use a shorter one or a longer text, such as pysource"
            )
        enough *= 2


def _token_ends(pieces: Sequence[str], joiner: str, ends: Sequence[int]) -> list[int]:
    """Return for each piece how many tokens end before or at its end.

    Args:
        pieces: of the text.
        joiner: text between two pieces.
        ends: for each token of the text, the character at which it ends.
    """
    tokens: list[int] = []
    characters = 0
    for piece in pieces:
        characters += len(piece)
        tokens.append(bisect_right(ends, characters))
        characters += len(joiner)
    return tokens
