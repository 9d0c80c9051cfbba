"""Paired differences of perplexity: method against baseline on the same documents, in nats."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leval_border.errors import SettingError, one_of
from leval_leaderboard.results import Results, ResultsError
from leval_leaderboard.results.ratios import Floats, in_common
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


def parse_pairs(pairs: Sequence[str]) -> list[tuple[str, str]]:
    """`METHOD:BASELINE` texts as pairs.

    Raises:
        SettingError: a text of another form, or a method paired with itself.
    """
    parsed = []
    for pair in pairs:
        method, colon, baseline = (part.strip() for part in pair.partition(":"))
        if not (method and colon and baseline) or ":" in baseline or method == baseline:
            raise SettingError(
                f"pair: '{pair}' must name two methods as METHOD:BASELINE, for example "
                "resonance_yarn:yarn"
            )
        parsed.append((method, baseline))
    return parsed


def difference_table(analysis: Analysis, pairs: Sequence[tuple[str, str]]) -> Table:
    """Paired differences of every perplexity task, and of all of them pooled.

    `pairs` are (method, baseline) by the names of the runs.

    Raises:
        SettingError: an unknown method.
        ResultsError: no perplexity that both methods of a pair have logged samples of, or documents
            whose token counts differ between the two.
    """
    labels = sorted({entry.label for entry in analysis.entries})
    for name in (name for pair in pairs for name in pair):
        one_of("pair", name, labels)
    curves = [
        entry
        for entry in analysis.entries
        if entry.score.status == "done" and METRIC.fullmatch(entry.score.metric)
    ]
    results = analysis.results
    blocks, used, documents = [], set(), set()
    for name, block in grouped(curves, lambda entry: entry.block).items():
        lines = []
        for method, baseline in pairs:
            entries = _pair_entries(block, method, baseline)
            lines += _pair_rows(f"{method} − {baseline}", entries, results)
            for sides in entries:
                used |= {side.score.run for side in sides}
                if ratios := results.ratios(sides[0].score):
                    documents |= {(sides[0].task, int(code)) for code in ratios.clusters}
        if lines:
            blocks.append(Block(name, tuple(lines)))
    if not blocks:
        raise ResultsError(
            f"pair: no perplexity that both methods of {', '.join(':'.join(p) for p in pairs)} "
            "have in one block with logged samples; run both with the same settings"
        )
    runs = [results.runs[index] for index in sorted(used)]
    return Table(
        "Perplexity on the same documents: paired differences, nats a token",
        tuple(Column(label, numeric=at >= 3) for at, label in enumerate(COLUMNS)),
        tuple(blocks),
        (*NOTES, *run_provenance(runs, f"{len(documents)} documents")),
    )


def _pair_entries(block: list[Entry], method: str, baseline: str) -> list[tuple[Entry, Entry]]:
    """The method's entry and the baseline's of each length and text, shortest length first."""
    places = grouped(block, lambda e: (e.score.context_length, e.score.metric, e.task))
    labelled = [{entry.label: entry for entry in entries} for entries in places.values()]
    both = [(each[method], each[baseline]) for each in labelled if {method, baseline} <= set(each)]
    return sorted(both, key=lambda pair: _positions(pair[0].score.metric))


def _positions(metric: str) -> tuple[int, int]:
    match = METRIC.fullmatch(metric)
    assert match is not None
    whole, start, end = match.groups()
    return (int(whole), 0) if whole else (int(end), int(start))


def _pair_rows(name: str, entries: Sequence[tuple[Entry, Entry]], results: Results) -> list[Row]:
    rows = []
    for metric, pairs in grouped(entries, lambda pair: pair[0].score.metric).items():
        parts = [(sides[0].task, _paired(*sides, results)) for sides in pairs]
        parts = [(task, part) for task, part in parts if part.size]
        if len(parts) > 1:
            parts.append(("all", np.concatenate([part for _, part in parts], axis=1)))
        rows += [_row(name, task, metric, part) for task, part in parts]
    return rows


def _paired(method: Entry, baseline: Entry, results: Results) -> Floats:
    """Nats of the method, of the baseline, and tokens, of each document of both: `[3, G]`."""
    sides = [results.ratios(side.score) for side in (method, baseline)]
    if sides[0] is None or sides[1] is None:
        return np.zeros((3, 0))
    ours, theirs = in_common(sides[0], sides[1])
    _, nats, tokens = ours.by_cluster()
    _, base_nats, base_tokens = replace(theirs, clusters=ours.clusters).by_cluster()
    if not np.array_equal(tokens, base_tokens):
        raise ResultsError(
            f"{method.task}, {method.score.metric}: a document has another number of tokens in "
            "the baseline; compare runs of one tokenizer and the same settings"
        )
    return np.stack([nats, base_nats, tokens])[:, tokens > 0]


def _row(name: str, task: str, metric: str, part: Floats) -> Row:
    nats, base_nats, tokens = part
    means = [float(side.sum() / tokens.sum()) for side in (base_nats, nats)]
    paired = compare_perplexities(nats, base_nats, tokens)
    end, start = _positions(metric)
    length = f"{length_label(start)} to {length_label(end)}" if start else length_label(end)
    documents = tokens.size
    return Row((
        *(Cell(name), Cell(task_label(task)), Cell(length), Cell(str(documents), float(documents))),
        *(Cell(f"{mean:.4f}", mean) for mean in means),
        *(_signed(value) for value in (paired.difference, paired.low, paired.high)),
        Cell(f"{paired.p:.2g}", paired.p) if documents >= 3 else Cell("–"),
    ))  # fmt: skip


def _signed(nats: float | None) -> Cell:
    return Cell("–") if nats is None else Cell(f"{nats:+.4f}", nats)
