"""Retrieval by length: RULER's scores at several lengths, and needles found by depth."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leval_harness.analysis.entries import Analysis, Entry, grouped
from leval_harness.results import Results, ResultsError
from leval_harness.results.metrics import length_of
from leval_harness.results.needles import needles_of
from leval_tasks.statistics.reach import Reach, Retrieved, reach_above, reach_kept

RULER = re.compile(r"niah_|ruler_")
NEEDLES = re.compile(r"niah_")


@dataclass(frozen=True, slots=True)
class DepthCell:
    """Needles at one length in one part of the prompt, the first part being 0 of `DEPTHS`."""

    length: int
    part: int
    found: int
    asked: int


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How far one model retrieves under one method.

    Attributes:
        above: the largest length that reaches RULER's threshold; 0 if none does.
        kept: the largest length that keeps the score at the shortest; None for one length.
        counts: scores and questions by length, ascending, over the tasks that all lengths have.
        tasks: those tasks.
        depths: for a picture of depth against length; empty where samples hold no prompts.
        needles: the tasks that it counts.
    """

    above: Reach
    kept: Reach | None
    counts: tuple[Retrieved, ...]
    tasks: tuple[str, ...]
    depths: tuple[DepthCell, ...]
    needles: tuple[str, ...]

    @property
    def probes(self) -> int:
        """Questions at all lengths together."""
        return sum(each.asked for each in self.counts)


def retrievals(analysis: Analysis) -> dict[tuple[str, str], tuple[Entry, Retrieval]]:
    """`(block, method) -> an entry of it and how far it retrieves`, of RULER's tasks."""
    entries = [
        entry
        for entry in analysis.entries
        if RULER.match(entry.task) and length_of(entry.score.metric) and entry.score.finished
    ]
    lines = grouped(entries, lambda entry: (entry.block, entry.label))
    return {
        key: (part[0], found)
        for key, part in lines.items()
        if (found := _retrieval(part, analysis.results))
    }


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
        reach_above(counts),
        reach_kept(counts) if len(counts) > 1 else None,
        tuple(counts),
        tasks=tuple(sorted(common)),
        depths=tuple(_depths(with_needles, results)),
        needles=tuple(sorted({entry.task for entry in with_needles})),
    )


def _depths(entries: Sequence[Entry], results: Results) -> list[DepthCell]:
    """Needles by length and part of the prompt, over all tasks that have some."""
    asked: Counter[tuple[int, int]] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for entry in entries:
        samples = results.samples.get((entry.score.run, entry.task))
        length = length_of(entry.score.metric)
        if samples is None or length is None:
            continue
        try:
            needles = list(needles_of(samples.path))
        except ResultsError:  # removed since its numbers were read
            continue
        for needle in needles:
            place = length, needle.part
            asked[place] += 1
            found[place] += needle.found
    return [DepthCell(*place, found[place], asked[place]) for place in sorted(asked)]
