"""The texts that both setups read, pinned by their hashes."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from leval_tasks.data import numbered_rows, read_bytes
from leval_tasks.perplexity.documents import (
    CORPORA,
    PYDOCS,
    Text,
    TextRow,
    language_reference,
    read_corpus,
)
from resonance_vllm.errors import SettingError, not_allowed

CHARACTERS_PER_TOKEN = 6
"""A piece of a long text has this many characters for each token that is read of it, which is more
than tokenizers put into one."""


def read_texts(source: str, longest: int, data_dir: str | None = None) -> list[Text]:
    """All texts of a source, which may be too short for `longest` tokens.

    Args:
        source: `pydocs` (the language reference that comes with Python), one of `CORPORA`, a JSONL
            file with `text` a line, a text file, or a folder of text files. The language reference
            and a single text file are cut into pieces.
        longest: tokens that will be read of each.
        data_dir: of `CORPORA`.

    Raises:
        SettingError: an unknown source.
        DataError: a corpus cannot be read.
    """
    size = longest * CHARACTERS_PER_TOKEN
    if source == PYDOCS:
        return list(_pieces(PYDOCS, language_reference()[0], size))
    if source in CORPORA:
        return _unique(read_corpus(source, data_dir)[0])
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix in (".txt", ".md"))
        return _unique(Text(each.name, _content(each)) for each in files)
    if not path.is_file():
        allowed = f"{PYDOCS}, {', '.join(CORPORA)}, a JSONL or text file, a folder of text files"
        raise SettingError(not_allowed("--texts", source, allowed))
    if path.suffix in (".jsonl", ".json"):
        content = read_bytes(path, SettingError)
        rows = numbered_rows(content, f"--texts: {path}", TextRow, SettingError)
        return _unique(Text(f"{path.stem}-{number}", row.text) for number, row in rows)
    return list(_pieces(path.stem, _content(path), size))


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--texts: {path} cannot be read: {error}") from None


def _unique(texts: Iterable[Text]) -> list[Text]:
    """Without empty texts and second copies: a copy is no further unit of chance."""
    return list({each.text.strip(): each for each in texts if each.text.strip()}.values())


def _pieces(name: str, text: str, size: int) -> Iterator[Text]:
    """Pieces of `size` characters, each from the beginning of a line; what remains is left out."""
    start = 0
    while start + size <= len(text):
        yield Text(f"{name}-{start}", text[start : start + size])
        start = text.find("\n", start + size - 1) + 1 or len(text)


def ids_sha256(ids: Sequence[int]) -> str:
    """What identifies the tokens that were read."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
