"""The published files of MRCR, from a folder or from the hub at one revision."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from leval_tasks.common.chat import Message
from leval_tasks.common.data import (
    ENVIRONMENT_VARIABLE,
    Source,
    data_set_file,
    folder_below,
    resolve_source,
)
from leval_tasks.common.errors import DataError
from resonance_vllm.common.errors import error_message
from resonance_vllm.common.files import file_sha256
from resonance_vllm.common.settings import parse_settings

REPOSITORY = "openai/mrcr"
REVISION = "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d"
"""The files after the corrections of 5 December 2025."""
PARTS = (0, 1)
"""Numbers of the files of each task."""
HOW_TO_GET = (
    f"Get the files where the hub can be reached, `hf download {REPOSITORY} --repo-type dataset "
    f"--revision {REVISION[:8]} --local-dir DATA`, and give the folder in `--metadata "
    '\'{"data_dir": "DATA"}\'`.'
)


class Conversation(BaseModel):
    """A row of the published files. Further columns are allowed and ignored."""

    model_config = ConfigDict(strict=True)

    prompt: str
    answer: str
    random_string_to_prepend: str
    n_needles: int
    desired_msg_index: int
    total_messages: int
    n_chars: int

    @field_validator("prompt")
    @classmethod
    def _check_chat(cls, prompt: str) -> str:
        """Refuse a prompt that is not the JSON of a list of messages, each with role and content."""
        messages = json.loads(prompt)
        is_chat = isinstance(messages, list) and all(
            isinstance(message, dict)
            and message.get("role") in ("system", "user", "assistant")
            and isinstance(message.get("content"), str)
            for message in messages
        )
        if not is_chat or not messages:
            raise ValueError("a list of messages with role and content is needed")
        return prompt

    @property
    def messages(self) -> list[Message]:
        """Return the conversation; its last message is the question."""
        return [
            {"role": message["role"], "content": message["content"]}
            for message in json.loads(self.prompt)
        ]


@dataclass(frozen=True)
class MRCRFiles:
    """The files of one task.

    Attributes:
        source: where they came from.
        paths: the files, in order.
    """

    source: Source
    paths: tuple[Path, ...]

    def described(self) -> dict[str, Any]:
        """Return what results record about the data."""
        described = {
            "source": self.source.kind,
            "path": self.source.path,
            "sample": False,
            "files": {path.name: file_sha256(path) for path in self.paths},
        }
        if self.source.folder is None:
            described["revision"] = REVISION
        return described

    def rows(self, longest: int) -> Iterator[tuple[int, Conversation]]:
        """Yield number and content of the rows with at most `longest` characters.

        Raises:
            DataError: a file cannot be read, or a column is missing or of another type.
        """
        number = -1
        for path in self.paths:
            for row in READERS[path.suffix](path, longest):
                number += 1
                if row is not None:
                    where = f"{path}, row {number}"
                    yield number, parse_settings(Conversation, row, where, DataError)


def _parquet_rows(path: Path, longest: int) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a parquet file; None in place of one with more than `longest` characters.

    Raises:
        DataError: it is not a parquet file, or lacks a column.
    """
    import pyarrow.parquet
    from pyarrow.lib import ArrowException

    columns = list(Conversation.model_fields)
    try:
        lengths = pyarrow.parquet.read_table(path, columns=["n_chars"])["n_chars"]
        if min(lengths.to_pylist(), default=0) > longest:
            yield from repeat(None, len(lengths))
            return
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(8, columns=columns):
            for row in batch.to_pylist():
                yield row if row["n_chars"] <= longest else None
    except (ArrowException, KeyError, OSError) as error:
        raise _not_of_data_set(path, error) from None


def _json_rows(path: Path, longest: int) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a JSON-lines file; None in place of one with more than `longest` characters.

    Raises:
        DataError: a line is not a JSON object with the column `n_chars`.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                row = json.loads(line)
                yield row if row["n_chars"] <= longest else None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _not_of_data_set(path, error) from None


READERS: dict[str, Callable[[Path, int], Iterator[dict[str, Any] | None]]] = {
    ".parquet": _parquet_rows,
    ".jsonl": _json_rows,
}
"""End of a file's name -> the function that reads its rows; the first that is there is read."""


def _not_of_data_set(path: Path, error: Exception) -> DataError:
    """Return the error for a file that does not have the published columns."""
    return DataError(f"{path} is not a file of {REPOSITORY}: {error_message(error)}. {HOW_TO_GET}")


def needles_of(task: str) -> int:
    """Return the needles of a task, by which its files are named, from its name."""
    return int(task.removeprefix("mrcr_").removesuffix("needle"))


def find_files(needles: int, data_dir: str | None) -> MRCRFiles:
    """Return the files of the task with so many needles.

    Args:
        needles: 2, 4 or 8.
        data_dir: the setting; None for `LEVAL_DATA_DIR`, else the hub.

    Raises:
        DataError: the folder lacks the files, or the hub cannot be reached.
    """
    source = resolve_source(data_dir)
    if source.folder is None:
        return MRCRFiles(
            Source("hub", REPOSITORY), tuple(_hub_file(needles, part) for part in PARTS)
        )
    paths = local_files(needles, source.folder)
    if not paths:
        name = f"{needles}needle_0.parquet"
        setting = "data_dir" if data_dir else ENVIRONMENT_VARIABLE
        raise DataError(
            f"{source.path} ({setting}) has no {name}, which "
            f"mrcr_{needles}needle reads{folder_below(source.folder, name)}. {HOW_TO_GET}"
        )
    return MRCRFiles(source, paths)


def local_files(needles: int, folder: Path) -> tuple[Path, ...]:
    """Return the files of a task in a folder, or in the subfolder that the hub has for them.

    They are the published parquet files, or JSON lines with the same columns.
    """
    for below in (folder / f"{needles}needle", folder):
        for suffix in READERS:
            paths = tuple(below / f"{needles}needle_{part}{suffix}" for part in PARTS)
            if any(path.is_file() for path in paths):
                return tuple(path for path in paths if path.is_file())
    return ()


def _hub_file(needles: int, part: int) -> Path:
    """Return a file from the hub at the pinned revision, as `data_set_file` does."""
    filename = f"{needles}needle/{needles}needle_{part}.parquet"
    return data_set_file(REPOSITORY, filename, HOW_TO_GET, REVISION)
