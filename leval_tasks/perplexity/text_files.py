"""Documents in files that users name: JSON lines, plain text, and folders of both."""

from collections.abc import Iterator
from pathlib import Path

from leval_tasks.common.data import numbered_rows
from leval_tasks.perplexity.documents import Document, DocumentRow
from resonance_vllm.common.errors import SettingError

SUFFIXES = (".jsonl", ".txt")


def documents_of(path: Path, where: str) -> Iterator[Document]:
    """Yield the documents of a JSON-lines file, a text file or a folder of such files.

    Args:
        path: the file or folder. A JSON-lines file has one object with `text` per line; a text
            file is one document.
        where: the option or setting that named it, with which messages begin.

    Raises:
        SettingError: a line is not JSON or has no `text`, or a file is not UTF-8 text.
    """
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.suffix in SUFFIXES:
                yield from documents_of(file, where)
    elif path.suffix == ".jsonl":
        label = f"{where}: {path}"
        for _, row in numbered_rows(path.read_bytes(), label, DocumentRow, SettingError):
            yield Document(path.stem, row.text)
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{where}: {path} is not UTF-8 text: {error}") from None
        yield Document(path.stem, text)
