"""The text in which needles are hidden: its sentences or lines, and how many tokens they have."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from random import Random
from typing import Any, NamedTuple

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
from leval_tasks.perplexity.documents import encoder
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


class Stretch(NamedTuple):
    """A part of a haystack's text without needles.

    Attributes:
        start: its first character.
        end: the character after its last one.
    """

    start: int
    end: int


@dataclass(frozen=True)
class Haystack:
    """A text that is divided where needles can be inserted.

    Attributes:
        pieces: its sentences or lines.
        joiner: text between two pieces: a blank between sentences, a line break between lines.
        tokens: for each token of the text, the character at which it ends.
    """

    pieces: Sequence[str]
    joiner: str
    tokens: Sequence[int]

    @cached_property
    def text(self) -> str:
        """Return the pieces as one text."""
        return self.joiner.join(self.pieces)

    @cached_property
    def piece_ends(self) -> Sequence[int]:
        """Return for each piece the character of the text at which it ends."""
        ends = array("q")
        characters = 0
        for piece in self.pieces:
            characters += len(piece)
            ends.append(characters)
            characters += len(self.joiner)
        return ends

    @cached_property
    def token_ends(self) -> Sequence[int]:
        """Return for each piece the tokens from the beginning of the text to its end."""
        return [bisect_right(self.tokens, end) for end in self.piece_ends]

    def pieces_within(self, tokens: int) -> int:
        """Return how many whole pieces the first `tokens` tokens hold."""
        return bisect_right(self.token_ends, tokens)

    def with_needles(self, question: Question, number: int) -> str:
        """Return the first `number` pieces with the needles of a question at their depths."""
        parts = []
        for part in self.parts(question, number):
            if isinstance(part, Stretch):
                parts.append(self.text[part.start : part.end])
            else:
                parts.append(part)
        return "".join(parts)

    def parts(self, question: Question, number: int) -> Iterator[str | Stretch]:
        """Yield what `with_needles` puts together: stretches of the text, and what is between them."""
        placed = [
            (int(number * (needle.depth / 100)), question.sentence(needle))
            for needle in question.needles
        ]
        is_first = True
        for part in between(number, placed, self.joiner):
            if not is_first:
                yield self.joiner
            is_first = False
            if isinstance(part, str):
                yield part
            elif part:
                last = part[-1]
                start = self.piece_ends[part[0]] - len(self.pieces[part[0]])
                yield Stretch(start, self.piece_ends[last])


def between(number: int, placed: Sequence[tuple[int, str]], joiner: str) -> Iterator[range | str]:
    """Yield runs of pieces, as RULER divides them, and the sentences between them.

    Args:
        number: pieces of the text.
        placed: piece before which a sentence is inserted, and the sentence, in ascending order.
        joiner: text between two pieces, and between what is yielded.
    """
    start = 0
    for position, sentence in [*placed, (number, None)]:
        # RULER joins sentences with a blank even where nothing is before it
        if position > start or joiner == BLANK:
            yield range(start, position)
        if sentence is not None:
            yield sentence
        start = position


def read_haystack(
    settings: RetrievalSettings, tokenizer: Any, longest: int
) -> tuple[Haystack, dict[str, Any]]:
    """Return the haystack of a run, and the description of its data.

    Args:
        settings: where the text comes from, and what the sentences of `needles` are about.
        tokenizer: the model's.
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
    return divided(pieces, joiner, tokenizer, longest, name), data


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
    pieces: Iterable[str], joiner: str, tokenizer: Any, longest: int, name: str
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
        tokens = tokenized(tokenizer, joiner.join(taken))
        if len(tokens) >= longest:
            return Haystack(taken, joiner, tokens)
        if is_exhausted:
            raise DataError(
                f"haystack: {name} has {len(tokens)} tokens, and the longest context_length needs "
                f"{longest}; use a shorter one or a longer text, such as pysource"
            )
        enough *= 2


@lru_cache(maxsize=2)
def tokenized(tokenizer: Any, text: str) -> Sequence[int]:
    """Return for each token of a text the character at which it ends.

    A million tokens take seconds. The tasks of a run, and the runs of a model, have one haystack.
    """
    _, ends = encoder(tokenizer)(text)
    return array("q", ends)
