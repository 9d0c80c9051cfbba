"""Documents of running text: how they are read, compared, drawn and cut to length."""

import hashlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import TextSettings
from leval_tasks.common.model import tokenize_with_offsets

logger = logging.getLogger(__name__)

WORDS = 8
"""Words in the sequences by which paragraphs are compared."""

Encode = Callable[[str], tuple[list[int], list[int]]]
"""Text -> ids of its tokens without special tokens, and the character at which each token ends."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document before tokenization.

    Attributes:
        name: its name in results and reports.
        text: the whole text.
    """

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Return the hex digest of the text in UTF-8."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """A document in the model's own tokens.

    Attributes:
        document_id: its name in results and reports.
        text: a text that begins where the first token begins.
        tokens: ids of the tokens, without special tokens.
        ends: for each token, the character of `text` at which it ends.
    """

    document_id: str
    text: str
    tokens: list[int]
    ends: list[int]

    def scored_text(self, start: int, end: int) -> str:
        """Return the text of the tokens `start` to `end - 1`."""
        first_character = self.ends[start - 1] if start else 0
        return self.text[first_character : self.ends[end - 1]]


class DocumentRow(BaseModel):
    """A line of a JSON-lines file of documents. Further fields are allowed and ignored."""

    model_config = ConfigDict(strict=True)

    text: str


def encoder(tokenizer: Any) -> Encode:
    """Return a function that tokenizes a text with a model's fast tokenizer."""

    def encode(text: str) -> tuple[list[int], list[int]]:
        ids, offsets = tokenize_with_offsets(tokenizer, text)
        return ids, [end for _, end in offsets]

    return encode


def draw(
    documents: Iterable[Document],
    encode: Encode,
    settings: TextSettings,
    least: int,
    longest: int | None,
) -> list[DocumentTokens]:
    """Draw `num_docs` documents at random from those that are long enough.

    Empty documents and repeated ones are excluded first. The others are visited in one seeded order
    until enough are found. This draws uniformly from the long enough documents without tokenizing
    all of them.

    Args:
        documents: all documents of a corpus.
        encode: tokenizes a text.
        settings: `num_docs` and `seed`.
        least: tokens that a document needs.
        longest: tokens to which a document is cut; None keeps all.

    Returns:
        the drawn documents, in the order of the corpus.

    Raises:
        DataError: no document is long enough.
    """
    candidates = _in_seeded_order(documents, settings.seed)
    most_tokens = 0
    drawn: dict[int, DocumentTokens] = {}
    for place, document in candidates:
        if len(drawn) == settings.num_docs:
            break
        tokens, ends = encode(document.text)
        most_tokens = max(most_tokens, len(tokens))
        if len(tokens) >= least:
            drawn[place] = DocumentTokens(
                document.name, document.text, tokens[:longest], ends[:longest]
            )
    if not drawn:
        raise DataError(
            f"none of {len(candidates)} documents has the {least} tokens that the longest context "
            f"needs; the longest has {most_tokens}. Use a shorter context_length or longer documents"
        )
    _warn_of_few(len(drawn), settings.num_docs, f"{least} tokens")
    return [drawn[place] for place in sorted(drawn)]


def draw_texts(documents: Iterable[Document], settings: TextSettings, size: int) -> list[Document]:
    """Draw `num_docs` documents of `size` characters at random, whatever their tokens are.

    As `draw` does, but long enough is what has the characters, so that every tokenizer gets the same
    documents.

    Args:
        documents: all documents of a corpus, which are cut to the size.
        settings: `num_docs` and `seed`.
        size: characters of a document; shorter ones are excluded.

    Returns:
        the drawn documents, in the order of the corpus; empty if none is long enough.
    """
    long_enough = [document for document in documents if len(document.text) >= size]
    cut = [Document(document.name, document.text[:size]) for document in long_enough]
    chosen = dict(_in_seeded_order(cut, settings.seed)[: settings.num_docs])
    if chosen:
        _warn_of_few(len(chosen), settings.num_docs, f"{size} characters")
    return [chosen[place] for place in sorted(chosen)]


def _in_seeded_order(documents: Iterable[Document], seed: int) -> list[tuple[int, Document]]:
    """Return documents in one random order, each after its place, without empty ones and copies."""
    candidates = list(enumerate(_without_copies(documents)))
    random.Random(seed).shuffle(candidates)
    return candidates


def _warn_of_few(drawn: int, asked: int, least: str) -> None:
    """Warn where fewer documents are read than were asked for."""
    if drawn < asked:
        logger.warning(
            "%d of num_docs=%d documents are read: the others are empty, copies, or shorter than %s",
            *(drawn, asked, least),
        )


def _without_copies(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents that are not empty and repeat no earlier one, up to white space around them."""
    seen: set[str] = set()
    for document in documents:
        stripped = document.text.strip()
        if stripped and stripped not in seen:
            seen.add(stripped)
            yield document


def draw_pieces(
    text: Document, encode: Encode, settings: TextSettings, size: int
) -> list[DocumentTokens]:
    """Draw `num_docs` disjoint pieces of one long text at random.

    Args:
        text: the text, which is divided into pieces of equal length.
        encode: tokenizes a text.
        settings: `num_docs` and `seed`.
        size: tokens in a piece.

    Returns:
        the pieces in the order of the text, named after the text and their first token.

    Raises:
        DataError: the text is shorter than one piece.
    """
    tokens, ends = encode(text.text)
    starts = range(0, len(tokens) - size + 1, size)
    if not starts:
        raise DataError(
            f"{text.name} has {len(tokens)} tokens, fewer than one document of {size}; use a shorter "
            "context_length or a longer corpus, such as pysource"
        )
    number = min(settings.num_docs, len(starts))
    if number < settings.num_docs:
        logger.warning("%s has %d documents of %d tokens, fewer than num_docs=%d",
                       *(text.name, number, size, settings.num_docs))  # fmt: skip
    drawn = sorted(random.Random(settings.seed).sample(starts, number))
    return [_piece(text, tokens, ends, start, size) for start in drawn]


def _piece(
    text: Document, tokens: Sequence[int], ends: Sequence[int], start: int, size: int
) -> DocumentTokens:
    """Return `size` tokens of a text from the token `start` on."""
    end = start + size
    first_character = ends[start - 1] if start else 0
    return DocumentTokens(
        document_id=f"{text.name}-{start}",
        text=text.text[first_character : ends[end - 1]],
        tokens=list(tokens[start:end]),
        ends=[character - first_character for character in ends[start:end]],
    )


def pieces_of_characters(text: Document, size: int) -> list[Document]:
    """Return a text in consecutive pieces of `size` characters; what is left at the end is dropped."""
    starts = range(0, len(text.text) - size + 1, size)
    return [Document(f"{text.name}-{at}", text.text[at : at + size]) for at in starts]


def consecutive_documents(
    files: Iterable[Document], encode: Encode, name: str, size: int, skipped: int, number: int
) -> list[DocumentTokens]:
    """Join files and return documents of `size` tokens, one after the other.

    Files are tokenized one by one, and only as many as are needed.

    Args:
        files: texts in their order.
        encode: tokenizes a text.
        name: first part of the documents' names.
        size: tokens in a document.
        skipped: number of documents to skip at the beginning.
        number: number of documents to return at most.

    Raises:
        DataError: the files have fewer tokens than the skipped documents and one more.
    """
    first_token = skipped * size
    needed = (skipped + number) * size
    tokens: list[int] = []
    ends: list[int] = []
    texts: list[str] = []
    characters = 0
    for file in files:
        file_tokens, file_ends = encode(file.text)
        tokens += file_tokens
        ends += [characters + end for end in file_ends]
        texts.append(file.text)
        characters += len(file.text)
        if len(tokens) >= needed:
            break
    found = min(number, len(tokens) // size - skipped)
    if found < 1:
        raise DataError(
            f"{name} has {len(tokens)} tokens, {len(tokens) // size} documents of {size}; use a shorter "
            "context_length, a smaller seed, or documents of your own"
        )
    if found < number:
        logger.warning("%s has %d further documents of %d tokens, fewer than num_docs=%d",
                       *(name, found, size, number))  # fmt: skip
    joined = Document(name, "".join(texts))
    starts = range(first_token, first_token + found * size, size)
    return [_piece(joined, tokens, ends, start, size) for start in starts]


def without_repeats(paragraphs: Iterable[str]) -> list[str]:
    """Return the paragraphs, in order, of which at most half occurred before.

    A model predicts a passage that it has read before by copying, so a document with such passages
    measures copying. Paragraphs are compared by their sequences of `WORDS` words; a shorter one by
    all of its words.
    """
    seen: set[tuple[str, ...]] = set()
    new_paragraphs = []
    for paragraph in paragraphs:
        words = paragraph.split()
        last_start = max(0, len(words) - WORDS)
        sequences = [tuple(words[at : at + WORDS]) for at in range(last_start + 1)]
        repeated = sum(sequence in seen for sequence in sequences)
        if words and 2 * repeated <= len(sequences):
            new_paragraphs.append(paragraph)
        seen.update(sequences)
    return new_paragraphs
