"""Where the closed-ended tasks' documents come from: a local folder, files of the hub, or the bundled sample.

One source serves a whole run. It is chosen from the settings alone (`data_dir`, else
`LEVAL_DATA_DIR`, else the hub) and never file by file.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leval_tasks.closed.catalog import ENTRIES, ClosedTask
from leval_tasks.common.errors import DataError, HubUnreachableError
from resonance_vllm.common.errors import UserError, error_message
from resonance_vllm.common.files import expand_user, iter_json_lines, parse_json
from resonance_vllm.common.settings import parse_settings

logger = logging.getLogger(__name__)
HUB_REPOSITORY = "L4NLP/LEval"
HUB_FOLDER = "LEval/Exam"
ENVIRONMENT_VARIABLE = "LEVAL_DATA_DIR"
HOW_TO_GET = (
    "Get the documents with `leval-harness data fetch --out DATA`, or clone "
    "https://github.com/OpenLMLab/LEval and give its folder LEval-data/Closed-ended-tasks as DATA: "
    '`--metadata \'{"data_dir": "DATA"}\'` of lm-eval, `--data-dir DATA` of leval-harness prompt, '
    "`data_dir` under metadata in a sweep. The word sample in its place runs on the small bundled "
    "sample."
)
SAMPLE = Path(str(files("leval_tasks"))) / "sample"
"""Folder of the bundled sample, which comes with the package."""
SECONDS = 5
"""Time that the hub has to answer."""
MOST_LEVELS = 3
"""Depth to which folders below `data_dir` are searched for a missing file."""

Row = TypeVar("Row", bound=BaseModel)


@dataclass(frozen=True)
class Source:
    """Where a run's documents come from.

    Attributes:
        kind: `data_dir`, `hub` or `sample`.
        path: the folder, repository or package.
    """

    kind: str
    path: str

    @property
    def folder(self) -> Path | None:
        """Return the folder of its files; None for the hub."""
        if self.kind == "hub":
            return None
        return SAMPLE if self.kind == "sample" else Path(self.path)

    def has(self, task: ClosedTask) -> bool:
        """Return whether it holds a task's file. The hub holds all of them."""
        return self.folder is None or (self.folder / task.file).is_file()


class DocumentRecord(BaseModel):
    """One document with its questions, a line of L-Eval's files. Further fields are allowed."""

    model_config = ConfigDict(strict=True)

    document: str = Field(alias="input")
    instructions: tuple[str, ...] = Field(strict=False, min_length=1)
    outputs: tuple[str, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _check_pairs(self) -> "DocumentRecord":
        if len(self.instructions) != len(self.outputs):
            raise ValueError(
                f"{len(self.instructions)} instructions and {len(self.outputs)} outputs; each "
                "instruction needs one output"
            )
        return self


@dataclass(frozen=True)
class DataFile:
    """A file that was read.

    Attributes:
        name: of the file.
        source: where it came from.
        sha256: of its content.
        verified: whether the content is the published one.
        records: its documents with their questions.
    """

    name: str
    source: Source
    sha256: str
    verified: bool
    records: tuple[DocumentRecord, ...]

    def described(self) -> dict[str, Any]:
        """Return what results record about the data of one task."""
        return {
            "source": self.source.kind,
            "path": self.source.path,
            "sample": self.source.kind == "sample",
            "verified": self.verified,
            "files": {self.name: self.sha256},
        }


def title_of(title: str, described: Mapping[str, Any]) -> str:
    """Return the title of a task in results, with the file that it read unless that is known.

    Two texts under one published name must not look alike.

    Args:
        title: of the task.
        described: what results record about its data.

    Returns:
        `title` for the published file, the bundled sample and text that comes with Python; for any
        other file `title [file, SHA-256 0123456789ab…]`.
    """
    comes_with_python = described["source"] != "data_dir"
    if described["sample"] or described.get("verified", comes_with_python):
        return title
    name, digest = next(iter(described["files"].items()))
    return f"{title} [{name}, SHA-256 {digest[:12]}…]"


def resolve_source(data_dir: str | None) -> Source:
    """Return the one source of a run.

    Args:
        data_dir: the setting: a folder, `sample`, or None for `LEVAL_DATA_DIR`, else the hub.

    Raises:
        DataError: the folder does not exist.
    """
    chosen = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    if not chosen:
        return Source("hub", HUB_REPOSITORY)
    if chosen == "sample":
        return Source("sample", "leval_tasks.sample")
    folder = expand_user(chosen)
    if not folder.is_dir():
        origin = "data_dir" if data_dir else ENVIRONMENT_VARIABLE
        raise DataError(f"{origin} {chosen!r} does not exist or is not a folder. {HOW_TO_GET}")
    return Source("data_dir", str(folder))


def folder_below(folder: Path | None, file: str) -> str:
    """Return the part of a message that names the folder below `folder` which holds `file`.

    Downloads and clones of a repository have its folders: `hf download --local-dir DATA` puts
    L-Eval's files into `DATA/LEval/Exam`, a clone into `DATA/LEval-data/Closed-ended-tasks`.

    Args:
        folder: where the file was looked for; None for the hub.
        file: name of the file.

    Returns:
        an ending of a sentence; empty where no folder at most `MOST_LEVELS` below holds the file.
    """
    if folder is None:
        return ""
    for levels in range(1, MOST_LEVELS + 1):
        holding = sorted(folder.glob("*/" * levels + file))
        if holding:
            return f", but the folder {holding[0].parent} has it: give that folder"
    return ""


def missing_file(source: Source, task: ClosedTask) -> DataError:
    """Return the error for a file that a source lacks.

    It names a folder below that has the file, and the tasks that can run on this source.
    """
    can_run = [other.name for other in ENTRIES if source.has(other)]
    return DataError(
        f"{source.path} ({source.kind}) has no {task.file}, which {task.name} reads"
        f"{folder_below(source.folder, task.file)}. "
        f"Tasks that can run on this data: {', '.join(can_run) or 'none'}. {HOW_TO_GET}"
    )


def load(source: Source, task: ClosedTask) -> DataFile:
    """Read and identify a task's file, with a warning where it is not the published one.

    Args:
        source: where the file is.
        task: the task that reads it.

    Raises:
        DataError: the source lacks the file, or a line is not JSON or lacks a field.
    """
    if not source.has(task):
        raise missing_file(source, task)
    path = source.folder / task.file if source.folder else hub_file(task)
    content = path.read_bytes()
    label = f"{source.path}/{task.file}"
    records = tuple(row for _, row in numbered_rows(content, label, DocumentRecord))
    if not records:
        raise DataError(f"{label} is empty: it has no record.")
    digest = hashlib.sha256(content).hexdigest()
    verified = digest == task.sha256
    if task.sha256 and not verified and source.kind != "sample":
        logger.warning(
            "%s is not the published file (SHA-256 %s…): scores are for documents of your own",
            *(label, digest[:16]),
        )
    return DataFile(task.file, source, digest, verified, records)


def hub_file(task: ClosedTask) -> Path:
    """Return the path of a task's file from the hub, as `data_set_file` does."""
    return data_set_file(HUB_REPOSITORY, f"{HUB_FOLDER}/{task.file}", HOW_TO_GET)


def data_set_file(
    repository: str, filename: str, how_to_get: str, revision: str | None = None
) -> Path:
    """Return a file of a data set from the hub, or from its client's cache where it is out of reach.

    Args:
        repository: name of the data set.
        filename: path of the file in it.
        how_to_get: sentence that ends error messages.
        revision: commit of the data set; None is its main branch.

    Raises:
        DataError: the hub does not have the file, or is unreachable and the file is not in the
            cache.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

    description = f"{filename} of the hub's data set {repository}"
    unreachable = why_hub_is_unreachable()
    try:
        path = hf_hub_download(
            repository,
            filename,
            repo_type="dataset",
            revision=revision,
            local_files_only=bool(unreachable),
        )
    except RemoteEntryNotFoundError:
        raise DataError(f"There is no {description}. {how_to_get}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = unreachable or error_message(error)
        raise HubUnreachableError(
            f"{description} cannot be fetched ({reason}). {how_to_get}"
        ) from None
    return Path(path)


def why_hub_is_unreachable() -> str:
    """Return why one short request to the hub fails; empty where it succeeds.

    The hub's own client takes 20 to 90 seconds to say so.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # noqa: BLE001 - of whatever HTTP library the client uses
        return error_message(error)
    return ""


def numbered_rows(
    content: bytes, label: str, model: type[Row], error: type[UserError] = DataError
) -> Iterator[tuple[int, Row]]:
    """Yield the line number and the typed row of every line of a JSON-lines file.

    Args:
        content: the file in UTF-8.
        label: name of the file in messages.
        model: pydantic model of a row.
        error: class of the errors.

    Raises:
        DataError: as `error`; names the file and the line of what is wrong.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line_number = content[: wrong.start].count(b"\n") + 1
        raise error(f"{label}, line {line_number}: not UTF-8 text.") from wrong
    for line_number, line in iter_json_lines(text):
        where = f"{label}, line {line_number}"
        row = parse_json(line, where, error)
        if not isinstance(row, dict):
            raise error(f"{where}: a JSON object is needed, not {type(row).__name__}.")
        try:
            yield line_number, parse_settings(model, row, error=error)
        except error as wrong:
            raise error(f"{where}: {wrong}") from None
