"""Which texts are read: where they come from, which are dropped, which are drawn."""

import hashlib
import logging
import platform
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from leval_tasks.data import numbered_rows, read_bytes, resolve_source, why_hub_is_unreachable
from leval_tasks.errors import DataError
from leval_tasks.metadata import PerplexitySettings, TextSettings
from resonance_vllm.errors import one_of

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

WORDS = 8
"""Words of the sequences by which paragraphs are compared."""

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
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


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


class TextRow(BaseModel):
    """A line of a JSON-lines file of texts; further fields are its own."""

    model_config = ConfigDict(strict=True)

    text: str


def encoder(tokenizer: Any) -> Encode:
    """The tokeniser of a model as a function of text."""

    def encode(text: str) -> tuple[list[int], list[int]]:
        found = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return list(found["input_ids"]), [end for _, end in found["offset_mapping"]]

    return encode


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
    if source.folder is None:
        return _from_hub(corpus)
    path = corpus_file(corpus, source.folder)
    if path is None:
        raise DataError(
            f"{corpus}.jsonl is neither in {source.path} nor in its subfolder corpora; data_dir "
            'must hold it, one JSON object with a "text" field a line (ppl_pydocs needs no data)'
        )
    content = read_bytes(path)
    rows = numbered_rows(content, str(path), TextRow)
    texts = [Text(f"{corpus}-{number - 1}", row.text) for number, row in rows]
    return texts, _about("data_dir", str(path), path.name, hashlib.sha256(content).hexdigest())


def corpus_file(corpus: str, folder: Path) -> Path | None:
    """The file of a corpus in a folder or in its subfolder `corpora`; None where there is none."""
    name = f"{corpus}.jsonl"
    return next((p for p in (folder / name, folder / "corpora" / name) if p.is_file()), None)


def _from_hub(corpus: str) -> tuple[list[Text], dict[str, Any]]:
    from datasets import load_dataset
    from huggingface_hub import constants

    path, split, column = HUB.get(corpus, ("", "", ""))
    reason, rows = "" if path else "no data set there loads without a script", None
    if path and not constants.HF_HUB_OFFLINE:  # offline, what was fetched before is read
        reason = why_hub_is_unreachable()
    try:
        rows = None if reason else load_dataset(path, split=split)[column]
    except Exception as error:  # noqa: BLE001 - of whatever library it asks
        reason = str(error)
    if rows is None:
        raise DataError(
            f"{corpus} cannot be read from the hub ({reason}); put {corpus}.jsonl, one JSON object "
            'with "text" a line, into a folder and give it: --metadata \'{"data_dir": "FOLDER"}\''
        )
    texts = [Text(f"{corpus}-{number}", text) for number, text in enumerate(rows)]
    digest = Text(corpus, "\0".join(each.text for each in texts)).sha256
    return texts, _about("hub", path, f"{split}.{column}", digest)


def _about(source: str, path: str, file: str, digest: str) -> dict[str, Any]:
    """What goes into the results about the data."""
    return {"source": source, "path": path, "sample": False, "files": {file: digest}}


def draw(
    texts: Iterable[Text], encode: Encode, settings: TextSettings
) -> tuple[list[TokenizedText], dict[str, int]]:
    """Draw `num_docs` of the documents that are long enough, in the order of the source.

    Empty texts and second copies are left out first. The rest is visited in one seeded order until
    enough are found, which draws uniformly from the long enough ones without tokenising all; short
    ones count as left out as far as visited.

    Returns:
        The documents, and how many were left out, by reason.

    Raises:
        DataError: no document is long enough.
    """
    usable: dict[str, Text] = {}
    left_out = {"empty": 0, "duplicate": 0, "too_short": 0}
    for text in texts:
        stripped = text.text.strip()
        if stripped and stripped not in usable:
            usable[stripped] = text
        else:
            left_out["duplicate" if stripped else "empty"] += 1
    candidates = list(usable.values())
    order = list(range(len(candidates)))
    random.Random(settings.seed).shuffle(order)
    least, longest = settings.min_tokens or 1, 0
    chosen: dict[int, TokenizedText] = {}
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
    if any(left_out.values()) or len(chosen) < settings.num_docs:
        counts = ", ".join(f"{count} {name}" for name, count in left_out.items())
        logger.warning(
            "left out: %s (below %d tokens); %d documents remain of num_docs=%d",
            *(counts.replace("_", " "), least, len(chosen), settings.num_docs),
        )
    return [chosen[index] for index in sorted(chosen)], left_out


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
    """The topics without passages that an earlier one holds, and their SHA-256.

    The same passages are shipped under several names. By default of this Python's
    `pydoc_data.topics`, in the order of their names.
    """
    if topics is None:
        from pydoc_data.topics import topics as shipped

        topics = shipped
    paragraphs = (each for name in sorted(topics) for each in topics[name].split("\n\n"))
    text = "\n\n".join(each.strip("\n") for each in without_repeats(paragraphs))
    return text, Text(PYDOCS, text).sha256


def draw_pydocs(
    encode: Encode, settings: TextSettings
) -> tuple[list[TokenizedText], dict[str, int], dict[str, Any]]:
    """Documents of equal token length from the language reference, drawn with the seed.

    A document fills one window of the longest context; for sliding windows it is twice as long.
    `max_tokens`, or a larger `min_tokens`, is another size.

    Returns:
        The documents, how many tokens were left out, and where the text comes from.

    Raises:
        DataError: the language reference is shorter than one document.
    """
    text, digest = language_reference()
    tokens, ends = encode(text)
    longest = settings.context_length[-1] if settings.context_length else 0
    moves = isinstance(settings, PerplexitySettings) and settings.mode == "sliding"
    window = (longest - bool(settings.bos)) * (2 if moves else 1)
    size = settings.max_tokens or max(window, settings.min_tokens or 0)
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
    left_out = {"tokens_after_the_last_cut": len(tokens) - starts[-1] - size}
    return documents, left_out, about | {"python_version": version}
