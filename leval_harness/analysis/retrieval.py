"""How far does it retrieve? RULER's scores at several lengths, and where found needles lay."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leval_harness.analysis.entries import Analysis, Entry, grouped
from leval_harness.analysis.labels import length_label
from leval_harness.old_results import Results, ResultsError
from leval_harness.old_results.sample_lines import of_first_filter
from leval_tasks.metrics import length_of
from leval_tasks.statistics.retrieval import (
    RetrievalLength,
    Retrieved,
    length_above,
    length_kept,
)

RULER = re.compile(r"niah_|ruler_")
NEEDLES = re.compile(r"niah_")


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How far one model retrieves under one method.

    Attributes:
        block: title of the rows that it may be compared with.
        method: the method's label.
        above: the largest length that reaches RULER's threshold; 0 if none does.
        kept: the largest length that keeps the score at the shortest; None for one length.
        counts: scores and questions by length, ascending, over the tasks that all lengths have.
        tasks: those tasks.
        depths: for a picture of depth against length, `(length, part, found, asked)`: needles in
            one part of the prompt, the first being 0 of `DEPTHS`; empty where samples hold no
            prompts.
        needles: the tasks that it counts.
    """

    block: str
    method: str
    above: RetrievalLength
    kept: RetrievalLength | None
    counts: tuple[Retrieved, ...]
    tasks: tuple[str, ...]
    depths: tuple[tuple[int, int, int, int], ...]
    needles: tuple[str, ...]

    @property
    def probes(self) -> int:
        """Questions at all lengths together."""
        return sum(each.asked for each in self.counts)


def retrievals(analysis: Analysis) -> list[Retrieval]:
    """How far each model retrieves under each method that was run with RULER's tasks."""
    entries = [
        entry
        for entry in analysis.entries
        if RULER.match(entry.task) and length_of(entry.score.metric) and entry.score.finished
    ]
    lines = grouped(entries, lambda entry: (entry.block, entry.label)).values()
    return [found for part in lines if (found := _retrieval(part, analysis.results))]


def retrieval_text(length: RetrievalLength | None) -> str:
    """`8K, not 16K`, `at least 8K`, `nowhere` or `cannot tell`; a dash for None."""
    if length is None:
        return "–"
    if length.low is None:
        return "cannot tell"
    if length.low == 0:
        return "nowhere"
    shown = length_label(length.low)
    if length.known is None:
        return f"at least {shown}"
    return shown if length.refused is None else f"{shown}, not {length_label(length.refused)}"


def _retrieval(entries: Sequence[Entry], results: Results) -> Retrieval | None:
    by_length = grouped(entries, lambda entry: length_of(entry.score.metric))
    common = set.intersection(*({entry.task for entry in part} for part in by_length.values()))
    counts = []
    for length, part in sorted(by_length.items()):
        ratios = [results.ratios(entry.score) for entry in part if entry.task in common]
        values = [each.numerator for each in ratios if each is not None]
        if len(values) < len(ratios) or not values:
            return None
        right = float(sum(each.sum() for each in values))
        counts.append(Retrieved(length, right, sum(each.size for each in values)))
    with_needles = [entry for entry in entries if NEEDLES.match(entry.task)]
    return Retrieval(
        block=entries[0].block,
        method=entries[0].label,
        above=length_above(counts),
        kept=length_kept(counts) if len(counts) > 1 else None,
        counts=tuple(counts),
        tasks=tuple(sorted(common)),
        depths=tuple(_depths(with_needles, results)),
        needles=tuple(sorted({entry.task for entry in with_needles})),
    )


def _depths(entries: Sequence[Entry], results: Results) -> Iterator[tuple[int, int, int, int]]:
    """Needles by length and part of the prompt, over all tasks that have some."""
    asked: Counter[tuple[int, int]] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for entry in entries:
        samples = results.samples.get((entry.score.run, entry.task))
        length = length_of(entry.score.metric)
        if samples is None or length is None:
            continue
        try:
            needles = [needle for each in of_first_filter(samples.path) for needle in each.needles]
        except ResultsError:  # removed since its numbers were read
            continue
        asked.update((length, part) for part, _ in needles)
        found.update((length, part) for part, is_found in needles if is_found)
    return ((*place, found[place], asked[place]) for place in sorted(asked))
