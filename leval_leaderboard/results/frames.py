"""From evaluations on disk to two tidy frames: one of scores, one of samples."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from leval_leaderboard.results.chance import chance_level
from leval_leaderboard.results.discover import find_runs, inside
from leval_leaderboard.results.fields import ResultsError, finite, mapping, read_json
from leval_leaderboard.results.samples import NOT_SCORES, Samples, read_samples
from leval_leaderboard.results.schema import Run

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
SCORE_COLUMNS = (
    "run", "status", "note", "model", "method", "context_length", "task", "metric", "primary",
    "value", "stderr", "n", "clusters", "cut", "unparsed", "prompt_tokens", "kept_tokens", "chance",
    "higher_is_better", "partial", "limit", "sample", "data", "source", "python",
    "softmax", "seconds", "tokens_per_second", "peak_memory_bytes", "tokens_prefilled",
    "tokens_shared", "tokens_generated", "tokens_unique", "baseline", "created", "command",
)  # fmt: skip
"""Columns of `Results.scores`; a missing number is NaN, a missing text is empty."""

TELEMETRY = (
    "peak_memory_bytes", "tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique",
)  # fmt: skip
"""What our backends tell of a whole run."""


@dataclass
class Results:
    """Everything read from one or more folders.

    `scores`: a row for each run, task and metric (`SCORE_COLUMNS`); runs without numbers have a row
    a task with `status` and `note`. `samples`: a row for each run, task, metric and question with
    `run, task, metric, question, document, cluster, numerator, denominator, unparsed, truncated`.
    `runs[i]` belongs to `run == i` in both. `sample_files[i, task]` is where the texts are.
    """

    scores: Any
    samples: Any
    runs: list[Run]
    sample_files: Mapping[tuple[int, str], Path]
    warnings: list[str] = field(default_factory=list)


class _Interned:
    """Strings as integer codes, so that millions of rows stay small."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def add(self, values: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        codes = self.codes
        return np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)

    def column(self, parts: list[Any]) -> Any:
        codes: Any = np.concatenate(parts) if parts else np.array([], dtype=np.int32)
        return pd.Categorical.from_codes(codes, categories=pd.Index(list(self.codes)))


class _SampleTable:
    """Collects the samples of all runs column by column."""

    NAMES = ("task", "metric", "question", "document", "cluster")

    def __init__(self) -> None:
        self.text = {name: _Interned() for name in self.NAMES}
        self.parts: dict[str, list[Any]] = {
            name: []
            for name in (*self.NAMES, "run", "numerator", "denominator", "unparsed", "truncated")
        }

    def add(self, run: int, task: str, samples: Samples) -> None:
        n = len(samples.questions)
        shared = {
            "question": self.text["question"].add(samples.questions),
            "document": self.text["document"].add(samples.documents),
            "cluster": self.text["cluster"].add(samples.clusters),
            "task": np.repeat(self.text["task"].add([task]), n),
            "run": np.full(n, run, dtype=np.int32),
            "unparsed": np.array(samples.flags["unparsed"], dtype=np.float32),
            "truncated": np.array(samples.flags["truncated"], dtype=np.float32),
        }
        for metric, pairs in samples.metrics.items():
            for name, part in shared.items():
                self.parts[name].append(part)
            self.parts["metric"].append(np.repeat(self.text["metric"].add([metric]), n))
            known = [pair or (np.nan, np.nan) for pair in pairs]
            self.parts["numerator"].append(np.array([top for top, _ in known]))
            self.parts["denominator"].append(np.array([bottom for _, bottom in known]))

    def frame(self) -> Any:
        columns: dict[str, Any] = {}
        for name, parts in self.parts.items():
            if name in self.text:
                columns[name] = self.text[name].column(parts)
            else:
                columns[name] = np.concatenate(parts) if parts else np.array([])
            self.parts[name] = []
        return pd.DataFrame(columns, copy=False)


def load_results(*folders: Path) -> Results:
    """Read one or more results folders into one set of frames.

    Runs of a sweep come in the order of its config, others in the order of their names.

    A run found twice (same id) is taken once, the later written one. A cell that cannot be read
    becomes a marked row; a folder that cannot be read, or a newer schema, is an error.

    Raises:
        ResultsError: no such folder, nothing in it, or a newer schema.
    """
    found: dict[str, tuple[Run, list[Path], dict[str, str]]] = {}
    warnings: list[str] = []
    for folder in folders:
        for run, files, hashes in find_runs(folder):
            key = f"{run.run_id} {run.folder}" if run.status == "malformed" else run.run_id
            other = found.get(key)
            if other is not None:
                warnings.append(f"{run.run_id} was found twice; the one created last is used")
                if (other[0].status == "done", other[0].created) >= (
                    run.status == "done",
                    run.created,
                ):
                    continue
            found[key] = (run, files, hashes)
    if not found:
        raise ResultsError(
            f"{', '.join(str(f) for f in folders)}: no cell.json and no results_*.json below it"
        )
    rows: list[dict[str, Any]] = []
    table = _SampleTable()
    runs: list[Run] = []
    sample_files: dict[tuple[int, str], Path] = {}
    parents = dict.fromkeys(run.folder.parent for run, *_ in found.values())
    sweeps = {folder: at for at, folder in enumerate(parents)}
    for run, files, hashes in sorted(
        found.values(), key=lambda entry: (sweeps[entry[0].folder.parent], entry[0].place)
    ):
        index = len(runs)
        try:
            new_rows, logged = _read_run(run, files, hashes)
        except ResultsError as error:
            run = run.stopped("malformed", str(error)[:300])
            new_rows, logged = [], {}
        runs.append(run)
        for task, (path, samples) in logged.items():
            sample_files[index, task] = path
            table.add(index, task, samples)
        shared = _shared(run, index)
        for row in new_rows or _without_numbers(run):
            few = run.num_docs is not None and str(row["task"]).startswith("leval_")
            rows.append({**shared, **({"partial": True} if few else {}), **row})
    scores = pd.DataFrame(rows, columns=list(SCORE_COLUMNS))
    return Results(scores, table.frame(), runs, sample_files, warnings)


def _shared(run: Run, index: int) -> dict[str, Any]:
    tokens = run.telemetry.get("tokens_prefilled", 0.0) + run.telemetry.get("tokens_generated", 0.0)
    seconds = run.telemetry.get("seconds") or run.seconds
    return {
        "run": index, "status": run.status, "note": run.reason, "model": run.model,
        "method": run.method, "context_length": run.context_length, "limit": run.limit,
        "partial": run.limit is not None, "seconds": run.seconds,
        "tokens_per_second": tokens / seconds if tokens and seconds else np.nan,
        **{name: run.telemetry.get(name, np.nan) for name in TELEMETRY},
        "baseline": run.baseline or "", "created": run.created, "command": run.command,
    }  # fmt: skip


def _without_numbers(run: Run) -> list[dict[str, Any]]:
    return [{"task": task, "metric": "", "primary": True} for task in run.tasks or ("",)]


def _sample_path(results: Path, task: str) -> Path | None:
    """The samples file that was written with a results file, if it was."""
    stamp = results.stem.removeprefix("results_")
    name = f"samples_{task}_{stamp}.jsonl"
    if "/" in name or "\\" in name or "\0" in name or len(name) > 250:
        return None
    path = results.parent / name
    return path if inside(path, results.parent) else None


def _read_run(
    run: Run, files: list[Path], hashes: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, tuple[Path, Samples]]]:
    """Rows and samples of one finished run; a later results file replaces an earlier one's task."""
    rows: dict[str, list[dict[str, Any]]] = {}
    logged: dict[str, tuple[Path, Samples]] = {}
    named_groups: set[str] = set()
    for path in files if run.status == "done" else []:
        promised = hashes.get(path.name)
        if promised and hashlib.sha256(path.read_bytes()).hexdigest() != promised:
            raise ResultsError(f"{path.name}: altered after the run (SHA-256 differs)")
        content = read_json(path)
        groups = mapping(content, "groups", path)
        members = mapping(content, "group_subtasks", path)
        named_groups |= set(groups) | {name for name, tasks in members.items() if tasks}
        for task, values in mapping(content, "results", path).items():
            if task in groups or not isinstance(values, dict):
                continue
            name = str(task)[:200]
            where = _sample_path(path, str(task))
            samples = read_samples(where) if where else None
            if where and samples and hashes.get(where.name, samples.sha256) != samples.sha256:
                raise ResultsError(f"{where.name}: altered after the run (SHA-256 differs)")
            rows[name] = _task_rows(name, values, content, samples, path)
            if where and samples:
                logged[name] = (where, samples)
    if run.status == "done" and not rows:
        raise ResultsError(f"{files[-1].name}: no task in 'results'")
    result = [row for task_rows in rows.values() for row in task_rows]
    absent = {"metric": "", "primary": True, "status": "malformed", "note": "not in the results"}
    if rows:  # a group stands for its members, a path for the task in its file
        known = {*rows, *named_groups}
        result += [{"task": t, **absent} for t in run.tasks if t not in known and "/" not in t]
    return result, logged


def _data(content: Mapping[str, Any], task: str, where: Path) -> dict[str, Any]:
    """`source`, `sample` and a fingerprint of the documents, as the task recorded them.

    Also `softmax`, its precision where the task knows it, and `python`, the version whose language
    reference was read; the latter is part of the fingerprint even if the text is the same.
    """
    config = mapping(mapping(content, "configs", where), task, where)
    metadata = mapping(config, "metadata", where)
    data = metadata.get("data")
    softmax = str(metadata.get("softmax") or "")[:30]
    if not isinstance(data, dict):
        sample = metadata.get("data_dir") == "sample"
        return {"source": "", "sample": sample, "data": "", "python": "", "softmax": softmax}
    files = data.get("files")
    python = str(data.get("python_version") or "")[:30]
    text = "".join(f"{k}:{v};" for k, v in sorted(files.items())) if isinstance(files, dict) else ""
    text += f"python:{python};" if python else ""
    source = str(data.get("source") or "")[:100]
    return {
        "python": python,
        "softmax": softmax,
        "source": source,
        "sample": data.get("sample") is True or source == "sample",
        "data": hashlib.sha256(text.encode()).hexdigest()[:8] if text else "",
    }


def _task_rows(
    task: str,
    values: Mapping[str, Any],
    content: Mapping[str, Any],
    samples: Samples | None,
    where: Path,
) -> list[dict[str, Any]]:
    """One row a metric of one task."""
    better = mapping(content, "higher_is_better", where).get(task)
    better = better if isinstance(better, dict) else {}
    counts = mapping(content, "n-samples", where).get(task)
    counts = counts if isinstance(counts, dict) else {}
    original, effective = finite(counts.get("original")), finite(counts.get("effective"))
    first_filter: dict[str, str] = {}
    metrics: dict[str, tuple[Any, Any]] = {}
    for key, value in values.items():
        metric, _, chosen = key.partition(",")
        if not chosen or metric.endswith("_stderr") or metric in NOT_SCORES:
            continue
        if first_filter.setdefault(metric, chosen) == chosen:
            metrics[metric[:100]] = (value, values.get(f"{metric}_stderr,{chosen}"))
    common: dict[str, Any] = {"task": task, "n": effective, **_data(content, task, where)}
    if original is not None and effective is not None and effective < original:
        common["partial"] = True
    if samples:
        common |= {
            "n": len(samples.questions),
            "clusters": len(set(samples.clusters)),
            "cut": _mean(samples.flags["truncated"]),
            "unparsed": _mean(samples.flags["unparsed"]),
            "prompt_tokens": _mean(samples.flags["prompt_tokens"]),
            "kept_tokens": _mean(samples.flags["kept_tokens"]),
            "chance": chance_level(task, samples.golds),
        }
    main = next((m for m in PRIMARY if m in metrics), next(iter(metrics), ""))
    rows = []
    for metric, (value, stderr) in metrics.items():
        number = finite(value)
        row = {
            **common,
            "metric": metric,
            "primary": metric == main or ("perplexity" in metric and "@" in metric),
            "value": np.nan if number is None else number,
            "stderr": finite(stderr) if finite(stderr) is not None else np.nan,
            "higher_is_better": better.get(metric) is not False and "perplexity" not in metric
            and "bits_per_byte" not in metric,
        }  # fmt: skip
        problem = _problem(task, metric, number, samples, effective)
        if problem:
            row |= {"status": "malformed", "note": problem, "value": np.nan, "stderr": np.nan}
        rows.append(row)
    if not rows:
        rows.append({**common, "metric": "", "primary": True, "status": "malformed",
                     "note": "no metric in the results file"})  # fmt: skip
    return rows


# Topic retrieval asks for the first, second and third topic in turn: each question has one of them.
OF_SOME_QUESTIONS = ("first", "second", "third")


def _mean(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")


def _problem(
    task: str, metric: str, number: float | None, samples: Samples | None, effective: float | None
) -> str:
    """Why a number must not be shown, or nothing."""
    if number is None:
        return "not a finite number"
    ours = task.startswith(("leval_", "posgen_"))
    if ours and "@" not in metric and not -1e-9 <= number <= 1 + 1e-9:
        return f"{number:g} is outside 0..1"
    if "perplexity" in metric and number < 1 - 1e-9:
        return f"a perplexity of {number:g} is below 1"
    if samples is None:
        return ""
    if samples.bad:
        return f"{samples.bad} lines of the samples file are not JSON"
    if effective is not None and effective != len(samples.questions):
        return f"{effective:g} samples were scored, {len(samples.questions)} are logged"
    if ours and metric in samples.metrics:
        pairs = [pair for pair in samples.metrics[metric] if pair is not None]
        if len(pairs) != len(samples.questions) and metric not in OF_SOME_QUESTIONS:
            return "a sample's score is not a number"
        if any(bottom == 1.0 and not 0 <= top <= 1 for top, bottom in pairs):
            return "a sample's score is outside 0..1"
        again = sum(top for top, _ in pairs) / sum(bottom for _, bottom in pairs)
        if all(bottom == 1.0 for _, bottom in pairs) and abs(again - number) > 1e-6:
            return f"the samples give {again:.6g}, the results file says {number:.6g}"
    return ""
