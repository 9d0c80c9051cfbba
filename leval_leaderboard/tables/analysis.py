"""Scores with intervals, ranks and paired comparisons: what every table, figure and page shows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from leval_leaderboard.results import Results, ResultsError, Run
from leval_leaderboard.statistics import (
    Comparison,
    Estimate,
    compare_perplexities,
    compare_scores,
    estimate_mean,
    estimate_ratio,
    holm,
)

LEVEL = 0.05
BLOCK_SETTINGS = (
    "backend", "dtype", "revision", "rope_precision", "chat_template", "gen_kwargs", "seed",
    "task_gen_kwargs", "num_docs", "min_questions", "truncation", "stride", "num_fewshot",
)  # fmt: skip
"""Settings that must agree before two runs are ranked against each other."""

PRECISE_SOFTMAX = ("", "float32", "float64")
"""Precisions that need no mark; empty where a task takes no softmax."""

SIGNIFICANT, CANNOT_TELL = "*", "?"

Key = tuple[int, str, str]


@dataclass(frozen=True)
class Analysis:
    """The analysed frame and the baseline of each block.

    `frame`: the rows of `Results.scores` with `block`, `label` (method), and for each finished row
    `low, high, interval, rank, difference, p, p_holm, smallest_p, threshold, wins, ties, losses,
    detectable, mark`. Scores are fractions; a perplexity's `difference` is nats a token.
    """

    frame: Any
    baselines: Mapping[str, str]
    results: Results
    notes: list[str] = field(default_factory=list)


def analyse(results: Results, baseline: str | None = None) -> Analysis:
    """Estimate, rank and compare.

    Args:
        results: what was read.
        baseline: method to compare with in every block; else the one the runs name, else `none`
            (a method of that name is plain RoPE), else no comparison is made.

    Raises:
        ResultsError: `baseline` is given and no run has that method.
    """
    frame = results.scores.copy()
    frame["partial"] = frame["partial"].fillna(False).astype(bool)
    frame["sample"] = frame["sample"].fillna(False).astype(bool)
    frame["softmax"] = frame["softmax"].fillna("")
    frame["block"] = _blocks(frame, results.runs)
    frame["label"] = _labels(frame)
    methods = set(frame["label"])
    if baseline is not None and baseline not in methods:
        raise ResultsError(
            f"baseline: no run has the method '{baseline}'; methods: {', '.join(sorted(methods))}"
        )
    baselines = {
        str(block): _baseline(part, baseline) for block, part in frame.groupby("block", sort=False)
    }
    pairs = _sample_index(results.samples)
    for name in ("low", "high", "rank", "difference", "p", "p_holm", "smallest_p", "threshold",
                 "wins", "ties", "losses", "detectable", "diff_low", "diff_high"):  # fmt: skip
        frame[name] = np.nan
    frame["mark"], frame["interval"] = "", "none"
    _estimates(frame, pairs)
    _compare(frame, pairs, baselines)
    _rank(frame)
    return Analysis(frame, baselines, results, list(results.warnings))


def _blocks(frame: Any, runs: list[Run]) -> list[str]:
    """A block's title for each row: the model, and whatever distinguishes its runs of one task.

    A setting that differs between tasks alone (perplexity has no generation arguments) sets no runs
    apart that a reader could take for one another.
    """
    settings = pd.DataFrame(
        [{name: run.settings.get(name, "") for name in BLOCK_SETTINGS} for run in runs]
    )
    rows = settings.iloc[frame["run"].to_numpy()].reset_index(drop=True)
    rows["model"], rows["task"] = frame["model"].to_numpy(), frame["task"].to_numpy()
    varying = {
        model: [name for name in BLOCK_SETTINGS if part.groupby("task")[name].nunique().max() > 1]
        for model, part in rows.groupby("model")
    }
    titles = []
    for at, row in enumerate(frame.itertuples()):
        parts = [str(row.model)]
        values = rows.iloc[at] if varying[row.model] else {}
        parts += [
            f"{name.replace('_', ' ')} {values[name] or 'unset'}" for name in varying[row.model]
        ]
        if row.sample:
            parts.append("bundled sample, not the real documents")
        if row.softmax not in PRECISE_SOFTMAX:
            parts.append(f"softmax: {row.softmax}")
        if row.partial:
            limit = partial_text(row.limit, runs[row.run].num_docs)
            parts.append(f"partial: {limit}")
        titles.append(" · ".join(parts))
    return _split_by_data(frame, titles)


def _split_by_data(frame: Any, titles: list[str]) -> list[str]:
    """Set runs apart that would share a block although they asked about different documents.

    A run's label is made of the tasks in dispute alone, so all its tasks stay in one block.
    """
    rows = frame[["run", "task", "data"]].assign(title=titles)
    known = rows[rows["data"].fillna("") != ""].drop_duplicates()
    disputed = known.groupby(["title", "task"])["data"].transform("nunique") > 1
    labels = {
        run: "+".join(sorted(set(part["data"])))
        for run, part in known[disputed].groupby("run", sort=False)
    }
    return [
        f"{title} · data {labels[run]}" if run in labels else title
        for title, run in zip(titles, frame["run"], strict=True)
    ]


def partial_text(limit: float | None, documents: float | None) -> str:
    """How a partial run was limited."""
    if limit is not None and limit == limit:
        return f"the first {limit:g} questions of each task"
    return f"{counted(documents, 'document')} of each task" if documents else "limited"


def counted(number: float, noun: str) -> str:
    """`1 document`, `3 documents`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def _labels(frame: Any) -> Any:
    """Method names; two different runs that would share a place get their id."""
    place = ["block", "method", "context_length", "task", "metric"]
    clash = frame.groupby(place, dropna=False)["run"].transform("nunique") > 1
    clashing = set(frame.loc[clash, "run"])
    ids = frame["run"].map(lambda run: run in clashing)
    return frame["method"].where(~ids, frame["method"] + " (run " + frame["run"].astype(str) + ")")


def _baseline(part: Any, wanted: str | None) -> str:
    methods = set(part["label"])
    named = [name for name in part["baseline"] if name]
    for name in (wanted, *named[:1], "none", "default"):
        if name and name in methods:
            return str(name)
    return ""


def _sample_index(samples: Any) -> dict[Key, Any]:
    """Where each (run, task, metric) lies in the samples frame, as a slice."""
    if not len(samples):
        return {}
    codes = [samples["run"].to_numpy()] + [
        samples[name].cat.codes.to_numpy() for name in ("task", "metric")
    ]
    change = np.any([np.diff(code) != 0 for code in codes], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(change) + 1])
    ends = np.concatenate([starts[1:], [len(samples)]])
    tasks, metrics = samples["task"].cat.categories, samples["metric"].cat.categories
    columns = {
        "question": samples["question"].cat.codes.to_numpy(),
        "cluster": samples["cluster"].cat.codes.to_numpy(),
        "top": samples["numerator"].to_numpy(),
        "bottom": samples["denominator"].to_numpy(),
    }
    index: dict[Key, Any] = {}
    for start, end in zip(starts, ends, strict=True):
        key = (int(codes[0][start]), str(tasks[codes[1][start]]), str(metrics[codes[2][start]]))
        part = {name: column[start:end] for name, column in columns.items()}
        known = ~np.isnan(part["top"])
        index[key] = part if known.all() else {k: v[known] for k, v in part.items()}
    return index


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a perplexity or a rate of bits."""
    return "perplexity" in metric or "bits_per_byte" in metric


def exponent_of(metric: str) -> float | None:
    """What turns mean nats into the metric: `exp(1 * nats)`, or None where it is a rate."""
    return 1.0 if "perplexity" in metric else None


def _estimates(frame: Any, pairs: Mapping[Key, Any]) -> None:
    """Fill stderr and interval of every finished row."""
    for at in frame.index[(frame["status"] == "done") & frame["value"].notna()]:
        metric = str(frame.at[at, "metric"])
        part = pairs.get((int(frame.at[at, "run"]), str(frame.at[at, "task"]), metric))
        estimate = _estimate(metric, part) if part is not None else None
        if estimate is None:
            frame.at[at, "interval"] = "reported" if frame.at[at, "stderr"] >= 0 else "none"
            continue
        if not math.isclose(estimate.value, frame.at[at, "value"], rel_tol=1e-6, abs_tol=1e-9):
            continue  # an aggregation of another task's own: its standard error stands as reported
        for name in ("stderr", "low", "high", "clusters"):
            frame.at[at, name] = getattr(estimate, name)
        frame.at[at, "interval"] = estimate.method


def _estimate(metric: str, part: Any) -> Estimate | None:
    if not part["top"].size:
        return None
    if not lower_is_better(metric):
        return estimate_mean(part["top"], part["cluster"]) if (part["bottom"] == 1).all() else None
    tops, bottoms = _by_cluster(part)
    if metric.startswith("bits_per_byte"):
        tops = tops / math.log(2)
    try:
        return estimate_ratio(tops, bottoms, exponent_of(metric))
    except ValueError:
        return None


def _by_cluster(part: Any) -> tuple[Any, Any]:
    _, index = np.unique(part["cluster"], return_inverse=True)
    return np.bincount(index, weights=part["top"]), np.bincount(index, weights=part["bottom"])


def _common(part: Any, other: Any) -> tuple[Any, Any]:
    """The questions that both runs have, in one order."""
    if np.array_equal(part["question"], other["question"]):
        return part, other
    _, left, right = np.intersect1d(part["question"], other["question"], return_indices=True)
    return {k: v[left] for k, v in part.items()}, {k: v[right] for k, v in other.items()}


def _compare(frame: Any, pairs: Mapping[Key, Any], baselines: Mapping[str, str]) -> None:
    """Paired comparison with the baseline, corrected within task, metric and context length."""
    done = frame[(frame["status"] == "done") & frame["value"].notna()]
    family = ["block", "task", "metric", "context_length"]
    for key, part in done.groupby(family, dropna=False, sort=False):
        baseline = baselines[key[0]]
        at_baseline = part.index[part["label"] == baseline]
        if not baseline or len(at_baseline) != 1 or len(part) < 2:
            continue
        base = pairs.get((int(part.at[at_baseline[0], "run"]), key[1], key[2]))
        rivals = [
            (at, pairs.get((int(part.at[at, "run"]), key[1], key[2])))
            for at in part.index
            if at != at_baseline[0]
        ]
        rivals = [(at, samples) for at, samples in rivals if samples is not None]
        if base is None or not rivals:
            continue
        threshold = LEVEL / len(rivals)
        found = [
            (at, comparison)
            for at, samples in rivals
            if (comparison := _one(str(key[2]), samples, base, threshold)) is not None
        ]
        adjusted = holm([comparison.p for _, comparison in found])
        for (at, comparison), p_holm in zip(found, adjusted, strict=True):
            _write(frame, at, comparison, float(p_holm), threshold)


def _one(metric: str, method: Any, baseline: Any, level: float) -> Comparison | None:
    method, baseline = _common(method, baseline)
    if not method["top"].size:
        return None
    if not lower_is_better(metric):
        same = (method["bottom"] == 1).all() and (baseline["bottom"] == 1).all()
        return (
            compare_scores(method["top"], baseline["top"], baseline["cluster"], level)
            if same
            else None
        )
    tops, sizes = _by_cluster({**method, "cluster": baseline["cluster"]})
    base_tops, base_sizes = _by_cluster(baseline)
    return (
        compare_perplexities(tops, base_tops, sizes, level) if (sizes == base_sizes).all() else None
    )


def _write(frame: Any, at: Any, found: Comparison, p_holm: float, threshold: float) -> None:
    for name in ("difference", "p", "smallest_p", "wins", "ties", "losses", "detectable"):
        frame.at[at, name] = getattr(found, name)
    frame.at[at, "diff_low"], frame.at[at, "diff_high"] = found.low, found.high
    frame.at[at, "p_holm"], frame.at[at, "threshold"] = p_holm, threshold
    if found.smallest_p > threshold:
        frame.at[at, "mark"] = CANNOT_TELL
    elif p_holm <= LEVEL:
        frame.at[at, "mark"] = SIGNIFICANT


def _rank(frame: Any) -> None:
    """Dense rank within block, task and metric family: 1 is best; lengths are ranked apart."""
    done = frame[(frame["status"] == "done") & frame["value"].notna()]
    for (_, _, metric, _), part in done.groupby(
        ["block", "task", "metric", "context_length"], dropna=False, sort=False
    ):
        values = part["value"].round(12)
        if values.nunique() < 2:
            continue
        frame.loc[part.index, "rank"] = values.rank(
            method="dense", ascending=lower_is_better(str(metric))
        )
