"""One evaluation, from a cell of a sweep or from a results file of lm-eval alone."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leval_harness.cell_record import CellRecord, DoneRecord, FailedRecord
from leval_harness.layout import CELL, CELLS, DONE, FAILED, FAILED_CELLS, SWEEP
from leval_harness.old_results.fields import (
    LONGEST_NAME,
    NewerSchemaError,
    ResultsError,
    digest,
    finite,
    machine_of,
    open_regular,
    parse_json,
    read_model,
    refused,
    short_name,
)
from leval_harness.old_results.lm_eval import ResultsFile
from leval_harness.old_results.settings import LENGTHS, settings_of
from leval_tasks.closed.catalog import TASKS

TELEMETRY = (
    "peak_memory_bytes", "tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique",
)  # fmt: skip
"""What our backends count in a whole run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluation: a model under one method at one context length on some tasks.

    Attributes:
        status: `done`, `failed`, `unfinished` or `malformed`; only `done` runs have numbers.
        reason: why a run has none.
        checkpoint: where its model lay.
        machine: the GPU, or the number of CPU cores; empty where that is not known.
        settings: what else decides the numbers (backend, dtype, seed, ...); runs that differ in it
            are never shown as one.
        place: its place in the config of its sweep, 0 where there is none.
        results: lm-eval's files, newest last.
        content: digest of the file of a plain run, which has no id.
        hashes: file name -> the SHA-256 that `done.json` promises.
    """

    run_id: str
    folder: Path
    status: str
    model: str
    method: str
    checkpoint: str = ""
    machine: str = ""
    context_length: int | None = None
    tasks: tuple[str, ...] = ()
    reason: str = ""
    limit: float | None = None
    num_docs: float | None = None
    baseline: str | None = None
    margin: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    created: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    telemetry: Mapping[str, float] = field(default_factory=dict)
    place: int = 0
    results: tuple[Path, ...] = ()
    content: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def unreadable(cls, run_id: str, folder: Path, reason: str = "") -> "Run":
        """What stands for a run of which nothing could be read."""
        return cls(
            run_id=run_id[:LONGEST_NAME],
            folder=folder,
            status="malformed",
            reason=reason[:LONGEST_NAME],
            model="unreadable",
            method=folder.name[:LONGEST_NAME] or "?",
        )

    @classmethod
    def read_cell(cls, folder: Path, root: Path) -> "Run":
        """A cell of a sweep below `root`; what is wrong with it becomes its reason.

        Raises:
            NewerSchemaError: a newer version of leval-harness wrote it.
        """
        run = cls.unreadable(folder.name, folder)
        try:
            for name in (CELL, DONE, FAILED):
                if os.path.lexists(folder / name) and (why := refused(folder, name, root)):
                    raise ResultsError(f"{folder / name}: {why}")
            cell = read_model(CellRecord, folder / CELL)
            run = cls.of_cell(cell, folder)
            if folder.parent.name == CELLS:  # it is there, so it is whole
                done = {"seconds": cell.seconds, "telemetry": cell.telemetry}
                of_cell = {"schema_version": cell.schema_version, "cell_id": cell.cell_id}
                return run.finished(DoneRecord.model_validate({**of_cell, **done}))
            if (folder / DONE).exists():
                return run.finished(read_model(DoneRecord, folder / DONE))
            if not (folder / FAILED).exists():
                return run.stopped("unfinished", "not finished")
            failed = read_model(FailedRecord, folder / FAILED)
            return run.stopped("failed", f"{failed.kind}: {failed.reason}")
        except NewerSchemaError:
            raise
        except ResultsError as error:
            return run.stopped("malformed", str(error))

    @classmethod
    def of_sweep(cls, folder: Path, root: Path) -> "list[Run]":
        """The cells that `sweep.json` names, in its order.

        Raises:
            ResultsError: it cannot be read.
        """
        sweep = parse_json((folder / SWEEP).read_bytes(), folder / SWEEP)
        found = []
        for place, cell in enumerate(sweep.get("cells", [])):
            here, failed = folder / CELLS / cell["id"], folder / FAILED_CELLS / cell["id"] / FAILED
            of_sweep = {
                **{key: sweep.get(key) for key in ("baseline", "margin")},
                "model": cell["label"],
                "method": cell["method"],
                "place": place,
            }
            if (here / CELL).exists():
                found.append(dataclasses.replace(cls.read_cell(here, root), **of_sweep))
                continue
            why = read_model(FailedRecord, failed).reason if failed.exists() else "not finished"
            planned = {key: cell[key] for key in ("context_length", "tasks")}
            status = "failed" if failed.exists() else "unfinished"
            run = cls(run_id=cell["id"], folder=here, status=status, **of_sweep, **planned)
            found.append(dataclasses.replace(run, reason=why))
        return found

    @classmethod
    def of_cell(cls, cell: CellRecord, folder: Path) -> "Run":
        """A cell, unfinished: the marker files of the folder decide the status afterwards.

        Raises:
            ResultsError: the record has no identity.
        """
        if not cell.identity:
            raise ResultsError(f"{folder / CELL}: identity: missing")
        return cls(
            run_id=short_name(cell.cell_id),
            folder=folder,
            status="unfinished",
            model=short_name(cell.model.name),
            method=short_name(cell.method.name),
            checkpoint=cell.model.path,
            machine=machine_of(cell.host),
            context_length=cell.context_length,
            tasks=cell.tasks,
            limit=cell.limit,
            num_docs=finite(cell.metadata.get("num_docs")),
            baseline=short_name(cell.baseline or "") or None,
            margin=cell.margin,
            settings=settings_of(cell.identity),
            command=cell.command[:LONGEST_NAME],
            created=cell.created[:LONGEST_NAME],
            versions=cell.versions,
            host=cell.host,
            place=cell.place,
        )

    @classmethod
    def of_results(cls, file: ResultsFile, where: Path, content: str = "") -> "Run":
        """A results file that no sweep of ours wrote.

        The method is the rope type in `model_args` (`rope_parameters`, or vLLM's `hf_overrides`),
        else `as shipped`.

        Raises:
            ResultsError: no `results` object.
        """
        if not file.results:
            raise ResultsError(f"{where}: no 'results'; this is not a results file of lm-eval")
        arguments, rope = file.config.arguments, file.config.rope
        lengths = (finite(each) for each in (*map(arguments.get, LENGTHS), file.max_length))
        length = next((each for each in lengths if each and each > 0), None)
        return cls(
            run_id=where.stem,
            folder=where.parent,
            status="done",
            model=short_name(file.model),
            method=short_name(_method_name(rope)) if rope else "as shipped",
            context_length=int(length) if length else None,
            tasks=tuple(name for name in file.results if name not in file.groups),
            limit=file.config.questions,
            settings=settings_of(file.identity),
            created=_created(file.date),
            versions=file.packages,
            seconds=file.seconds,
            results=(where,),
            content=content,
        )

    def finished(self, done: DoneRecord) -> "Run":
        """The same cell, done.

        Raises:
            ResultsError: the marker is of another cell, or does not fit the files of the folder.
        """
        where, folder = self.folder / DONE, self.folder
        if done.cell_id != self.run_id:
            raise ResultsError(f"{where}: belongs to another cell than cell.json")
        names = list(done.files) or [path.name for path in folder.iterdir()]
        for name in names:
            if (why := refused(folder, name)) and (done.files or name.startswith("results_")):
                raise ResultsError(f"{where}: 'files' names {name[:80]!r}, which {why}")
        results = [n for n in sorted(names) if n.startswith("results_") and n.endswith(".json")]
        if not results:
            raise ResultsError(f"{where}: the cell is marked done but has no results_*.json")
        counted = {name: finite(value) for name, value in done.telemetry.items()}
        run = dataclasses.replace(
            self,
            status="done",
            seconds=done.seconds,
            telemetry={name: number for name, number in counted.items() if number is not None},
            results=tuple(folder / name for name in results),
            hashes=done.files,
        )
        run.check_unaltered(folder / CELL)
        return run

    def stopped(self, status: str, reason: str, tasks: tuple[str, ...] | None = None) -> "Run":
        """The same run, or some of its tasks, without numbers, and why."""
        tasks = self.tasks if tasks is None else tasks
        return dataclasses.replace(self, status=status, reason=reason[:LONGEST_NAME], tasks=tasks)

    def has_fewer_documents(self, task: str, stated: bool | None = None) -> bool:
        """Whether documents were left out: as the results state it, else as was requested."""
        return self.num_docs is not None and task in TASKS if stated is None else stated

    def check_unaltered(self, path: Path) -> None:
        """Refuse a file whose SHA-256 is not the one that `done.json` promises, if it does.

        Raises:
            ResultsError: it was altered after the run, or cannot be read.
        """
        if path.name not in self.hashes:
            return
        try:
            with open_regular(path) as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error
        if found != self.hashes[path.name]:
            raise ResultsError(f"{path.name}: altered after the run (SHA-256 differs)")

    def file(self, name: str) -> Path:
        """A file of the run's folder.

        Raises:
            ResultsError: it is no regular file in there, was altered, or cannot be read.
        """
        if why := refused(self.folder, name):
            raise ResultsError(f"{self.folder / name}: {why}")
        self.check_unaltered(self.folder / name)
        return self.folder / name

    @property
    def tokens(self) -> float:
        """Tokens read and written; 0 where they were not counted."""
        known = self.telemetry
        return known.get("tokens_prefilled", 0.0) + known.get("tokens_generated", 0.0)

    @property
    def busy_seconds(self) -> float | None:
        """Seconds that the backend measured, or else all."""
        return self.telemetry.get("seconds") or self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """`tokens` over `busy_seconds`."""
        seconds = self.busy_seconds
        return self.tokens / seconds if self.tokens and seconds else None


def _created(date: Any) -> str:
    """lm-eval's date, seconds since 1970, in ISO 8601 (UTC) as sweeps write it; else empty."""
    seconds = finite(date)
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):  # no year that a date can have
        return ""


def _method_name(rope: Mapping[str, Any]) -> str:
    """A method by its type and factor; several where layers have their own."""
    kind, factor = rope.get("rope_type") or rope.get("type"), finite(rope.get("factor"))
    if kind:
        return f"{kind} x{factor:g}" if factor else f"{kind}"
    layers = [_method_name(each) for each in rope.values() if isinstance(each, dict) and each]
    return " / ".join(dict.fromkeys(layers)) or f"rope #{digest(json.dumps(rope, sort_keys=True))}"
