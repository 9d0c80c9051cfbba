"""Where documents come from: a local folder, hub files, or the bundled sample.

One source serves a whole run. It is chosen from the settings alone (`data_dir`, else
`LEVAL_DATA_DIR`, else the hub) and never file by file, so a run cannot mix data unnoticed. Files
are L-Eval's own: one JSON object a line with `instructions`, `outputs`, `input`, `evaluation`.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_tasks.errors import DataError, HubUnreachableError

HUB_REPOSITORY = "L4NLP/LEval"
HUB_FOLDER = "LEval/Exam"
ENVIRONMENT_VARIABLE = "LEVAL_DATA_DIR"
HOW_TO_GET = (
    "Get the documents with `leval-harness data fetch --out DATA`, or clone "
    "https://github.com/OpenLMLab/LEval and give its folder LEval-data/Closed-ended-tasks as "
    "data_dir; `data_dir: sample` runs on the small bundled sample instead."
)


@dataclass(frozen=True)
class KnownFile:
    """One of L-Eval's files as published.

    Attributes:
        task: name of the task that reads it.
        documents: number of records.
        questions: number of questions in all records.
        sha256: of the file in the official repository, None where no copy was at hand.
        git_blob: SHA-1 that git gives the file, for the one without a SHA-256.
    """

    task: str
    documents: int
    questions: int
    sha256: str | None = None
    git_blob: str | None = None


# OpenLMLab/LEval at cd34b050, LEval-data/Closed-ended-tasks
KNOWN_FILES = {
    "coursera.jsonl": KnownFile(
        "leval_coursera",
        15,
        172,
        "03ef77fcbd191545ee9f750487d1e6b209352e6440cadc6671f0c9f4fcb753a5",
    ),
    "gsm100.jsonl": KnownFile(
        "leval_gsm", 100, 100, "768d7b1d52be9406994b098fdfb9c2fd055bf2eb3d79748b42a9e55ddcc81f2a"
    ),
    "quality.jsonl": KnownFile(
        "leval_quality", 15, 202, "e12593a3da249dc1f769d10e07da896a524917f278900a6f6ef42e7fd4daa67b"
    ),
    "tpo.jsonl": KnownFile(
        "leval_toefl", 15, 269, "7596d085ddc8e11418d53e956b492f9cba7087c2fc1b516508a26257eed1a57e"
    ),
    "codeU.jsonl": KnownFile(
        "leval_codeu", 90, 90, git_blob="eeb7995451645f5a43229162841ef6f5aa1b2d2a"
    ),
    "sci_fi.jsonl": KnownFile(
        "leval_sfiction", 7, 64, "eb704ffaacb8c84df4b9d70a8557066de25798b9af1332fd1f2dee77a8112d06"
    ),
    "topic_retrieval_longchat.jsonl": KnownFile(
        "leval_topic_retrieval",
        50,
        150,
        "c048104b31ad60d460bcd474bad41603b42418a4e3e32cd955d752d1bf11e11f",
    ),
}


@dataclass(frozen=True)
class Source:
    """Where a run's documents come from.

    Attributes:
        kind: `data_dir`, `hub` or `sample`.
        path: the folder, the hub repository, or the package of the sample.
        own: the user says that files of L-Eval's names hold documents of their own.
    """

    kind: str
    path: str
    own: bool = False


@dataclass(frozen=True)
class Record:
    """One document with its questions; `document_id` is unique within its file."""

    document_id: str
    document: str
    instructions: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class DataFile:
    """A file that was read: its records and what identifies its content."""

    name: str
    source: Source
    sha256: str
    verified: bool
    records: tuple[Record, ...]


def resolve_source(settings: Mapping[str, Any]) -> Source:
    """Choose the one source of a run.

    Args:
        settings: `data_dir` (a folder, or the word `sample`) and `own_data` (true where files of
            L-Eval's names hold other documents) count, all else is ignored.

    Raises:
        DataError: the folder does not exist or cannot be read.
    """
    own = str(settings.get("own_data", "")).lower() in ("true", "1", "yes")
    given = settings.get("data_dir")
    origin = "data_dir"
    if not given:
        given, origin = os.environ.get(ENVIRONMENT_VARIABLE), ENVIRONMENT_VARIABLE
    if not given:
        return Source("hub", HUB_REPOSITORY)
    if str(given) == "sample":
        return Source("sample", "leval_tasks.sample")
    folder = Path(str(given)).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{origin} {str(given)!r} {what}. {HOW_TO_GET}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"{origin} {str(given)!r} cannot be read: no permission.")
    return Source("data_dir", str(folder), own)


def available(source: Source) -> list[str]:
    """Names of the closed tasks' files that a source has; for the hub, what it publishes."""
    if source.kind == "sample":
        from leval_tasks.sample import FILES

        return [name for name in KNOWN_FILES if name in FILES]
    if source.kind == "hub":
        return list(KNOWN_FILES)
    return [name for name in KNOWN_FILES if (Path(source.path) / name).is_file()]


def load(source: Source, name: str) -> DataFile:
    """Read, check and identify one file.

    Args:
        source: from `resolve_source`.
        name: L-Eval's file name, a key of `KNOWN_FILES`.

    Raises:
        DataError: the source lacks the file, a line is not JSON or lacks a field, or the content
            is not the published one. A folder may hold other content where `own_data` is set; the
            hub's copy must have the published number of documents and questions.
    """
    if source.kind == "sample":
        content = sample_content(source, name)
    elif source.kind == "hub":
        content = read_bytes(hub_file(name))
    else:
        path = Path(source.path) / name
        if not path.is_file():
            raise missing_file(source, name)
        content = read_bytes(path)
    label = f"{source.path}/{name}"
    records = parse(content, label)
    verified = is_published(content, name)
    if source.kind == "data_dir" and not verified and not source.own:
        raise DataError(altered_message(label, name, records))
    if source.kind == "hub" and not verified and not has_published_counts(records, name):
        raise DataError(altered_message(label, name, records))
    digest = hashlib.sha256(content).hexdigest()
    return DataFile(name, source, digest, verified, records)


def read_bytes(path: Path) -> bytes:
    """Content of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def sample_content(source: Source, name: str) -> bytes:
    """The bundled sample's file, serialised as L-Eval writes its own."""
    if name not in available(source):
        raise missing_file(source, name)
    from leval_tasks.sample import documents

    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in documents(name)).encode()


def missing_file(source: Source, name: str) -> DataError:
    """The error for a file that a source lacks; it names the tasks that can still run."""
    tasks = [KNOWN_FILES[file].task for file in available(source)]
    can_run = ", ".join(tasks) if tasks else "none"
    return DataError(
        f"{source.path} ({source.kind}) has no {name}, which {KNOWN_FILES[name].task} reads. "
        f"Tasks that can run on this data: {can_run}. {HOW_TO_GET}"
    )


def hub_file(name: str) -> Path:
    """Fetch one file through the hub client, which caches it (`HF_ENDPOINT`, `HF_HOME` apply).

    Raises:
        DataError: the hub's data set does not have the file.
        HubUnreachableError: the hub cannot be reached, or `HF_HUB_OFFLINE` is set.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

    filename = f"{HUB_FOLDER}/{name}"
    try:
        return Path(hf_hub_download(HUB_REPOSITORY, filename, repo_type="dataset"))
    except RemoteEntryNotFoundError as error:
        raise DataError(
            f"The hub's data set {HUB_REPOSITORY} has no {filename}. {HOW_TO_GET}"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HubUnreachableError(
            f"{filename} of the hub's data set {HUB_REPOSITORY} cannot be had ({reason}). "
            f"{HOW_TO_GET}"
        ) from error


def parse(content: bytes, label: str) -> tuple[Record, ...]:
    """Records of a JSON-lines file in L-Eval's layout.

    Args:
        content: the file.
        label: its name for messages.

    Raises:
        DataError: names file and line number of what is wrong.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise DataError(f"{label}, line {number}: not UTF-8 text.") from error
    records: list[Record] = []
    # only \n ends a record: JSON strings may hold U+2028 and other characters of str.splitlines
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            records.append(parse_record(line, f"{label}, line {number}", len(records)))
    if not records:
        raise DataError(f"{label} is empty: it holds no record.")
    return tuple(records)


def parse_record(line: str, where: str, index: int) -> Record:
    """One line of a file; `index` numbers the document.

    Raises:
        DataError: the line is not a JSON object with the four fields, or the document is empty.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is needed, not {type(row).__name__}.")
    absent = [f for f in ("instructions", "outputs", "input", "evaluation") if f not in row]
    if absent:
        raise DataError(f"{where}: the field {absent[0]!r} is missing; it has {sorted(row)}.")
    for field in ("instructions", "outputs"):
        value = row[field]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{where}: {field!r} must be a list of strings.")
    instructions, outputs = row["instructions"], row["outputs"]
    if len(instructions) != len(outputs) or not instructions:
        raise DataError(
            f"{where}: {len(instructions)} instructions and {len(outputs)} outputs; one output an "
            "instruction and at least one of them are needed."
        )
    if not isinstance(row["input"], str) or not row["input"].strip():
        raise DataError(f"{where}: the document ('input') is empty.")
    return Record(str(index), row["input"], tuple(instructions), tuple(outputs))


def is_published(content: bytes, name: str) -> bool:
    """Whether a file is byte for byte the one of the official repository."""
    known = KNOWN_FILES[name]
    if known.sha256:
        return hashlib.sha256(content).hexdigest() == known.sha256
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return blob == known.git_blob


def has_published_counts(records: tuple[Record, ...], name: str) -> bool:
    """Whether there are as many documents and questions as in the published file."""
    known = KNOWN_FILES[name]
    questions = sum(len(record.instructions) for record in records)
    return (len(records), questions) == (known.documents, known.questions)


def altered_message(label: str, name: str, records: tuple[Record, ...]) -> str:
    """Text of the error for a file that is not the published one."""
    known = KNOWN_FILES[name]
    questions = sum(len(record.instructions) for record in records)
    return (
        f"{label} is not the published file: it is truncated or altered ({len(records)} documents "
        f"and {questions} questions; published: {known.documents} and {known.questions}). Fetch it "
        "again, or set own_data: true if these are documents of your own."
    )


def describe(file: DataFile) -> dict[str, Any]:
    """What goes into the results about the data of one task."""
    return {
        "source": file.source.kind,
        "path": file.source.path,
        "sample": file.source.kind == "sample",
        "own": file.source.own,
        "verified": file.verified,
        "files": {file.name: file.sha256},
    }
