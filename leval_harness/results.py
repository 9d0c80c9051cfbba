"""Results on disk as four pandas frames. Everything that is shown is made from these.

`runs`     a row for each cell of a sweep, or for each results file that lm-eval wrote alone
`scores`   a row for each number of a results file: run, task, metric and filter
`samples`  a row for each question and number: numerator and denominator
`blocks`   a row for 64 tokens of a text that effective-context tasks read

Keys are ordinary columns, `run` joins the frames, and each frame counts its rows from 0. What a
results file holds and no frame has is in `Results.left_out`, with the reason.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from leval_harness.layout import CELL, CELLS, DONE, FAILED, FAILED_CELLS, SCHEMA_VERSION, SWEEP
from leval_harness.lm_eval_files import Plain, read_task
from leval_harness.lm_eval_samples import TaskRead
from leval_harness.token_blocks import blocks_of
from resonance_vllm.errors import UserError

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
    "precision": TEXT,
    "replaced": TEXT,
}
"""Columns of `runs` and their types.

run: number of the row. id: of the cell, or name of the file. sweep: folder of the sweep, or of the
file. place: position in the sweep's config. folder, files: paths; the files are lm-eval's results.
status: `done`, `failed`, `unfinished` or `malformed`, and `note` says why. model, method: names in
tables. checkpoint: path, hub name or address of the model. rope: RoPE settings as JSON, missing for
a checkpoint as shipped. context_length: tokens. tasks: names. limit: questions a task, or their
share below 1. num_docs: documents a task. gen_kwargs: JSON. margin: nats a token. created: ISO
8601, UTC. seconds, peak_memory_bytes, tokens_*: of the whole run. versions: package -> version.
precision: of the rotation. replaced: the shipped RoPE scaling that the method replaced, as JSON.
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
    "shipped_length": WHOLE,
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
files. sample: the bundled sample was read. shots: examples in the prompt. shipped_length,
claimed_length: tokens, as shipped and under the method. aggregation: how the questions' values make
the number: `mean`, `ratio`, `perplexity` (exp of a ratio), `bits` (a ratio over ln 2), `parts`
(mean of the means of a task's parts), `own` (the task's own). group: a number of several tasks.
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
    **dict.fromkeys(("task", "text", "digest"), TEXT),
    **dict.fromkeys(("start", "tokens"), "int64"),
    **dict.fromkeys(("full", "reference", "gain"), NUMBER),
}
"""Columns of `blocks` and their types.

text, digest: name of the text, and a hash of its tokens. start: position of the block's first
token, BOS counted. tokens: their number. full: sum of their losses after the whole text before
them, nats. reference: the same of the model as shipped in windows of its trained length, of the
sweep's yardstick run or of the run itself. gain: sum of `reference - full`, each token clipped to
±1 nat. Missing where there is no reference.
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
    left_out: list[LeftOut]
    folders: tuple[Path, ...] = ()


def load_results(*folders: Path | str, method_names: Mapping[str, str] | None = None) -> Results:
    """Read every cell of sweeps and every results file of lm-eval below some folders.

    Runs of a sweep come in the order of its config, others in the order of their names. A run that
    is found twice counts once.

    Args:
        folders: results of sweeps (also of the layout before), or of lm-eval.
        method_names: method, id or folder of a run -> the name that its method gets.

    Raises:
        ResultsError: no such folder, nothing in it, or results of a newer version.
    """
    roots = [Path(folder) for folder in folders]
    left_out: list[LeftOut] = []
    found = [run for root in roots for run in _below(root, left_out)]
    if not found:
        names = ", ".join(map(str, roots))
        reasons = "".join(f"\n{each}" for each in left_out[:3])
        raise ResultsError(f"{names}: no cell.json and no results of lm-eval below it{reasons}")
    runs = _renamed(_once(found, left_out), method_names or {})
    read = [task for at, run in enumerate(runs) for task in _tasks(at, run, left_out)]
    tables = (
        frame([{**run, "run": at} for at, run in enumerate(runs)], RUNS)[list(RUNS)],
        frame([row for task in read for row in task.scores], SCORES),
        _samples(read),
    )
    blocks = blocks_of(tables[0], [text for task in read for text in task.texts])
    return Results(*tables, frame(blocks, BLOCKS), left_out, tuple(roots))


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


def _samples(read: Iterable[TaskRead]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in SAMPLES}
    for task in read:
        for name, values in task.samples.items():
            columns[name] += values
    return pd.DataFrame({name: column(columns[name], kind) for name, kind in SAMPLES.items()})


Run = dict[str, Any]
"""A row of `runs` without its number; `content` tells copies of a file from other runs."""

RESULTS = re.compile(r"(results|out|eval)_.*\.json|results\.json")
"""Names that lm-eval gives to its results: a file with one of them is a run or a problem."""


def _below(root: Path, left_out: list[LeftOut]) -> Iterator[Run]:
    """Every run below a folder: those of a sweep in its order, others by name."""
    if not root.is_dir():
        what = "is a file" if root.is_file() else "no such folder"
        raise ResultsError(f"{root}: {what}; give a folder with results")
    cells: list[Run] = []
    sweeps: list[Path] = []
    for name, below, files in os.walk(root):
        folder = Path(name)
        below[:] = sorted(each for each in below if not each.startswith("."))
        if CELL in files:
            below.clear()
            cells.append(_cell(folder))
            continue
        if SWEEP in files:
            sweeps.append(folder)
        for file in sorted(files):
            if file.endswith(".json") and file not in (SWEEP, FAILED):
                cells += _plain(folder / file, left_out)
    for folder in sweeps:
        cells = _in_sweep(folder, cells, left_out)
    order = {sweep: at for at, sweep in enumerate(dict.fromkeys(run["sweep"] for run in cells))}
    yield from sorted(cells, key=lambda run: (order[run["sweep"]], run["place"]))


def _object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; errors are those of json and of the file."""
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"holds {type(content).__name__} and no object")
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema_version {version} is newer than {SCHEMA_VERSION}, the newest that "
            "this version of leval-harness reads; upgrade leval-harness"
        )
    return content


def _stopped(folder: Path, status: str, note: str, **known: Any) -> Run:
    """A run without numbers, and why."""
    unknown = {"id": folder.name, "sweep": str(folder.parent), "place": 0, "folder": folder,
               "files": (), "model": "unreadable", "method": folder.name, "tasks": (),
               "content": str(folder)}  # fmt: skip
    return {**unknown, "status": status, "note": note, **known}


def _cell(folder: Path) -> Run:
    """A cell of a sweep; what cannot be read is malformed."""
    try:
        cell = _object(folder / CELL)
        in_sweep = folder.parent.name == CELLS
        done = cell if in_sweep else _if_there(folder / DONE)
        failed = _if_there(folder / FAILED)
        return _of_cell(folder, cell, done, failed)
    except ResultsError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return _stopped(folder, "malformed", f"{folder / CELL}: cannot be read ({_said(error)})")


def _if_there(path: Path) -> dict[str, Any]:
    return _object(path) if path.is_file() else {}


def _said(error: Exception) -> str:
    return f"{error!r}" if isinstance(error, KeyError) else f"{error}"


def _of_cell(
    folder: Path, cell: dict[str, Any], done: dict[str, Any], failed: dict[str, Any]
) -> Run:
    model, method, identity = cell["model"], cell["method"], cell.get("identity") or {}
    files = tuple(sorted(folder.glob("results_*.json"))) if done else ()
    status = "done" if files else "failed" if failed and not done else "unfinished"
    note = {"failed": failed.get("reason", ""), "unfinished": "not finished"}.get(status, "")
    if done and not files:
        status, note = "malformed", f"{folder}: no results_*.json"
    telemetry = done.get("telemetry") or {}
    return {
        "id": cell["cell_id"],
        "sweep": str(folder.parent.parent if folder.parent.name == CELLS else folder.parent),
        "place": cell.get("place") or 0,
        "folder": folder,
        "files": files,
        "status": status,
        "note": note,
        "model": model.get("label") or model["name"],
        "checkpoint": model.get("path"),
        "method": method["name"],
        "rope": as_json(method.get("rope_parameters")),
        "context_length": cell.get("context_length"),
        "tasks": tuple(cell["tasks"]),
        "backend": model.get("backend"),
        "dtype": model.get("dtype"),
        "limit": cell.get("limit"),
        "num_docs": (cell.get("metadata") or {}).get("num_docs"),
        "gen_kwargs": as_json(identity.get("gen_kwargs")),
        "chat_template": str(identity.get("apply_chat_template") or "") or None,
        "seed": cell.get("seed"),
        "baseline": cell.get("baseline"),
        "margin": cell.get("margin"),
        "command": cell.get("command"),
        "created": cell.get("created"),
        "seconds": done.get("seconds"),
        "versions": cell.get("versions") or {},
        **{name: telemetry.get(name) for name in TELEMETRY},
        "precision": method.get("rope_precision") or None,
        "replaced": as_json(cell.get("replaced")),
        "content": cell["cell_id"],
    }


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


def _in_sweep(folder: Path, cells: list[Run], left_out: list[LeftOut]) -> list[Run]:
    """The cells that `sweep.json` lists, with its order and names; those that are missing too."""
    try:
        sweep = _object(folder / SWEEP)
        listed = {each["id"]: (place, each) for place, each in enumerate(sweep["cells"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        left_out.append(LeftOut(folder / SWEEP, "", "", None, f"cannot be read ({_said(error)})"))
        return cells
    own = {run["id"]: run for run in cells if run["sweep"] == str(folder)}
    kept = [run for run in cells if run["sweep"] != str(folder)]
    left_out += [
        LeftOut(run["folder"], "", "", None, "of an earlier config: sweep.json does not list it")
        for name, run in own.items()
        if name not in listed
    ]
    for name, (place, cell) in listed.items():
        known = {"place": place, "model": cell.get("label") or cell["model"],
                 "method": cell["method"], "baseline": sweep.get("baseline"),
                 "margin": sweep.get("margin"), "command": sweep.get("command")}  # fmt: skip
        if name in own:
            kept.append({**own[name], **known})
            continue
        try:
            failed = _if_there(folder / FAILED_CELLS / name / FAILED)
        except ValueError as error:
            failed = {"reason": f"failed.json cannot be read ({error})"}
        status, note = (
            ("failed", failed.get("reason")) if failed else ("unfinished", "not finished")
        )
        known |= {"context_length": cell.get("context_length"), "tasks": tuple(cell["tasks"]),
                  "sweep": str(folder), "content": name}  # fmt: skip
        kept.append(_stopped(folder / CELLS / name, status, note or "", **known))
    return kept


def _plain(path: Path, left_out: list[LeftOut]) -> Iterator[Run]:
    """The run of a results file that no sweep wrote; nothing where a file is something else."""
    is_named = RESULTS.fullmatch(path.name) is not None
    try:
        content = path.read_bytes()
        if not is_named and b'"results"' not in content:
            return
        file = json.loads(content)
        tasks = file.get("results") if isinstance(file, dict) else None
        if not isinstance(tasks, dict) or not any(isinstance(t, dict) for t in tasks.values()):
            if is_named:
                raise ValueError("no 'results' with tasks; this is no results file of lm-eval")
            return
        known = Plain(file).run(path)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = f"cannot be read ({_said(error)})"
        left_out.append(LeftOut(path, "", "", None, reason))
        if is_named:
            yield _stopped(path.parent, "malformed", f"{path}: {reason}", id=path.stem,
                           content=str(path))  # fmt: skip
        return
    yield {
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
        "content": hashlib.sha256(content).hexdigest(),
    }


def _once(found: list[Run], left_out: list[LeftOut]) -> list[Run]:
    """Every run once: of two with one id or content a finished one, then the one created last."""
    runs: dict[str, Run] = {}
    for run in found:
        other = runs.get(run["content"])
        if other is None:
            runs[run["content"]] = run
            continue
        kept = max(other, run, key=lambda r: (r["status"] == "done", r.get("created") or ""))
        copy = run if kept is other else other
        left_out.append(LeftOut(copy["folder"], "", "", None, f"found twice: {kept['folder']}"))
        runs[run["content"]] = kept
    return list(runs.values())


def _renamed(runs: list[Run], names: Mapping[str, str]) -> list[Run]:
    """With the methods' names that a caller gave.

    Raises:
        ResultsError: nothing has what is to be renamed.
    """

    def known(run: Run) -> set[str]:
        return {run["method"], run["id"], str(run["folder"]), *map(str, run["files"])}

    for name in names:
        plain = str(Path(name))
        if not any({name, plain} & known(run) for run in runs):
            there = ", ".join(sorted({run["method"] for run in runs}))
            raise ResultsError(f"method-name: no method, run or folder {name!r}; methods: {there}")
    given = {str(Path(name)): each for name, each in names.items()} | dict(names)
    return [
        {
            **run,
            "method": next((given[each] for each in given if each in known(run)), run["method"]),
        }
        for run in runs
    ]


def _tasks(at: int, run: Run, left_out: list[LeftOut]) -> Iterator[TaskRead]:
    """What a run has of each task; a run without numbers has a row for each that says why.

    Of a task that several files of one cell have, the newest counts.
    """
    found: dict[str, TaskRead] = {}
    for path in run["files"]:
        try:
            file = Plain(json.loads(path.read_bytes()))
            parts = {task: read_task(at, run, task, file, path) for task in file.names}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            run |= {"status": "malformed", "note": f"{path}: cannot be read ({_said(error)})"}
            left_out.append(LeftOut(path, "", "", None, run["note"]))
            continue
        for task, part in parts.items():
            left_out += [LeftOut(path, task, *each) for each in part.left_out]
            if task in found:
                left_out.append(LeftOut(path, task, "", None, "replaced by a later file"))
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
