"""Paired differences of perplexity: method against baseline on the same documents, in nats."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leval_leaderboard.results import ResultsError
from leval_leaderboard.results.samples import Floats, Samples
from leval_leaderboard.statistics.paired import compare_perplexities
from leval_leaderboard.tables.analysis import Analysis, grouped
from leval_leaderboard.tables.entries import Entry
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

AllSamples = Mapping[tuple[int, str], Samples]


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
    labels = {entry.label for entry in analysis.entries}
    unknown = sorted({name for pair in pairs for name in pair} - labels)
    if unknown:
        methods = ", ".join(sorted(labels))
        raise ResultsError(f"pair: no run has the method '{unknown[0]}'; methods: {methods}")
    curves = [e for e in analysis.entries if METRIC.fullmatch(e.score.metric)]
    curves = [entry for entry in curves if entry.score.status == "done"]
    samples = analysis.results.samples
    blocks, used, documents = [], set(), set()
    for name, block in grouped(curves, lambda entry: entry.block).items():
        lines = []
        for method, baseline in pairs:
            entries = _pair_entries(block, method, baseline)
            lines += _pair_rows(f"{method} − {baseline}", entries, samples)
            for sides in entries:
                used |= {side.score.run for side in sides}
                documents |= _documents(sides[0], samples)
        if lines:
            blocks.append(Block(name, tuple(lines)))
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


def _documents(entry: Entry, samples: AllSamples) -> set[tuple[str, int]]:
    """`(task, document)` of what a run was asked."""
    logged = samples.get((entry.score.run, entry.task))
    return {(entry.task, int(code)) for code in logged.clusters} if logged else set()


def _pair_entries(block: list[Entry], method: str, baseline: str) -> list[tuple[Entry, Entry]]:
    """The method's entry and the baseline's of each length and text, shortest length first."""
    sides = [
        {
            (entry.run.context_length, entry.score.metric, entry.task): entry
            for entry in block
            if entry.label == name
        }
        for name in (method, baseline)
    ]
    both = [(entry, sides[1][key]) for key, entry in sides[0].items() if key in sides[1]]
    return sorted(both, key=lambda pair: _positions(pair[0].score.metric))


def _positions(metric: str) -> tuple[int, int]:
    match = METRIC.fullmatch(metric)
    assert match is not None
    whole, start, end = match.groups()
    return (int(whole), 0) if whole else (int(end), int(start))


def _pair_rows(name: str, entries: Sequence[tuple[Entry, Entry]], samples: AllSamples) -> list[Row]:
    rows = []
    for metric, pairs in grouped(entries, lambda pair: pair[0].score.metric).items():
        parts = [(sides[0].task, _paired(*sides, samples)) for sides in pairs]
        parts = [(task, part) for task, part in parts if part.tokens.size]
        if len(parts) > 1:
            parts.append(("all", _Paired.joined([part for _, part in parts])))
        rows += [_row(name, task, metric, part) for task, part in parts]
    return rows


@dataclass(frozen=True)
class _Paired:
    """Nats of the method and of the baseline, and tokens, of each document of both: `[G]`."""

    method: Floats
    baseline: Floats
    tokens: Floats

    @staticmethod
    def joined(parts: Sequence["_Paired"]) -> "_Paired":
        return _Paired(
            np.concatenate([part.method for part in parts]),
            np.concatenate([part.baseline for part in parts]),
            np.concatenate([part.tokens for part in parts]),
        )


def _paired(method: Entry, baseline: Entry, samples: AllSamples) -> _Paired:
    task, metric = method.task, method.score.metric
    logged = [samples.get((side.score.run, task)) for side in (method, baseline)]
    ratios = [each.ratios(metric) if each else None for each in logged]
    if ratios[0] is None or ratios[1] is None:
        return _Paired(*np.zeros((3, 0)))
    documents, nats, tokens = ratios[0].by_cluster()
    others, base_nats, base_tokens = ratios[1].by_cluster()
    _, left, right = np.intersect1d(documents, others, return_indices=True)
    left, right = left[tokens[left] > 0], right[tokens[left] > 0]
    if not np.array_equal(tokens[left], base_tokens[right]):
        raise ResultsError(
            f"{task}, {metric}: a document has another number of tokens in the baseline; compare "
            "runs of one tokenizer and the same settings"
        )
    return _Paired(nats[left], base_nats[right], tokens[left])


def _row(name: str, task: str, metric: str, part: _Paired) -> Row:
    means = [float(side.sum() / part.tokens.sum()) for side in (part.baseline, part.method)]
    paired = compare_perplexities(part.method, part.baseline, part.tokens)
    end, start = _positions(metric)
    length = f"{length_label(start)} to {length_label(end)}" if start else length_label(end)
    cells = [Cell(name), Cell(task_label(task)), Cell(length)]
    documents = part.tokens.size
    cells.append(Cell(str(documents), float(documents)))
    cells += [Cell(f"{mean:.4f}", mean) for mean in means]
    cells += [_signed(value) for value in (paired.difference, paired.low, paired.high)]
    cells.append(Cell(f"{paired.p:.2g}", paired.p) if documents >= 3 else Cell("–"))
    return Row(tuple(cells))


def _signed(nats: float) -> Cell:
    return Cell(f"{nats:+.4f}", nats) if math.isfinite(nats) else Cell("–")
