"""Documents of files that users name: JSON lines, plain text, folders of both."""

from collections.abc import Iterator
from pathlib import Path

from leval_tasks.common.data import numbered_rows
from leval_tasks.perplexity.documents import Document, DocumentRow
from resonance_vllm.common.errors import SettingError

SUFFIXES = (".jsonl", ".txt")


def documents_of(path: Path, where: str) -> Iterator[Document]:
    """Documents of a JSONL file (one object with `text` a line), a text file, or a folder of them.

    Messages begin with `where`, the option that named it.

    Raises:
        SettingError: a line is no JSON or has no `text`, or a file is not UTF-8 text.
    """
    if path.is_dir():
        for file in sorted(each for each in path.iterdir() if each.suffix in SUFFIXES):
            yield from documents_of(file, where)
    elif path.suffix == ".jsonl":
        for _, row in numbered_rows(
            path.read_bytes(), f"{where}: {path}", DocumentRow, SettingError
        ):
            yield Document(path.stem, row.text)
    else:
        try:
            yield Document(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"{where}: {path} is no UTF-8 text: {error}") from None
