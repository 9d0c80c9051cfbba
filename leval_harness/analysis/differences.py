"""Paired differences of perplexity and reach: method against baseline on the same texts, nats."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leval_border.errors import SettingError, one_of
from leval_harness.analysis.analyse import Analysis, grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.provenance import run_provenance
from leval_harness.analysis.reach_curves import LOSS
from leval_harness.analysis.reach_differences import paired_losses
from leval_harness.analysis.task_titles import length_label, task_label
from leval_harness.results import Results, ResultsError
from leval_harness.results.ratios import Floats, in_common
from leval_harness.tables.model import Block, Cell, Column, Row, Table
from leval_tasks.statistics.paired import compare_perplexities

PERPLEXITY = re.compile(r"token_perplexity@(\d{1,12})|nll@([1-9]\d{0,11})-(\d{1,12})")
"""Curve points and the stretches between them; the first stretch is the first curve point."""

COLUMNS = ("Compared", "Text", "Tokens", "Documents", "Baseline", "Method", "Difference",
           "95% low", "95% high", "p")  # fmt: skip
NOTES = (
    "Baseline, Method: mean negative log-likelihood, nats a token; Difference: method minus "
    "baseline on the same tokens, negative is better",
    "95% low, high: interval clustered by document (CR2, Student's t), none below three documents; "
    "p: sign flips over documents; neither is corrected for the number of rows",
    "all: the documents of every text together, weighted by their tokens",
)
SEEN = "Tokens: all that the model sees before the scored ones and with them; the scored ones are "

Line = tuple[str, str, Floats]
"""Text, length, and the `[3, G]` numbers of a row: nats, nats of the baseline, tokens."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What may be compared: which metrics they are, how two methods' entries become rows."""

    title: str
    metric: re.Pattern[str]
    lines: Callable[[list[Entry], list[Entry], Results], Iterator[Line]]
    note: str


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


def difference_tables(analysis: Analysis, pairs: Sequence[tuple[str, str]]) -> list[Table]:
    """Paired differences: of perplexities, of reach losses, and of these on key tokens.

    One table each, where there is something; a row a pair, text and length, and one of all texts
    together. `pairs` are (method, baseline) by the names of the runs.

    Raises:
        SettingError: an unknown method.
        ResultsError: nothing that both methods of a pair have logged samples of (the message says
            what each has), or documents whose token counts differ between the two.
    """
    labels = sorted({entry.label for entry in analysis.entries})
    for name in (name for pair in pairs for name in pair):
        one_of("pair", name, labels)
    kept = [e for e in analysis.entries if e.score.finished]
    found = [_table(kind, kept, pairs, analysis.results) for kind in _KINDS]
    compared = set().union(*(pairs_of for _, pairs_of in found))
    missing = [why_nothing(kept, *pair) for pair in pairs if pair not in compared]
    tables = [table for table, _ in found if table]
    if not tables:
        raise ResultsError("; ".join(missing))
    notes = (*tables[-1].notes, *(f"Left out: {why}" for why in missing))
    return [*tables[:-1], replace(tables[-1], notes=notes)]


def _table(
    kind: _Kind, entries: Sequence[Entry], pairs: Sequence[tuple[str, str]], results: Results
) -> tuple[Table | None, set[tuple[str, str]]]:
    """The table of a kind, None without a row; and which pairs have rows."""
    entries = [entry for entry in entries if kind.metric.fullmatch(entry.score.metric)]
    blocks, compared, used, left_out = [], set(), [], []
    for name, block in grouped(entries, lambda entry: entry.block).items():
        by_label = grouped(block, lambda entry: entry.label)
        rows = []
        for pair in pairs:
            sides = [by_label.get(label, []) for label in pair]
            lines = list(kind.lines(sides[0], sides[1], results)) if all(sides) else []
            named = " − ".join(pair)
            rows += [_row(named, *line) for line in lines]
            if lines:
                compared.add(pair)
                both = [entry for side in sides for entry in side]
                used += both
                left_out += _left_out(f"{named} in '{name}'", lines, both)
        if rows:
            blocks.append(Block(name, tuple(rows)))
    if not blocks:
        return None, compared
    runs = [results.runs[index] for index in sorted({entry.score.run for entry in used})]
    documents = {
        (entry.task, int(code))
        for entry in used
        if (ratios := results.ratios(entry.score))
        for code in ratios.clusters
    }
    notes = (kind.note, *NOTES, *left_out, *run_provenance(runs, f"{len(documents)} documents"))
    columns = tuple(Column(label, numeric=at >= 3) for at, label in enumerate(COLUMNS))
    return Table(kind.title, columns, tuple(blocks), notes), compared


def _left_out(named: str, lines: Sequence[Line], entries: Sequence[Entry]) -> list[str]:
    """A note of the texts and lengths without a row."""
    compared = {line[:2] for line in lines}
    missing = dict.fromkeys(" at ".join(p) for e in entries if (p := _place(e)) not in compared)
    return [f"{named}: not read by both, or not logged: {', '.join(missing)}"][: len(missing)]


def _place(entry: Entry) -> tuple[str, str]:
    """Text and length of an entry's row."""
    if PERPLEXITY.fullmatch(entry.score.metric):
        end, start = _positions(entry.score.metric)
        length = f"{length_label(start)} to {length_label(end)}" if start else length_label(end)
        return task_label(entry.task), length
    return _of_losses(entry.task, entry.score.family), length_label(entry.score.at)


def _of_losses(task: str, family: str) -> str:
    """A task, or all of them, as the rows of its losses name it."""
    what = "Reach" if family == LOSS else "Key tokens"
    return task_label(task).replace("Reach", what, 1) if task else f"{what}, all"


def why_nothing(entries: Sequence[Entry], method: str, baseline: str) -> str:
    """Why two methods were not compared: what each has, and in which setting."""
    kinds = [
        entry for entry in entries if any(k.metric.fullmatch(entry.score.metric) for k in _KINDS)
    ]
    said = []
    for label in (method, baseline):
        own = [entry for entry in kinds if entry.label == label]
        tasks = ", ".join(sorted({task_label(entry.task) for entry in own}))
        blocks = "; ".join(sorted({entry.block for entry in own}))
        logged = "" if any(e.score.from_samples for e in own) else " without logged samples"
        said.append(f"{label} has {tasks}{logged} in '{blocks}'" if own else f"{label} has none")
    return (
        f"pair: no perplexity or reach loss of the same texts at the same length that {method} and "
        f"{baseline} both have in one block with logged samples: {', '.join(said)}; run both with "
        "the same settings"
    )


def _perplexities(method: list[Entry], baseline: list[Entry], results: Results) -> Iterator[Line]:
    """Each length and stretch, shortest first: each text, then all."""
    theirs = {_asked(entry): entry for entry in baseline}
    both = [(entry, theirs[_asked(entry)]) for entry in method if _asked(entry) in theirs]
    both.sort(key=lambda sides: _positions(sides[0].score.metric))
    for pairs in grouped(both, lambda sides: sides[0].score.metric).values():
        parts = [(*_place(sides[0]), _paired(*sides, results)) for sides in pairs]
        parts = [line for line in parts if line[2].size]
        yield from parts
        if len(parts) > 1:
            yield "all", parts[0][1], np.concatenate([part for *_, part in parts], axis=1)


def _asked(entry: Entry) -> tuple[int | None, str, str]:
    return entry.score.context_length, entry.score.metric, entry.task


def _positions(metric: str) -> tuple[int, int]:
    match = PERPLEXITY.fullmatch(metric)
    assert match is not None
    whole, start, end = match.groups()
    return (int(whole), 0) if whole else (int(end), int(start))


def _losses(method: list[Entry], baseline: list[Entry], results: Results) -> Iterator[Line]:
    """Each length, shortest first: each text, then all."""
    found = paired_losses(method, baseline, results)
    for task, length, part in sorted(found, key=lambda line: line[1]):
        yield _of_losses(task, method[0].score.family), length_label(length), part


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


def _row(name: str, text: str, length: str, part: Floats) -> Row:
    nats, base_nats, tokens = part
    means = [float(side.sum() / tokens.sum()) for side in (base_nats, nats)]
    paired = compare_perplexities(nats, base_nats, tokens)
    documents = tokens.size
    return Row((
        *(Cell(name), Cell(text), Cell(length), Cell(str(documents), float(documents))),
        *(Cell(f"{mean:.4f}", mean) for mean in means),
        *(_signed(value) for value in (paired.difference, paired.low, paired.high)),
        Cell(f"{paired.p:.2g}", paired.p) if documents >= 3 else Cell("–"),
    ))  # fmt: skip


def _signed(nats: float | None) -> Cell:
    return Cell("–") if nats is None else Cell(f"{nats:+.4f}", nats)


_KINDS = (
    _Kind(
        "Perplexity on the same documents: paired differences, nats a token",
        PERPLEXITY,
        _perplexities,
        "Tokens: positions of the windows; A to B: only the positions between two lengths",
    ),
    _Kind(
        "Loss of the same tokens after more context: paired differences, nats a token",
        re.compile(r"loss@\d{1,12}"),
        _losses,
        f"{SEEN}the same at every length. A text that either method did not read at each of its "
        "lengths counts at none",
    ),
    _Kind(
        "Loss on key tokens after more context: paired differences, nats a token",
        re.compile(r"key_loss@\d{1,12}"),
        _losses,
        f"{SEEN}those that a reference model told (key_tokens)",
    ),
)
