"""Which texts are read: where they come from, which are dropped, which are drawn."""

import hashlib
import logging
import platform
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from leval_tasks.data import (
    numbered_rows,
    read_bytes,
    resolve_source,
    why_hub_is_unreachable,
)
from leval_tasks.errors import DataError
from leval_tasks.metadata import PerplexitySettings, TextSettings
from leval_tasks.repetition import without_repeats
from resonance_vllm.errors import SettingError, one_of

logger = logging.getLogger(__name__)

# Text, not token ids: the sets that the papers' scripts load are tokenised for Llama 2 only. None
# of these needs a dataset script. Proof-pile itself does, so its arXiv part stands in for it.
HUB = {
    "govreport": ("ccdv/govreport-summarization", "test", "report"),
    "pg19": ("emozilla/pg19-test", "test", "text"),
}
CORPORA = ("govreport", "proofpile", "pg19")
PYDOCS = "pydocs"
"""The corpus that needs no data: the language reference that every Python contains."""

Encode = Callable[[str], tuple[list[int], list[int]]]
"""Text -> token ids without special tokens, and where in the text each ends (characters)."""


@dataclass(frozen=True, slots=True)
class Text:
    """One document before tokenisation, and its name in results and reports."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Hex digest of the UTF-8 bytes."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One document in the model's own tokens.

    Attributes:
        text: the text that the tokens cover.
        tokens: token ids without special tokens.
        ends: for each token, where in `text` it ends (characters).
    """

    document_id: str
    text: str
    tokens: list[int]
    ends: list[int]

    def scored_text(self, start: int, end: int) -> str:
        """The text of tokens `start..end-1`."""
        return self.text[self.ends[start - 1] if start else 0 : self.ends[end - 1]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Documents of a run and how many were left out, by reason."""

    documents: list[TokenizedText]
    left_out: dict[str, int]


class TextRow(BaseModel):
    """A line of a JSON-lines file of texts; further fields are its own."""

    model_config = ConfigDict(strict=True)

    text: str

    @field_validator("text")
    @classmethod
    def _whole_characters(cls, value: str) -> str:
        value.encode("utf-8")  # half a character is no text
        return value


def read_corpus(corpus: str, data_dir: str | None) -> tuple[list[Text], dict[str, Any]]:
    """All texts of a corpus and where they came from.

    Args:
        corpus: one of `CORPORA`.
        data_dir: folder with `<corpus>.jsonl`, one JSON object with `text` a line; also looked for
            in its subfolder `corpora`. Without it `LEVAL_DATA_DIR`, else the hub.

    Raises:
        DataError: a file is missing or damaged, or the hub cannot be read.
        SettingError: an unknown corpus.
    """
    one_of("corpus", corpus, CORPORA)
    source = resolve_source({"data_dir": data_dir})
    if source.kind == "sample":
        raise DataError(
            f"data_dir 'sample' has no {corpus}: the bundled sample is for closed-ended tasks; "
            "ppl_pydocs needs no data"
        )
    return _local(corpus, Path(source.path)) if source.folder else _hub(corpus)


def corpus_file(corpus: str, folder: Path) -> Path | None:
    """The file of a corpus in a folder or in its subfolder `corpora`; None where there is none."""
    name = f"{corpus}.jsonl"
    return next((p for p in (folder / name, folder / "corpora" / name) if p.is_file()), None)


def _local(corpus: str, folder: Path) -> tuple[list[Text], dict[str, Any]]:
    name, path = f"{corpus}.jsonl", corpus_file(corpus, folder)
    if path is None:
        raise DataError(
            f"{name} is neither in {folder} nor in {folder / 'corpora'}; data_dir must hold it, "
            'one JSON object with a "text" field a line'
        )
    content = read_bytes(path)
    rows = numbered_rows(content, str(path), TextRow)
    return [Text(f"{corpus}-{number - 1}", row.text) for number, row in rows], {
        "source": "data_dir",
        "path": str(path),
        "sample": False,
        "files": {name: hashlib.sha256(content).hexdigest()},
    }


def _hub(corpus: str) -> tuple[list[Text], dict[str, Any]]:
    if corpus not in HUB:
        raise DataError(
            f"{corpus} has no hub source that loads without a dataset script; "
            f'put {corpus}.jsonl (one JSON object with "text" a line) into a folder and give it: '
            '--metadata \'{"data_dir": "FOLDER"}\''
        )
    from datasets import load_dataset
    from huggingface_hub import constants

    path, split, column = HUB[corpus]
    try:
        if not constants.HF_HUB_OFFLINE and (reason := why_hub_is_unreachable()):
            raise OSError(f"{reason}; HF_HUB_OFFLINE=1 reads what was fetched before")
        rows = load_dataset(path, split=split)[column]
    except Exception as error:  # noqa: BLE001 - of whatever library it asks
        raise DataError(
            f"{corpus} could not be read from the hub ({path}: {error}); give a folder with "
            f'{corpus}.jsonl instead: --metadata \'{{"data_dir": "FOLDER"}}\''
        ) from None
    texts = [Text(f"{corpus}-{number}", text) for number, text in enumerate(rows)]
    digest = hashlib.sha256("\0".join(t.text for t in texts).encode("utf-8")).hexdigest()
    return texts, {
        "source": "hub",
        "path": path,
        "sample": False,
        "files": {f"{split}.{column}": digest},
    }


def draw(texts: Iterable[Text], encode: Encode, settings: TextSettings) -> Drawn:
    """Draw `num_docs` of the documents that are long enough, in the order of the source.

    Empty texts and second copies are left out first. The rest is visited in one seeded order until
    enough are found, which draws uniformly from the long enough ones without tokenising all; short
    ones count as left out as far as visited.

    Raises:
        DataError: no document is long enough.
    """
    usable: dict[str, Text] = {}
    left_out = {"empty": 0, "duplicate": 0, "too_short": 0}
    for text in texts:
        key = text.text.strip()
        if not key or key in usable:
            left_out["duplicate" if key else "empty"] += 1
        else:
            usable[key] = text
    candidates = list(usable.values())
    order = list(range(len(candidates)))
    random.Random(settings.seed).shuffle(order)
    least, chosen = settings.min_tokens or 1, dict[int, TokenizedText]()
    longest = 0
    for index in order:
        if len(chosen) == settings.num_docs:
            break
        text = candidates[index]
        tokens, ends = encode(text.text)
        longest = max(longest, len(tokens))
        if len(tokens) < least:
            left_out["too_short"] += 1
            continue
        tokens, ends = tokens[: settings.max_tokens], ends[: settings.max_tokens]
        chosen[index] = TokenizedText(text.name, text.text, tokens, ends)
    if not chosen:
        raise DataError(
            f"none of {len(usable)} documents has the {least} tokens that the longest "
            f"context (or min_tokens) needs; the longest has {longest}. Take a shorter "
            "context_length or other documents"
        )
    if any(left_out.values()):
        logger.warning(
            "left out: %d empty, %d duplicate, %d shorter than %d tokens; %d documents remain",
            *left_out.values(),
            least,
            len(chosen),
        )
    if len(chosen) < settings.num_docs:
        logger.warning(
            "num_docs=%d, but only %d documents can be used", settings.num_docs, len(chosen)
        )
    return Drawn([chosen[index] for index in sorted(chosen)], left_out)


def language_reference(topics: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The topics without passages that an earlier one holds, and their SHA-256.

    The same passages are shipped under several names. By default of this Python's
    `pydoc_data.topics`, in the order of their names.
    """
    if topics is None:
        from pydoc_data.topics import topics as shipped

        topics = shipped
    paragraphs = (each for name in sorted(topics) for each in topics[name].split("\n\n"))
    text = "\n\n".join(each.strip("\n") for each in without_repeats(paragraphs))
    return text, hashlib.sha256(text.encode("utf-8")).hexdigest()


def equal_cuts(n: int, size: int) -> list[tuple[int, int]]:
    """Bounds of as many pieces of `size` tokens as `n` tokens hold; what remains is left out."""
    return [(start, start + size) for start in range(0, n - size + 1, size)]


def draw_pydocs(encode: Encode, settings: TextSettings) -> tuple[Drawn, dict[str, Any]]:
    """Documents of equal token length from the language reference, drawn with the seed.

    A document fills one window of the longest context; for sliding windows it is twice as long.
    `max_tokens` sets another size.

    Returns:
        The documents, and where they come from.

    Raises:
        DataError: the language reference is shorter than one document.
        SettingError: `min_tokens` requires longer documents than are cut.
    """
    text, digest = language_reference()
    tokens, ends = encode(text)
    longest = settings.context_length[-1] if settings.context_length else 0
    moves = isinstance(settings, PerplexitySettings) and settings.mode == "sliding"
    size = settings.max_tokens or (longest - bool(settings.bos)) * (2 if moves else 1)
    if settings.min_tokens and settings.min_tokens > size:
        raise SettingError(
            f"min_tokens={settings.min_tokens} is more than the {size} tokens of each document of "
            "ppl_pydocs; leave it out, or set max_tokens, which is their size"
        )
    cuts = equal_cuts(len(tokens), size)
    if not cuts:
        raise DataError(
            f"the language reference has {len(tokens)} tokens, fewer than one document of {size}; "
            "take a shorter context_length, or ppl_pg19"
        )
    if len(cuts) < settings.num_docs:
        logger.info("num_docs=%d: the text gives %d documents", settings.num_docs, len(cuts))
    number = min(settings.num_docs, len(cuts))
    documents = []
    for start, end in sorted(random.Random(settings.seed).sample(cuts, number)):
        first = ends[start - 1] if start else 0
        piece, places = text[first : ends[end - 1]], [place - first for place in ends[start:end]]
        documents.append(TokenizedText(f"{PYDOCS}-{start}", piece, tokens[start:end], places))
    version = platform.python_version()
    return Drawn(documents, {"tokens_after_the_last_cut": len(tokens) - cuts[-1][1]}), {
        "source": "pydoc_data.topics",
        "path": f"Python {version}",
        "sample": False,
        "python_version": version,
        "files": {"pydoc_data/topics.py": digest},
    }
