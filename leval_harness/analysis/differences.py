"""Paired differences of perplexity: method against baseline on the same texts, nats."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from leval_harness.analysis.entries import Analysis, Entry, grouped
from leval_harness.analysis.labels import length_label, task_label
from leval_harness.old_results import Results, ResultsError, Run
from leval_tasks.statistics.clustered import Floats
from leval_tasks.statistics.paired import Difference, compare_perplexities, paired_sums
from resonance_vllm.errors import SettingError, one_of

PERPLEXITY = re.compile(r"token_perplexity@(\d{1,12})|nll@([1-9]\d{0,11})-(\d{1,12})")
"""Curve points and the stretches between them; the first stretch is the first curve point."""

Line = tuple[str, str, Floats]
"""Text, length, and the `[3, G]` numbers of a row: nats, nats of the baseline, tokens."""


@dataclass(frozen=True, slots=True)
class PairedRow:
    """A method and its baseline on the same tokens of the same documents.

    `pair` is method and baseline, `length` a label of what the model sees, `text` the title of a
    text or of all texts together. `mean` and `base_mean` are negative log-likelihoods, `difference`
    is method minus baseline: all nats a token.
    """

    block: str
    pair: tuple[str, str]
    text: str
    length: str
    documents: int
    mean: float
    base_mean: float
    difference: Difference


@dataclass(frozen=True, slots=True)
class PairedDifferences:
    """All rows.

    `left_out` are notes of the texts and lengths without a row; `runs` gave the numbers, and
    `documents` counts the different documents of all tasks.
    """

    rows: tuple[PairedRow, ...]
    left_out: tuple[str, ...]
    runs: tuple[Run, ...]
    documents: int


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


def paired_differences(
    analysis: Analysis, pairs: Sequence[tuple[str, str]]
) -> tuple[PairedDifferences, list[str]]:
    """Differences of perplexities: a row for each pair, text and length, and one for all texts.

    Args:
        analysis: from `analyse`.
        pairs: (method, baseline) by the labels of the entries.

    Returns:
        the rows, and for each pair without a row a sentence that says why.

    Raises:
        SettingError: an unknown method.
        ResultsError: no pair has rows (the message says what each method has), or documents have
            different numbers of tokens in the two runs.
    """
    labels = sorted({entry.label for entry in analysis.entries})
    for name in (name for pair in pairs for name in pair):
        one_of("pair", name, labels)
    finished = [entry for entry in analysis.entries if entry.score.finished]
    entries = [entry for entry in finished if PERPLEXITY.fullmatch(entry.score.metric)]
    found = _differences(entries, pairs, analysis.results)
    compared = {row.pair for row in found.rows}
    missing = [_why_nothing(entries, *pair) for pair in pairs if pair not in compared]
    if not found.rows:
        raise ResultsError("; ".join(missing))
    return found, missing


def _differences(
    entries: Sequence[Entry], pairs: Sequence[tuple[str, str]], results: Results
) -> PairedDifferences:
    """The rows of some perplexities."""
    rows, used, left_out = [], [], []
    for block, of_block in grouped(entries, lambda entry: entry.block).items():
        by_label = grouped(of_block, lambda entry: entry.label)
        for pair in pairs:
            method, baseline = (by_label.get(label, []) for label in pair)
            lines = list(_lines(method, baseline, results)) if method and baseline else []
            rows += [_row(block, pair, *line) for line in lines]
            if lines:
                used += [*method, *baseline]
                done = {line[:2] for line in lines}
                places = dict.fromkeys(_place(entry) for entry in (*method, *baseline))
                if missing := ", ".join(" at ".join(each) for each in places if each not in done):
                    name = f"{' − '.join(pair)} in '{block}'"
                    left_out.append(f"{name}: not read by both, or not logged: {missing}")
    documents = {
        (entry.task, int(code))
        for entry in used
        if (ratios := results.ratios(entry.score))
        for code in ratios.clusters
    }
    runs = tuple(results.runs[at] for at in sorted({entry.score.run for entry in used}))
    return PairedDifferences(tuple(rows), tuple(left_out), runs, len(documents))


def _row(block: str, pair: tuple[str, str], text: str, length: str, sums: Floats) -> PairedRow:
    nats, base_nats, tokens = sums
    mean, base_mean = (float(side.sum() / tokens.sum()) for side in (nats, base_nats))
    difference = compare_perplexities(nats, base_nats, tokens)
    return PairedRow(block, pair, text, length, tokens.size, mean, base_mean, difference)


def _place(entry: Entry) -> tuple[str, str]:
    """Text and length of an entry's row."""
    end, start = _positions(entry)
    length = f"{length_label(start)} to {length_label(end)}" if start else length_label(end)
    return task_label(entry.task), length


def _why_nothing(entries: Sequence[Entry], method: str, baseline: str) -> str:
    """Why two methods were not compared: what each has, and in which setting."""
    each_has = []
    for label in (method, baseline):
        own = [entry for entry in entries if entry.label == label]
        tasks = ", ".join(sorted({task_label(entry.task) for entry in own}))
        blocks = "; ".join(sorted({entry.block for entry in own}))
        logged = "" if any(e.score.from_samples for e in own) else " without logged samples"
        what = f"{tasks}{logged} in '{blocks}'" if own else "none"
        each_has.append(f"{label} has {what}")
    return (
        f"pair: no perplexity of the same texts at the same length that {method} and {baseline} "
        f"both have in one block with logged samples: {', '.join(each_has)}; run both with the "
        "same settings"
    )


def _lines(method: Sequence[Entry], baseline: Sequence[Entry], results: Results) -> Iterator[Line]:
    """Each length and stretch, shortest first: each text, then all."""

    def question(entry: Entry) -> tuple[int | None, str, str]:
        return entry.score.context_length, entry.score.metric, entry.task

    theirs = {question(entry): entry for entry in baseline}
    shared = [entry for entry in sorted(method, key=_positions) if question(entry) in theirs]
    for entries in grouped(shared, lambda entry: entry.score.metric).values():
        lines = [(*_place(e), _paired(e, theirs[question(e)], results)) for e in entries]
        lines = [line for line in lines if line[2].size]
        yield from lines
        if len(lines) > 1:
            yield "all", lines[0][1], np.concatenate([sums for *_, sums in lines], axis=1)


def _positions(entry: Entry) -> tuple[int, int]:
    """End and start of the tokens of a perplexity."""
    match = PERPLEXITY.fullmatch(entry.score.metric)
    assert match is not None
    whole, start, end = match.groups()
    return (int(whole), 0) if whole else (int(end), int(start))


def _paired(method: Entry, baseline: Entry, results: Results) -> Floats:
    """Nats of the method, of the baseline, and tokens, of each document of both: `[3, G]`."""
    own, theirs = (results.ratios(side.score) for side in (method, baseline))
    if own is None or theirs is None:
        return np.zeros((3, 0))
    if (sums := paired_sums(own, theirs)) is None:
        raise ResultsError(
            f"{method.task}, {method.score.metric}: a document has another number of tokens in "
            "the baseline; compare runs of one tokenizer and the same settings"
        )
    return sums
