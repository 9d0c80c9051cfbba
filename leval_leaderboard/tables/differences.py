"""Paired differences of perplexity: method against baseline on the same documents, in nats."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from leval_leaderboard.results import ResultsError
from leval_leaderboard.statistics import compare_perplexities
from leval_leaderboard.tables.analysis import Analysis
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table
from leval_leaderboard.tables.names import length_label, task_label
from leval_leaderboard.tables.provenance import run_provenance

METRIC = re.compile(r"token_perplexity@(\d{1,12})|nll@([1-9]\d{0,11})-(\d{1,12})")
"""Curve points and the stretches between them; the first stretch is the first curve point."""

COLUMNS = ("Compared", "Text", "Tokens", "Documents", "Baseline", "Method", "Difference",
           "95% low", "95% high", "p")  # fmt: skip
NOTES = (
    "Tokens: positions of the windows; A to B: only the positions between two lengths",
    "Baseline, Method: mean negative log-likelihood, nats a token; Difference: method minus "
    "baseline on the same tokens, negative is better",
    "95% low, high: interval clustered by document (CR2, Student's t), none below three documents; "
    "p: sign flips over documents; neither is corrected for the number of rows",
    "all: the documents of every text together, weighted by their tokens",
)


def parse_pairs(pairs: Sequence[str]) -> list[tuple[str, str]]:
    """`METHOD:BASELINE` texts as pairs.

    Raises:
        ResultsError: a text of another form, or a method paired with itself.
    """
    found = []
    for pair in pairs:
        method, colon, baseline = (part.strip() for part in pair.partition(":"))
        if not (method and colon and baseline) or ":" in baseline or method == baseline:
            raise ResultsError(
                f"pair: '{pair}' must name two methods as METHOD:BASELINE, for example "
                "resonance_yarn:yarn"
            )
        found.append((method, baseline))
    return found


def difference_table(analysis: Analysis, pairs: Sequence[tuple[str, str]]) -> Table:
    """Paired differences of every perplexity task, and of all of them pooled.

    Args:
        analysis: from `analyse`.
        pairs: (method, baseline) by the names of the runs.

    Raises:
        ResultsError: an unknown method, no perplexity that both methods of a pair have logged
            samples of, or documents whose token counts differ between the two.
    """
    frame = analysis.frame
    known = frame["metric"].map(lambda metric: METRIC.fullmatch(str(metric)) is not None)
    rows = frame[known & (frame["status"] == "done")]
    unknown = sorted({name for pair in pairs for name in pair} - set(frame["label"]))
    if unknown:
        methods = ", ".join(sorted(set(frame["label"])))
        raise ResultsError(f"pair: no run has the method '{unknown[0]}'; methods: {methods}")
    sums = _sums(analysis.results.samples)
    blocks, used, documents = [], set(), set()
    for name, block in rows.groupby("block", sort=False):
        lines = []
        for method, baseline in pairs:
            entries = _pair_entries(block, method, baseline)
            lines += _pair_rows(f"{method} − {baseline}", entries, sums)
            for _, task, left, right in entries:
                used |= {left, right}
                documents |= {(task, d) for d in _cut(sums, left, task).index.unique("cluster")}
        if lines:
            blocks.append(Block(str(name), tuple(lines)))
    if not blocks:
        raise ResultsError(
            f"pair: no perplexity that both methods of {', '.join(':'.join(p) for p in pairs)} "
            "have in one block with logged samples; run both with the same settings"
        )
    runs = [analysis.results.runs[index] for index in sorted(used)]
    return Table(
        "Perplexity on the same documents: paired differences, nats a token",
        tuple(Column(label, numeric=at >= 3) for at, label in enumerate(COLUMNS)),
        tuple(blocks),
        (*NOTES, *run_provenance(runs, f"{len(documents)} documents")),
    )


def _sums(samples: Any) -> Any:
    """Nats and tokens by run, task, metric and document."""
    names = ["run", "task", "metric", "cluster"]
    wanted = [m for m in samples["metric"].cat.categories if METRIC.fullmatch(str(m))]
    own = samples[samples["metric"].isin(wanted)]
    own = own.astype(dict.fromkeys(names[1:], str))
    return own.groupby(names, sort=False)[["numerator", "denominator"]].sum()


def _cut(sums: Any, run: int, task: str) -> Any:
    return sums.loc[(run, task)] if (run, task) in sums.index else sums.iloc[:0]


def _pair_entries(block: Any, method: str, baseline: str) -> list[tuple[str, str, int, int]]:
    """`(metric, task, run of the method, run of the baseline)`, shortest length first."""
    keys = ["context_length", "metric", "task"]
    sides = [
        block[block["label"] == name].drop_duplicates(keys)[[*keys, "run"]]
        for name in (method, baseline)
    ]
    both = sides[0].merge(sides[1], on=keys, suffixes=("", "_baseline"))
    found = [
        (str(row.metric), str(row.task), int(row.run), int(row.run_baseline))
        for row in both.itertuples()
    ]
    return sorted(found, key=lambda entry: _positions(entry[0]))


def _positions(metric: str) -> tuple[int, int]:
    match = METRIC.fullmatch(metric)
    assert match is not None
    whole, start, end = match.groups()
    return (int(whole), 0) if whole else (int(end), int(start))


def _pair_rows(name: str, entries: Sequence[tuple[str, str, int, int]], sums: Any) -> list[Row]:
    rows = []
    for metric in dict.fromkeys(entry[0] for entry in entries):
        mine = [entry for entry in entries if entry[0] == metric]
        parts = [(task, _paired(sums, metric, task, a, b)) for _, task, a, b in mine]
        parts = [(task, part) for task, part in parts if len(part)]
        if len(parts) > 1:
            parts.append(("all", pd.concat([part for _, part in parts])))
        rows += [_row(name, task, metric, part) for task, part in parts]
    return rows


def _paired(sums: Any, metric: str, task: str, method: int, baseline: int) -> Any:
    """Columns `method`, `baseline` (nats) and `tokens`, a row for each document of both."""
    sides = []
    for run in (method, baseline):
        part = _cut(sums, run, task)
        part = part[part.index.get_level_values("metric") == metric]
        sides.append(part.droplevel([n for n in part.index.names if n != "cluster"]))
    both = sides[0].merge(sides[1], left_index=True, right_index=True, suffixes=("", "_baseline"))
    both = both[both["denominator"] > 0]
    if not np.array_equal(both["denominator"], both["denominator_baseline"]):
        raise ResultsError(
            f"{task}, {metric}: a document has another number of tokens in the baseline; compare "
            "runs of one tokenizer and the same settings"
        )
    return pd.DataFrame(
        {
            "method": both["numerator"],
            "baseline": both["numerator_baseline"],
            "tokens": both["denominator"],
        }
    )


def _row(name: str, task: str, metric: str, part: Any) -> Row:
    nats = {side: float(part[side].sum() / part["tokens"].sum()) for side in ("baseline", "method")}
    found = compare_perplexities(
        part["method"].to_numpy(), part["baseline"].to_numpy(), part["tokens"].to_numpy()
    )
    end, start = _positions(metric)
    length = f"{length_label(start)} to {length_label(end)}" if start else length_label(end)
    cells = [Cell(name), Cell(task_label(task)), Cell(length)]
    cells.append(Cell(str(len(part)), float(len(part))))
    cells += [Cell(f"{nats[side]:.4f}", nats[side]) for side in ("baseline", "method")]
    cells += [_signed(value) for value in (found.difference, found.low, found.high)]
    cells.append(Cell(f"{found.p:.2g}", found.p) if len(part) >= 3 else Cell("–"))
    return Row(tuple(cells))


def _signed(nats: float) -> Cell:
    return Cell(f"{nats:+.4f}", nats) if math.isfinite(nats) else Cell("–")
