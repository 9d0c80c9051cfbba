"""Where the closed tasks' documents come from: a local folder, hub files, or the bundled sample.

One source serves a whole run: it is chosen from the settings alone (`data_dir`, else
`LEVAL_DATA_DIR`, else the hub) and never file by file.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
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
    "https://github.com/OpenLMLab/LEval and give its folder LEval-data/Closed-ended-tasks as DATA "
    'in `--metadata \'{"data_dir": "DATA"}\'`; '
    "`data_dir: sample` runs on the small bundled sample instead."
)
SAMPLE = Path(str(files("leval_tasks"))) / "sample"
"""Folder of the bundled sample, which comes with the package."""
SECONDS = 5
"""Time that the hub has to answer."""

Row = TypeVar("Row", bound=BaseModel)


@dataclass(frozen=True)
class Source:
    """Where a run's documents come from: kind (`data_dir`, `hub`, `sample`) and what names it."""

    kind: str
    path: str

    @property
    def folder(self) -> Path | None:
        """Folder of its files; None for the hub."""
        return {"hub": None, "sample": SAMPLE}.get(self.kind, Path(self.path))

    def has(self, task: ClosedTask) -> bool:
        """Whether it holds the task's file; the hub holds all."""
        return self.folder is None or (self.folder / task.file).is_file()


class DocumentRecord(BaseModel):
    """One document with its questions, a line of L-Eval's files; further fields are allowed."""

    model_config = ConfigDict(strict=True)

    document: str = Field(alias="input")
    instructions: tuple[str, ...] = Field(strict=False, min_length=1)
    outputs: tuple[str, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _in_pairs(self) -> "DocumentRecord":
        given, wanted = len(self.outputs), len(self.instructions)
        if given != wanted:
            raise ValueError(
                f"{wanted} instructions and {given} outputs; one output each is needed"
            )
        return self


@dataclass(frozen=True)
class DataFile:
    """A file that was read: its records and what identifies its content."""

    name: str
    source: Source
    sha256: str
    verified: bool
    records: tuple[DocumentRecord, ...]

    def described(self) -> dict[str, Any]:
        """What goes into the results about the data of one task."""
        return {
            "source": self.source.kind,
            "path": self.source.path,
            "sample": self.source.kind == "sample",
            "verified": self.verified,
            "files": {self.name: self.sha256},
        }


def resolve_source(data_dir: str | None) -> Source:
    """The one source of a run; a folder that does not exist is a `DataError`."""
    given = data_dir or os.environ.get(ENVIRONMENT_VARIABLE)
    if not given:
        return Source("hub", HUB_REPOSITORY)
    if given == "sample":
        return Source("sample", "leval_tasks.sample")
    folder = expand_user(given)
    if not folder.is_dir():
        origin = "data_dir" if data_dir else ENVIRONMENT_VARIABLE
        raise DataError(f"{origin} {given!r} does not exist or is no folder. {HOW_TO_GET}")
    return Source("data_dir", str(folder))


def missing_file(source: Source, task: ClosedTask) -> DataError:
    """The error for a file that a source lacks; it names the tasks that can still run."""
    can_run = ", ".join(each.name for each in ENTRIES if source.has(each)) or "none"
    return DataError(
        f"{source.path} ({source.kind}) has no {task.file}, which {task.name} reads. "
        f"Tasks that can run on this data: {can_run}. {HOW_TO_GET}"
    )


def load(source: Source, task: ClosedTask) -> DataFile:
    """Read and identify a task's file; another content than the published one is a warning.

    Raises:
        DataError: the source lacks the file, or a line is not JSON or lacks a field.
    """
    if not source.has(task):
        raise missing_file(source, task)
    content = (source.folder / task.file if source.folder else hub_file(task)).read_bytes()
    label, digest = f"{source.path}/{task.file}", hashlib.sha256(content).hexdigest()
    records = tuple(row for _, row in numbered_rows(content, label, DocumentRecord))
    if not records:
        raise DataError(f"{label} is empty: it holds no record.")
    file = DataFile(task.file, source, digest, digest == task.sha256, records)
    if task.sha256 and not (file.verified or source.kind == "sample"):
        logger.warning(
            "%s is not the published file (SHA-256 %s…): scores are of documents of your own",
            *(label, digest[:16]),
        )
    return file


def hub_file(task: ClosedTask) -> Path:
    """A task's file from the hub, or as the hub client cached it where the hub is out of reach.

    Raises:
        DataError: the hub does not have it, or is unreachable and it was not fetched before.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

    filename, unreachable = f"{HUB_FOLDER}/{task.file}", why_hub_is_unreachable()
    about = f"{filename} of the hub's data set {HUB_REPOSITORY}"
    try:
        path = hf_hub_download(
            HUB_REPOSITORY, filename, repo_type="dataset", local_files_only=bool(unreachable)
        )
    except RemoteEntryNotFoundError:
        raise DataError(f"There is no {about}. {HOW_TO_GET}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = unreachable or error_message(error)
        raise HubUnreachableError(f"{about} cannot be fetched ({reason}). {HOW_TO_GET}") from None
    return Path(path)


def why_hub_is_unreachable() -> str:
    """Why one short request to the hub fails; its client says so after 20 to 90 seconds."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # noqa: BLE001 - of whatever HTTP library the client uses
        return error_message(error)
    return ""


def numbered_rows(
    content: bytes, label: str, model: type[Row], error: type[UserError] = DataError
) -> Iterator[tuple[int, Row]]:
    """Line number and typed row of every line of a JSON-lines file.

    Raises:
        DataError: as `error`; names file (`label`) and line of what is wrong.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        number = content[: wrong.start].count(b"\n") + 1
        raise error(f"{label}, line {number}: not UTF-8 text.") from wrong
    for number, line in iter_json_lines(text):
        where = f"{label}, line {number}"
        row = parse_json(line, where, error)
        if not isinstance(row, dict):
            raise error(f"{where}: a JSON object is needed, not {type(row).__name__}.")
        try:
            yield number, parse_settings(model, row, error=error)
        except error as wrong:
            raise error(f"{where}: {wrong}") from None
