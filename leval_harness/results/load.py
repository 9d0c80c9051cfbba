"""Results on disk as four pandas frames. Everything that is shown is made from these.

`runs`     a row for each run of a sweep, or for each results file that lm-eval wrote alone
`scores`   a row for each number of a results file: run, task, metric and filter
`samples`  a row for each question and number: numerator and denominator
`blocks`   a row for 64 tokens of a text that effective-context tasks read

Keys are ordinary columns, `run` joins the frames, and each frame counts its rows from 0. What a
results file holds and no frame has is in `Results.excluded`, with the reason.
"""

import contextlib
import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

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

TEXT, WHOLE, NUMBER, ANY = "text", "Int64", "float64", "object"

RUNS = {
    "run": "int64",
    **dict.fromkeys(("id", "sweep"), TEXT),
    "place": "int64",
    "folder": ANY,
    "files": ANY,
    **dict.fromkeys(("status", "note", "model", "checkpoint", "method", "rope"), TEXT),
    "context_length": WHOLE,
    "tasks": ANY,
    **dict.fromkeys(("backend", "dtype"), TEXT),
    "limit": NUMBER,
    "num_docs": WHOLE,
    **dict.fromkeys(("gen_kwargs", "chat_template"), TEXT),
    "seed": WHOLE,
    "baseline": TEXT,
    "margin": NUMBER,
    **dict.fromkeys(("command", "created"), TEXT),
    "seconds": NUMBER,
    "versions": ANY,
    **dict.fromkeys(("peak_memory_bytes", "tokens_prefilled", "tokens_generated"), NUMBER),
    **dict.fromkeys(("precision", "replaced", "arguments", "hardware"), TEXT),
}
"""Columns of `runs` and their types.

run: number of the row. id: of the run, or name of the file. sweep: folder of the sweep, or of the
file. place: position in the sweep's config. folder, files: paths; the files are lm-eval's results.
status: `done`, `failed`, `unfinished` or `malformed`, and `note` says why. model, method: names in
tables. checkpoint: path, hub name or address of the model. rope: RoPE settings as JSON, missing for
a checkpoint unmodified. context_length: tokens. tasks: names. limit: questions a task, or their
share below 1. num_docs: documents a task. gen_kwargs: JSON. margin: nats/token. created: ISO
8601, UTC. seconds, peak_memory_bytes, tokens_*: of the whole run. versions: package -> version.
precision: of the rotation. replaced: the shipped RoPE scaling that the method replaced, as JSON.
arguments: JSON of the model's other arguments that can change a number. hardware: in words.
"""

SCORES = {
    "run": "int64",
    **dict.fromkeys(("task", "name", "metric", "filter"), TEXT),
    "length": WHOLE,
    **dict.fromkeys(("value", "stderr"), NUMBER),
    "higher_is_better": "boolean",
    **dict.fromkeys(("status", "note"), TEXT),
    "asked": WHOLE,
    "partial": "boolean",
    "chance": NUMBER,
    "source": TEXT,
    "sample": "boolean",
    "data": TEXT,
    "shots": WHOLE,
    "claimed_length": WHOLE,
    "aggregation": TEXT,
    "group": "boolean",
}
"""Columns of `scores` and their types; a column `setting NAME` follows for each setting of a task.

name: the metric as lm-eval writes it; metric: without the context length in it (`loss@2048` is
`loss`; RULER's `4096` is `score`). filter: what extracted the answer. length: tokens that the
number holds at, in its name, else of the questions, else of the run. value, stderr: as in the file:
a share is from 0 to 1. higher_is_better: as the file says, else as is known of the metric; missing
where neither does. status: `done`, `not available` (lm-eval's N/A, NaN, infinity), `unscored`
(answers were kept and not scored), or that of a run without numbers, which has a row without a name
for each task; `note` says why. asked: questions. partial: some questions were left out. chance:
expected value of a guess. source, data: where documents came from, and a fingerprint of their
files. sample: the bundled sample was read. shots: examples in the prompt. claimed_length: tokens
that the checkpoint, unmodified, is said to read. aggregation: how the questions' values make the
number: `mean`, `ratio`, `perplexity` (exp of a ratio), `bits` (a ratio over ln 2), `own` (the
task's own). group: a number of several tasks.
"""

SAMPLES = {
    "run": "int64",
    **dict.fromkeys(("task", "filter", "question", "prompt", "document", "metric"), TEXT),
    **dict.fromkeys(("num", "den"), NUMBER),
}
"""Columns of `samples` and their types.

question: what was asked, the same for all models; prompt: hash of how it was asked. document:
questions about one document are not independent. metric: name of a score or loss, or one of
`unparsed`, `truncated`, `reached_limit`, `thinking_unfinished` (0 or 1), `kept_tokens`,
`document_tokens`. num, den: the value is `num / den`; den is 1 for scores; losses are nats and
tokens, words or bytes.
"""

BLOCKS = {
    "run": "int64",
    **dict.fromkeys(("task", "document", "digest"), TEXT),
    **dict.fromkeys(("start", "tokens"), "int64"),
    **dict.fromkeys(("full", "reference", "difference"), NUMBER),
}
"""Columns of `blocks` and their types.

document, digest: name of the document, and a hash of its tokens. start: position of the block's first
token, BOS counted. tokens: their number. full: sum of their losses after the whole text before
them, nats. reference: the same of the unmodified model in windows of its native context length, of the
sweep's reference run or of the run itself. difference: sum of `full - reference`, each token clipped to
±1 nat; positive where the method is worse. Missing where there is no reference.
"""


class ResultsError(UserError):
    """A results folder that cannot be read; the message names it."""


class LeftOut(NamedTuple):
    """What was found and is in no frame; `value` is missing for a whole file."""

    file: Path
    task: str
    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        where = ": ".join(filter(None, (str(self.file), self.task, self.name)))
        value = "" if self.value is None else f" = {self.value}"
        return f"{where}{value}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Results:
    """The four frames, see `RUNS`, `SCORES`, `SAMPLES` and `BLOCKS`, and what is in none of them.

    `names` are the methods that the caller renamed, and `folders` what was read.
    """

    runs: pd.DataFrame
    scores: pd.DataFrame
    samples: pd.DataFrame
    blocks: pd.DataFrame
    excluded: list[LeftOut]
    folders: tuple[Path, ...] = ()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would go through millions of rows again and again."""
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
    excluded: list[LeftOut] = []
    found = [run for root in roots for run in _below(root, excluded)]
    if not found:
        names = ", ".join(map(str, roots))
        reasons = "".join(f"\n{each}" for each in excluded[:3])
        raise ResultsError(f"{names}: no run.json and no results of lm-eval below it{reasons}")
    runs = _renamed(_once(found, excluded), method_names or {})
    read = [task for at, run in enumerate(runs) for task in _tasks(at, run, excluded)]
    tables = (
        frame([{**run, "run": at} for at, run in enumerate(runs)], RUNS)[list(RUNS)],
        frame([row for task in read for row in task.scores], SCORES),
        _samples(read),
    )
    documents = [document for task in read for document in task.documents]
    blocks = blocks_of(tables[0], documents, _native_lengths(tables[1]))
    return Results(*tables, frame(blocks, BLOCKS), excluded, tuple(roots))


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


def frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, str]) -> pd.DataFrame:
    """Rows as a frame of the declared columns and types; further columns are text."""
    further = dict.fromkeys(name for row in rows for name in row if name not in schema)
    types = {**schema, **dict.fromkeys(further, TEXT)}
    return pd.DataFrame(
        {name: column((row.get(name) for row in rows), kind) for name, kind in types.items()}
    )


def column(values: Iterable[Any], kind: str) -> pd.Series:
    """Values of a column in its declared type; None stands for what is missing."""
    listed = list(values)
    if kind == TEXT:
        return pd.Series(listed, dtype=pd.Series(["text"]).dtype)
    return pd.Series(listed, dtype=kind)


def _samples(read: Sequence[TaskRead]) -> pd.DataFrame:
    """The frame: a question's columns are made once, and repeated for each of its numbers."""
    questions = [question for task in read for question in task.samples]
    asked = _columns(ASKED, (who for who, _ in questions))
    numbers = _columns(MEASURED, chain.from_iterable(found for _, found in questions))
    counts = [len(found) for _, found in questions]
    repeated = asked.take(np.repeat(np.arange(len(asked)), counts))
    return pd.concat([repeated.reset_index(drop=True), numbers], axis=1)


def _columns(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    values = list(zip(*rows, strict=True)) or [()] * len(names)
    listed = zip(names, values, strict=True)
    return pd.DataFrame({name: column(each, SAMPLES[name]) for name, each in listed})


Run = dict[str, Any]
"""A row of `runs` without its number; `content` tells copies of a file from other runs."""

UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading a file of another origin may end with."""


def _below(root: Path, excluded: list[LeftOut]) -> Iterator[Run]:
    """Every run below a folder: those of a sweep in its order, others by name."""
    if not root.is_dir():
        what = "is a file" if root.is_file() else "no such folder"
        raise ResultsError(f"{root}: {what}; give a folder with results")
    runs: list[Run] = []
    sweeps: list[Path] = []
    for name, below, files in os.walk(root):
        folder = Path(name)
        below[:] = sorted(each for each in below if not each.startswith("."))
        paths = [folder / each for each in sorted(files) if each.endswith(".json")]
        read: Callable[[Path], Run | None] = _plain
        if RUN_FILE in files:
            below.clear()
            paths, read = [folder / RUN_FILE], _run_row
        for path in paths:
            if path.name == SWEEP:
                sweeps.append(folder)
            elif path.name != FAILED:
                try:
                    runs += filter(None, [read(path)])
                except ResultsError:
                    raise
                except UNREADABLE as error:
                    excluded.append(_unreadable(path, error))
    for folder in sweeps:
        runs = _in_sweep(folder, runs, excluded)
    order = {sweep: at for at, sweep in enumerate(dict.fromkeys(run["sweep"] for run in runs))}
    yield from sorted(runs, key=lambda run: (order[run["sweep"]], run["place"]))


def _unreadable(path: Path, error: Exception) -> LeftOut:
    said = f"{error!r}" if isinstance(error, KeyError) else f"{error}"
    return LeftOut(path, "", "", None, f"cannot be read ({said})")


def _object(path: Path) -> dict[str, Any]:
    """The object that a JSON file of ours holds; empty where there is no file.

    Raises:
        ValueError: it holds something else.
        ResultsError: it was written by a newer version.
    """
    content = json.loads(path.read_bytes()) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"holds {type(content).__name__} and no object")
    if (version := content.get("schema_version", 0)) > SCHEMA_VERSION:
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
    model, method = run["model"], run["method"]
    identity = run.get("identity") or {}
    files = tuple(sorted(folder.glob("results_*.json")))
    status, note = "done", ""
    if not files:
        status, note = "malformed", f"{folder}: no results_*.json"
    telemetry = run.get("telemetry") or {}
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
        "arguments": as_json(deciding_arguments(model.get("args") or {})),
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
    """Settings as JSON in one spelling (`2` for `2.0`); None without any."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(plain(settings), sort_keys=True) if settings else None


def _in_sweep(folder: Path, runs: list[Run], excluded: list[LeftOut]) -> list[Run]:
    """The runs that `sweep.json` lists, with its order and names; those that are missing too."""
    try:
        sweep = _object(folder / SWEEP)
        planned = {entry["id"]: entry for entry in sweep["runs"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        excluded.append(_unreadable(folder / SWEEP, error))
        return runs
    own = {run["id"]: run for run in runs if run["sweep"] == str(folder)}
    kept = [run for run in runs if run["sweep"] != str(folder)]
    excluded += [
        LeftOut(run["folder"], "", "", None, "of an earlier config: sweep.json does not list it")
        for name, run in own.items()
        if name not in planned
    ]
    of_sweep = {name: sweep.get(name) for name in ("baseline", "margin", "command")}
    for place, (name, entry) in enumerate(planned.items()):
        known = {"place": place, "model": entry.get("label") or entry["model"],
                 "method": entry["method"], **of_sweep}  # fmt: skip
        kept.append({**(own.get(name) or _missing(folder, name, entry)), **known})
    return kept


def _missing(folder: Path, name: str, run: dict[str, Any]) -> Run:
    """A run that a sweep lists and that has no results: it failed, or is not finished."""
    failed = read_json_object(folder / FAILED_RUNS / name / FAILED)
    return {
        "id": name,
        "sweep": str(folder),
        "folder": folder / RUNS_FOLDER / name,
        "files": (),
        "status": "unfinished" if failed is None else "failed",
        "note": "not finished" if failed is None else failed.get("reason", ""),
        "context_length": run.get("context_length"),
        "tasks": tuple(run["tasks"]),
        "content": name,
    }


def _plain(path: Path) -> Run | None:
    """The run of a results file that no sweep wrote; None of a file that is something else."""
    content = path.read_bytes()
    if b'"results"' not in content and not path.name.startswith("results_"):
        return None
    file = json.loads(content)
    tasks = file.get("results") if isinstance(file, dict) else None
    if not isinstance(tasks, dict) or not any(isinstance(each, dict) for each in tasks.values()):
        if not path.name.startswith("results_"):
            return None
        raise ValueError("no 'results' with tasks; this is no results file of lm-eval")
    results_file = Plain(file)
    check_version(results_file)
    known = results_file.run()
    return {
        "id": path.stem,
        "sweep": str(path.parent),
        "place": 0,
        "folder": path.parent,
        "files": (path,),
        "status": "done",
        "note": "",
        **known,
        "rope": as_json(known["rope"]),
        "gen_kwargs": as_json(known["gen_kwargs"]),
        "arguments": as_json(known["arguments"]),
        "content": hashlib.sha256(content).hexdigest(),
    }


def _once(found: list[Run], excluded: list[LeftOut]) -> list[Run]:
    """Every run once: of two with one id or content a finished one, then the one created last."""
    runs: dict[str, Run] = {}
    for run in found:
        other = runs.setdefault(run["content"], run)
        if other is not run:
            both = (other, run)
            kept = max(both, key=lambda r: (r["status"] == "done", r.get("created") or ""))
            copy = both[kept is other]
            excluded.append(LeftOut(copy["folder"], "", "", None, f"found twice: {kept['folder']}"))
            runs[run["content"]] = kept
    return list(runs.values())


def _renamed(runs: list[Run], names: Mapping[str, str]) -> list[Run]:
    """With the methods' names that a caller gave.

    Raises:
        ResultsError: nothing has what is to be renamed.
    """
    given = {str(Path(name)): each for name, each in names.items()} | dict(names)
    unknown, renamed = set(names), []
    for run in runs:
        known = {run["method"], run["id"], str(run["folder"]), *map(str, run["files"])}
        unknown = {name for name in unknown if not {name, str(Path(name))} & known}
        method = next((each for name, each in given.items() if name in known), run["method"])
        renamed.append({**run, "method": method})
    if unknown:
        there = ", ".join(sorted({run["method"] for run in runs}))
        missing = ", ".join(map(repr, sorted(unknown)))
        raise ResultsError(f"method-name: no method, run or folder {missing}; methods: {there}")
    return renamed


def _tasks(at: int, run: Run, excluded: list[LeftOut]) -> Iterator[TaskRead]:
    """What a run has of each task; a run without numbers has a row for each that says why.

    Of a task that several files of one run have, the newest counts.
    """
    found: dict[str, TaskRead] = {}
    for path in run["files"]:
        try:
            file = Plain(json.loads(path.read_bytes()))
            parts = {task: read_task(at, run, task, file, path) for task in file.names}
        except UNREADABLE as error:
            excluded.append(_unreadable(path, error))
            run |= {"status": "malformed", "note": f"{path}: {excluded[-1].reason}"}
            continue
        for task, part in parts.items():
            excluded += [LeftOut(path, task, *each) for each in part.excluded]
            if task in found:
                excluded.append(LeftOut(path, task, "", None, "replaced by a later file"))
        found |= parts
    if run["status"] == "done" and not found:
        run |= {"status": "malformed", "note": "no task in the results"}
    numbers = any(part.scores for part in found.values())
    status, note = run["status"], run["note"]
    if status == "done" and not numbers:
        status, note = "not available", "no number in the results"
    if status != "done":
        rows = [
            {"run": at, "task": task, "status": status, "note": note,
             "length": run.get("context_length")}
            for task in run["tasks"] or ("",)
        ]  # fmt: skip
        found |= {"": TaskRead(scores=rows)}
    yield from found.values()
