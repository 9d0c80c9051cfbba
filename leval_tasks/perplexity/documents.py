"""Which documents are read: where they come from, which are dropped, which are drawn."""

import hashlib
import logging
import platform
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from leval_tasks.common.data import Source, numbered_rows, resolve_source
from leval_tasks.common.errors import DataError
from leval_tasks.common.metadata import TextSettings

logger = logging.getLogger(__name__)

PYDOCS = "pydocs"
"""The corpus that needs no data: the language reference that every Python contains."""

WORDS = 8
"""Words of the sequences by which paragraphs are compared."""

Encode = Callable[[str], tuple[list[int], list[int]]]
"""Text -> token ids without special tokens, and where in the text each ends (characters)."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document before tokenisation, and its name in results and reports."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Hex digest of the UTF-8 bytes."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One document in the model's own tokens: ids without special tokens.

    `ends` says of each where in `text`, which they cover, it ends (characters).
    """

    document_id: str
    text: str
    tokens: list[int]
    ends: list[int]

    def scored_text(self, start: int, end: int) -> str:
        """The text of tokens `start..end-1`."""
        return self.text[self.ends[start - 1] if start else 0 : self.ends[end - 1]]


class DocumentRow(BaseModel):
    """A line of a JSON-lines file of documents; further fields are its own."""

    model_config = ConfigDict(strict=True)

    text: str


def encoder(tokenizer: Any) -> Encode:
    """The tokeniser of a model as a function of text."""
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}

    def encode(text: str) -> tuple[list[int], list[int]]:
        found = tokenizer(text, **options)
        return list(found["input_ids"]), [end for _, end in found["offset_mapping"]]

    return encode


def read_corpus(corpus: str, data_dir: str | None) -> tuple[list[Document], dict[str, Any]]:
    """All documents of a corpus, by its name, and where they came from.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = corpus_file(f"{corpus}.jsonl", resolve_source(data_dir))
    content = path.read_bytes()
    rows = numbered_rows(content, str(path), DocumentRow)
    documents = [Document(f"{corpus}-{number - 1}", row.text) for number, row in rows]
    return documents, _about("data_dir", str(path), path.name, hashlib.sha256(content).hexdigest())


def corpus_file(name: str, source: Source) -> Path:
    """A file of documents in a folder or its subfolder `corpora`; a `DataError` where there is none."""
    folders = [source.folder, source.folder / "corpora"] if source.folder else []
    path = next((each / name for each in folders if (each / name).is_file()), None)
    if path is None:
        raise DataError(
            f'data_dir: {source.path} ({source.kind}) has no {name}, one JSON object with "text" a '
            "line; docs/reference/perplexity.md says how to get it, and ppl_pydocs needs none"
        )
    return path


def _about(source: str, path: str, file: str, digest: str) -> dict[str, Any]:
    """What goes into the results about the data."""
    return {"source": source, "path": path, "sample": False, "files": {file: digest}}


def draw(
    documents: Iterable[Document],
    encode: Encode,
    settings: TextSettings,
    least: int,
    longest: int | None,
) -> list[TokenizedText]:
    """Draw `num_docs` of the documents with `least` tokens, each cut to `longest` of them.

    Empty documents and second copies are left out first. The rest is visited in one seeded order until
    enough are found, which draws uniformly from the long enough ones without tokenising all.

    Raises:
        DataError: no document is long enough.
    """
    usable = dict[str, Document]()
    for text in documents:
        usable.setdefault(text.text.strip(), text)
    candidates = [text for stripped, text in usable.items() if stripped]
    order = list(range(len(candidates)))
    random.Random(settings.seed).shuffle(order)
    seen, chosen = 0, dict[int, TokenizedText]()
    for index in order:
        if len(chosen) == settings.num_docs:
            break
        text = candidates[index]
        tokens, ends = encode(text.text)
        seen = max(seen, len(tokens))
        if len(tokens) >= least:
            chosen[index] = TokenizedText(text.name, text.text, tokens[:longest], ends[:longest])
    if not chosen:
        raise DataError(
            f"none of {len(candidates)} documents has the {least} tokens that the longest context "
            f"needs; the longest has {seen}. Take a shorter context_length or other documents"
        )
    if len(chosen) < settings.num_docs:
        logger.warning(
            "%d of num_docs=%d documents are read: the others are empty, copies, or shorter than "
            "%d tokens",
            *(len(chosen), settings.num_docs, least),
        )
    return [chosen[index] for index in sorted(chosen)]


def without_repeats(paragraphs: Iterable[str]) -> list[str]:
    """The paragraphs, in order, less those of which more than half was seen before.

    A model predicts a passage that it read before from its first copy, so that a text with such
    passages measures copying. A paragraph is compared by its sequences of `WORDS` words; a shorter
    one by all of its words.
    """
    seen: set[tuple[str, ...]] = set()
    kept = []
    for paragraph in paragraphs:
        parts = paragraph.split()
        grams = [tuple(parts[at : at + WORDS]) for at in range(max(1, len(parts) - WORDS + 1))]
        if parts and 2 * sum(gram in seen for gram in grams) <= len(grams):
            kept.append(paragraph)
        seen.update(grams)
    return kept


def language_reference(topics: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The topics by name, less passages that an earlier one holds, and their SHA-256.

    By default of this Python's `pydoc_data.topics`, which ship passages under several names.
    """
    if topics is None:
        from pydoc_data.topics import topics as bundled_topics

        topics = bundled_topics
    paragraphs = (each for name in sorted(topics) for each in topics[name].split("\n\n"))
    text = "\n\n".join(each.strip("\n") for each in without_repeats(paragraphs))
    return text, Document(PYDOCS, text).sha256


def draw_pydocs(
    encode: Encode, settings: TextSettings, size: int
) -> tuple[list[TokenizedText], dict[str, Any]]:
    """Documents of `size` tokens from the language reference, and where the text comes from.

    Raises:
        DataError: the language reference is shorter than one document.
    """
    text, digest = language_reference()
    tokens, ends = encode(text)
    starts = range(0, len(tokens) - size + 1, size)
    if not starts:
        raise DataError(
            f"the language reference has {len(tokens)} tokens, fewer than one document of {size}; "
            "take a shorter context_length, or ppl_pg19"
        )
    documents = []
    number = min(settings.num_docs, len(starts))
    for start in sorted(random.Random(settings.seed).sample(starts, number)):
        end, first = start + size, ends[start - 1] if start else 0
        piece, places = text[first : ends[end - 1]], [place - first for place in ends[start:end]]
        documents.append(TokenizedText(f"{PYDOCS}-{start}", piece, tokens[start:end], places))
    version = platform.python_version()
    about = _about("pydoc_data.topics", f"Python {version}", "pydoc_data/topics.py", digest)
    return documents, about | {"python_version": version}
