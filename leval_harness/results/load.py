"""Results on disk as four pandas frames, which everything that is shown is made from.

`runs`     a row for each run of a sweep, or for each results file that lm-eval wrote alone
`scores`   a row for each number of a results file: run, task, metric and filter
`samples`  a row for each question and number: numerator and denominator
`blocks`   a row for each 64 tokens of a document that effective-context tasks read

Keys are ordinary columns, `run` joins the frames, and each frame counts its rows from 0. Entries of
results files that are in none of the frames are in `Results.excluded`, with the reason.
"""

import contextlib
import gc
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from leval_harness.results.columns import BLOCKS, NUMBER, RUNS, SAMPLES, SCORES, TEXT, Column
from leval_harness.results.layout import (
    FAILED,
    FAILED_RUNS,
    RUN_FILE,
    RUNS_FOLDER,
    SCHEMA_VERSION,
    SWEEP,
)
from leval_harness.results.lm_eval_files import Plain, check_version, deciding_arguments, read_task
from leval_harness.results.lm_eval_samples import ASKED, MEASURED, TaskRead
from leval_harness.results.methods import SETTING
from leval_harness.results.token_blocks import blocks_of
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import read_json_object

TEXT_TYPE = pd.StringDtype("python", na_value=np.nan)
"""pandas' `str` over Python's strings: frames of many columns and few rows are twice as fast."""


class ResultsError(UserError):
    """A results folder that cannot be read; the message names it."""


class Excluded(NamedTuple):
    """An entry of a file, or a file, that is in none of the frames.

    Attributes:
        file: path of the file.
        task: task of the entry; empty for a whole file.
        name: name of the entry; empty for a whole file.
        value: value of the entry; None for a whole file.
        reason: why it is in none of the frames.
    """

    file: Path
    task: str
    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        entry = ": ".join(filter(None, (str(self.file), self.task, self.name)))
        value = "" if self.value is None else f" = {self.value}"
        return f"{entry}{value}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Results:
    """The four frames, and what is in none of them.

    Attributes:
        runs: see `columns.RUNS`.
        scores: see `columns.SCORES`.
        samples: see `columns.SAMPLES`.
        blocks: see `columns.BLOCKS`.
        excluded: entries of files that no frame has, and files that could not be read.
        folders: what was read.
    """

    runs: pd.DataFrame
    scores: pd.DataFrame
    samples: pd.DataFrame
    blocks: pd.DataFrame
    excluded: list[Excluded]
    folders: tuple[Path, ...] = ()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch off the garbage collector, which would visit millions of rows again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def load_results(*folders: Path | str, method_names: Mapping[str, str] | None = None) -> Results:
    """Read every run of sweeps and every results file of lm-eval below some folders.

    Runs of a sweep come in the order of its config, others in the order of their names. A run that
    is found twice counts once.

    Args:
        folders: results of sweeps, or of lm-eval.
        method_names: method, id or folder of a run -> the name that its method gets.

    Raises:
        ResultsError: no such folder, nothing in it, or results of a newer version.
    """
    roots = [Path(folder) for folder in folders]
    excluded: list[Excluded] = []
    all_runs: list[Run] = []
    for root in roots:
        all_runs += _below(root, excluded)
    if not all_runs:
        names = ", ".join(map(str, roots))
        reasons = "".join(f"\n{entry}" for entry in excluded[:3])
        raise ResultsError(f"{names}: no run.json and no results of lm-eval below it{reasons}")
    run_rows = _renamed(_once(all_runs, excluded), method_names or {})
    run_rows = _with_short_names(run_rows)

    reads: list[TaskRead] = []
    for number, run in enumerate(run_rows):
        reads += _tasks(number, run, excluded)
    # after the tasks were read: reading changes the status of a run
    runs = frame([{**run, "run": number} for number, run in enumerate(run_rows)], RUNS)
    scores = frame([row for read in reads for row in read.scores], SCORES)
    documents = [document for read in reads for document in read.documents]
    blocks = blocks_of(runs, documents, _native_lengths(scores))
    return Results(
        runs=runs[list(RUNS)],
        scores=scores,
        samples=_samples(reads),
        blocks=frame(blocks, BLOCKS),
        excluded=excluded,
        folders=tuple(roots),
    )


def _native_lengths(scores: pd.DataFrame) -> dict[tuple[int, str], float]:
    """Return run and task -> native context length in tokens, where the scores state one.

    A window that the task was given takes its place.
    """
    lengths = scores["claimed_length"].astype(NUMBER)
    window = f"{SETTING}window"
    if window in scores:
        lengths = pd.to_numeric(scores[window], errors="coerce").fillna(lengths)
    keys = zip(scores["run"], scores["task"], strict=True)
    known = zip(keys, lengths, strict=True)
    return {key: length for key, length in known if pd.notna(length)}


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return rows as a frame of the declared columns and types; further columns are text."""
    further = dict.fromkeys(name for row in rows for name in row if name not in columns)
    types = {name: declared.type for name, declared in columns.items()}
    types |= dict.fromkeys(further, TEXT)
    return pd.DataFrame(
        {name: column([row.get(name) for row in rows], kind) for name, kind in types.items()}
    )


def column(values: Iterable[Any], kind: str) -> pd.Series:
    """Return the values of a column in its declared type; None is a missing value."""
    listed = list(values)
    if kind == TEXT:
        return pd.Series(listed, dtype=TEXT_TYPE)
    return pd.Series(listed, dtype=kind)


def _samples(reads: Sequence[TaskRead]) -> pd.DataFrame:
    """Return the frame `samples`."""
    questions = [question for read in reads for question in read.samples]
    question_columns = _sample_columns(ASKED, (question for question, _ in questions))
    numbers = _sample_columns(MEASURED, chain.from_iterable(values for _, values in questions))
    # The columns of a question are made once and repeated for each of its numbers: that is faster.
    counts = [len(values) for _, values in questions]
    repeated = question_columns.take(np.repeat(np.arange(len(questions)), counts))
    return pd.concat([repeated.reset_index(drop=True), numbers], axis=1)


def _sample_columns(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """Return some columns of the frame `samples` from rows with their values."""
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    return pd.DataFrame(
        {
            name: column(of_name, SAMPLES[name].type)
            for name, of_name in zip(names, values, strict=True)
        }
    )


Run = dict[str, Any]
"""A row of `runs` without its number; `content` is equal in copies of a run."""

UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of reading a file that another program wrote."""


def _below(root: Path, excluded: list[Excluded]) -> list[Run]:
    """Return every run below a folder: those of a sweep in its order, others by name.

    Args:
        root: the folder.
        excluded: files that cannot be read are added to it.

    Raises:
        ResultsError: there is no such folder, or a file was written by a newer version.
    """
    if not root.is_dir():
        problem = "is a file" if root.is_file() else "no such folder"
        raise ResultsError(f"{root}: {problem}; give a folder with results")
    runs: list[Run] = []
    sweeps: list[Path] = []
    for name, subfolders, files in os.walk(root):
        folder = Path(name)
        if RUN_FILE in files:
            # what else is in the folder of a run belongs to it
            subfolders.clear()
            files = [RUN_FILE]
        # os.walk goes on into what is left in this list, in its order
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for file in sorted(files):
            if file == SWEEP:
                sweeps.append(folder)
            elif file.endswith(".json") and file != FAILED:
                run = _read_run(folder / file, excluded)
                if run is not None:
                    runs.append(run)
    for folder in sweeps:
        runs = _in_sweep(folder, runs, excluded)
    order = {sweep: position for position, sweep in enumerate({run["sweep"]: None for run in runs})}
    return sorted(runs, key=lambda run: (order[run["sweep"]], run["place"]))


def _read_run(path: Path, excluded: list[Excluded]) -> Run | None:
    """Return the run of a JSON file; None of another file, and of one that cannot be read.

    Args:
        path: a `run.json`, or a file that may be lm-eval's.
        excluded: a file that cannot be read is added to it.
    """
    try:
        return _run_row(path) if path.name == RUN_FILE else _plain(path)
    except ResultsError:
        raise
    except UNREADABLE as error:
        excluded.append(_unreadable(path, error))
        return None


def _unreadable(path: Path, error: Exception) -> Excluded:
    """Return the entry of a file that cannot be read."""
    # the text of a KeyError is the key alone
    reason = repr(error) if isinstance(error, KeyError) else str(error)
    return Excluded(path, "", "", None, f"cannot be read ({reason})")


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a sweep; empty where there is no file.

    Raises:
        ValueError: it holds something else.
        ResultsError: it was written by a newer version.
    """
    content = json.loads(path.read_bytes()) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not an object")
    version = content.get("schema_version", 0)
    if version > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest that "
            "this version of leval-harness reads; upgrade leval-harness"
        )
    return content


def _run_row(path: Path) -> Run:
    """Return the row of a finished run of a sweep.

    Args:
        path: its `run.json`.

    Raises:
        KeyError: the file lacks a field.
        ResultsError: it was written by a newer version.
    """
    folder = path.parent
    run = _object(path)
    model = run["model"]
    method = run["method"]
    identity = run.get("identity") or {}
    files = tuple(sorted(folder.glob("results_*.json")))
    status = "done"
    note = ""
    if not files:
        status = "malformed"
        note = f"{folder}: no results_*.json"
    telemetry = run.get("telemetry") or {}
    arguments = {"revision": model.get("revision"), **(model.get("args") or {})}
    return {
        "id": run["run_id"],
        "sweep": str(folder.parent.parent),
        "place": run.get("place") or 0,
        "folder": folder,
        "files": files,
        "status": status,
        "note": note,
        "model": model.get("label") or model["name"],
        "checkpoint": model.get("path"),
        "method": method["name"],
        "rope": as_json(method.get("rope_parameters")),
        "context_length": run.get("context_length"),
        "tasks": tuple(run["tasks"]),
        "backend": model.get("backend"),
        "dtype": model.get("dtype"),
        "limit": run.get("limit"),
        "num_docs": (run.get("metadata") or {}).get("num_docs"),
        "gen_kwargs": as_json(identity.get("gen_kwargs")),
        "chat_template": str(identity.get("apply_chat_template") or "") or None,
        "seed": run.get("seed"),
        "baseline": run.get("baseline"),
        "margin": run.get("margin"),
        "command": run.get("command"),
        "created": run.get("created"),
        "seconds": run.get("seconds"),
        "versions": run.get("versions") or {},
        **{name: telemetry.get(name) for name in TELEMETRY},
        "precision": method.get("rope_precision") or None,
        "replaced": as_json(run.get("replaced")),
        "arguments": as_json(deciding_arguments(arguments)),
        "hardware": _hardware(run.get("host") or {}),
        "content": run["run_id"],
    }


def _hardware(host: Mapping[str, Any]) -> str | None:
    """Return the machine of a run in words: its GPUs, else its cores; None if it is unknown."""
    system = " ".join(str(host[name]) for name in ("system", "processor") if host.get(name))
    gpus = host.get("gpus")
    if isinstance(gpus, list) and gpus:
        counts = {name: gpus.count(name) for name in gpus}
        parts = [f"{count} x {name}" for name, count in counts.items()]
        return ", ".join(filter(None, [*parts, system]))
    if host.get("cores"):
        system = f"{system}, {host['cores']} cores"
    return system or None


TELEMETRY = ("peak_memory_bytes", "tokens_prefilled", "tokens_generated")


def as_json(settings: Any) -> str | None:
    """Return settings as JSON in one spelling (`2` for `2.0`); None without any."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(entry) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    return json.dumps(plain(settings), sort_keys=True) if settings else None


def _in_sweep(folder: Path, runs: list[Run], excluded: list[Excluded]) -> list[Run]:
    """Return the runs with those of one sweep in the order and under the names of its `sweep.json`.

    Runs that are missing are added, and those that it does not list are excluded.

    Args:
        folder: of the sweep.
        runs: what was read below the root, of other sweeps too.
        excluded: runs of an earlier config are added to it, and a `sweep.json` that cannot be read.
    """
    try:
        sweep = _object(folder / SWEEP)
        planned = {entry["id"]: entry for entry in sweep["runs"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        excluded.append(_unreadable(folder / SWEEP, error))
        return runs
    own_runs = {run["id"]: run for run in runs if run["sweep"] == str(folder)}
    result = [run for run in runs if run["sweep"] != str(folder)]
    for name, run in own_runs.items():
        if name not in planned:
            reason = "of an earlier config: sweep.json does not list it"
            excluded.append(Excluded(run["folder"], "", "", None, reason))
    for position, (name, entry) in enumerate(planned.items()):
        run = own_runs.get(name) or _missing(folder, name, entry)
        result.append({
            **run,
            "place": position,
            "model": entry.get("label") or entry["model"],
            "method": entry["method"],
            "baseline": sweep.get("baseline"),
            "margin": sweep.get("margin"),
            "command": sweep.get("command"),
        })  # fmt: skip
    return result


def _missing(folder: Path, name: str, entry: Mapping[str, Any]) -> Run:
    """Return the run that a sweep lists and that has no results: it failed, or is not finished.

    Args:
        folder: of the sweep.
        name: id of the run.
        entry: of the run in `sweep.json`.
    """
    failed = read_json_object(folder / FAILED_RUNS / name / FAILED)
    status = "unfinished"
    note = "not finished"
    if failed is not None:
        status = "failed"
        note = failed.get("reason", "")
    return {
        "id": name,
        "sweep": str(folder),
        "folder": folder / RUNS_FOLDER / name,
        "files": (),
        "status": status,
        "note": note,
        "context_length": entry.get("context_length"),
        "tasks": tuple(entry["tasks"]),
        "content": name,
    }


def _plain(path: Path) -> Run | None:
    """Return the run of a results file that no sweep wrote; None of a file that is something else.

    Raises:
        ValueError: the file has the name of lm-eval's, and no results; or it is too old.
    """
    content = path.read_bytes()
    is_named_so = path.name.startswith("results_")
    if b'"results"' not in content and not is_named_so:
        return None
    file = json.loads(content)
    tasks = file.get("results") if isinstance(file, dict) else None
    has_tasks = isinstance(tasks, dict) and any(
        isinstance(values, dict) for values in tasks.values()
    )
    if not has_tasks and not is_named_so:
        return None
    if not has_tasks:
        raise ValueError("no 'results' with tasks; this is not a results file of lm-eval")
    results_file = Plain(file)
    check_version(results_file)
    known = results_file.run()
    settings = {name: as_json(known[name]) for name in ("rope", "gen_kwargs", "arguments")}
    return {
        "id": path.stem,
        "sweep": str(path.parent),
        "place": 0,
        "folder": path.parent,
        "files": (path,),
        "status": "done",
        "note": "",
        **known,
        **settings,
        "content": hashlib.sha256(content).hexdigest(),
    }


def _once(runs: list[Run], excluded: list[Excluded]) -> list[Run]:
    """Return every run once: of two copies a finished one, then the one created last.

    Args:
        runs: all runs; copies have the same `content`.
        excluded: the other copies are added to it.
    """
    best: dict[str, Run] = {}
    for run in runs:
        other = best.setdefault(run["content"], run)
        if other is run:
            continue
        better = other
        copy = run
        if _is_better(run, other):
            better = run
            copy = other
        best[run["content"]] = better
        reason = f"found twice: {better['folder']}"
        excluded.append(Excluded(copy["folder"], "", "", None, reason))
    return list(best.values())


def _is_better(run: Run, other: Run) -> bool:
    """Return whether a copy of a run is finished or newer, where the other one is not."""
    quality = (run["status"] == "done", run.get("created") or "")
    return quality > (other["status"] == "done", other.get("created") or "")


def _renamed(runs: list[Run], names: Mapping[str, str]) -> list[Run]:
    """Return the runs with the methods' names that a caller gave.

    Args:
        runs: all runs.
        names: method, id, folder or file of a run -> name of its method.

    Raises:
        ResultsError: no run has what is to be renamed.
    """
    new_names = {str(Path(name)): new_name for name, new_name in names.items()} | dict(names)
    unused = set(names)
    renamed = []
    for run in runs:
        known_as = {run["method"], run["id"], str(run["folder"]), *map(str, run["files"])}
        unused = {name for name in unused if not {name, str(Path(name))} & known_as}
        matching = (new_name for name, new_name in new_names.items() if name in known_as)
        renamed.append({**run, "method": next(matching, run["method"])})
    if unused:
        methods = ", ".join(sorted({run["method"] for run in runs}))
        missing = ", ".join(map(repr, sorted(unused)))
        raise ResultsError(f"method-name: no method, run or folder {missing}; methods: {methods}")
    return renamed


def _with_short_names(runs: list[Run]) -> list[Run]:
    """Return the runs with models that are named by a path under the name of their folder.

    A path stays where another model's folder has the same name: they would count as one model.
    """
    paths_of_name: dict[str, set[str]] = {}
    for model in {run["model"] for run in runs}:
        paths_of_name.setdefault(Path(model).name, set()).add(model)
    renamed = []
    for run in runs:
        name = Path(run["model"]).name
        is_unique = Path(run["model"]).is_absolute() and len(paths_of_name[name]) == 1
        renamed.append({**run, "model": name if is_unique else run["model"]})
    return renamed


def _tasks(number: int, run: Run, excluded: list[Excluded]) -> list[TaskRead]:
    """Return what a run has of each task; a run without numbers has a row that says why for each.

    Of a task that several files of one run have, the newest counts.

    Args:
        number: of the run in the frame `runs`.
        run: its row; status and note are changed where its files cannot be read.
        excluded: entries without a row are added to it.
    """
    reads: dict[str, TaskRead] = {}
    for path in run["files"]:
        try:
            file = Plain(json.loads(path.read_bytes()))
            reads_of_file = {task: read_task(number, run, task, file, path) for task in file.names}
        except UNREADABLE as error:
            unreadable = _unreadable(path, error)
            excluded.append(unreadable)
            run |= {"status": "malformed", "note": f"{path}: {unreadable.reason}"}
            continue
        for task, read in reads_of_file.items():
            excluded += [Excluded(path, task, *entry) for entry in read.excluded]
            if task in reads:
                excluded.append(Excluded(path, task, "", None, "replaced by a later file"))
        reads |= reads_of_file
    if run["status"] == "done" and not reads:
        run |= {"status": "malformed", "note": "no task in the results"}
    rows = _rows_without_numbers(number, run, reads.values())
    return [*reads.values(), TaskRead(scores=rows)]


def _rows_without_numbers(number: int, run: Run, reads: Iterable[TaskRead]) -> list[dict[str, Any]]:
    """Return a row of `scores` for each task of a run without numbers; none for other runs."""
    status = run["status"]
    note = run["note"]
    if status == "done":
        if any(read.scores for read in reads):
            return []
        status = "not available"
        note = "no number in the results"
    common = {"run": number, "status": status, "note": note}
    tasks = run["tasks"] or ("",)
    return [{**common, "task": task, "length": run.get("context_length")} for task in tasks]
