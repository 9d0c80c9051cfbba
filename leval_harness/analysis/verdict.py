"""What the comparisons say, as sentences: one for each model and method against the baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leval_harness.analysis.entries import (
    CANNOT_TELL,
    SIGNIFICANT,
    Analysis,
    Entry,
    grouped,
    without_twins,
)
from leval_harness.analysis.labels import LOSS_UNITS, counted, length_label, task_label

MOST_NAMED = 3
"""Differences that a sentence gives in numbers; the others are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence on one method of a block."""

    block: str
    method: str
    text: str


def comparison_verdicts(analysis: Analysis) -> list[Verdict]:
    """Each method of each block against the baseline, by the tests that tables mark.

    A difference counts as found where the Holm-corrected test is significant; where so few
    documents cannot decide, the comparison is inconclusive.
    """
    titles = analysis.titles
    primary = without_twins([entry for entry in analysis.entries if entry.score.primary])
    compared = [entry for entry in primary if entry.difference]
    found = []
    for (block, method), part in grouped(compared, lambda e: (e.block, e.label)).items():
        baseline = analysis.baselines[block]
        name, other = titles[method], titles.get(baseline, baseline)
        found.append(Verdict(block, method, f"{name} against {other}: {_says(part)}"))
    return found


def _says(entries: Sequence[Entry]) -> str:
    """The differences that were found, the largest first, and counts of what was not decided."""
    found = [entry for entry in entries if entry.mark == SIGNIFICANT]
    unclear = [entry for entry in entries if entry.mark == CANNOT_TELL]
    named = sorted(found, key=lambda e: e.length or 0, reverse=True)[:MOST_NAMED]
    parts = [_difference(entry) for entry in named]
    if len(found) > len(named):
        parts.append(counted(len(found) - len(named), "further difference"))
    if same := len(entries) - len(found) - len(unclear):
        parts.append(f"no difference found in {counted(same, 'comparison')}")
    if unclear:
        documents = sorted({entry.score.clusters or 0 for entry in unclear})
        n = " to ".join(dict.fromkeys((f"{documents[0]}", f"{documents[-1]}")))
        parts.append(f"{counted(len(unclear), 'comparison')} inconclusive (n = {n})")
    return "; ".join(parts) + "."


def _difference(entry: Entry) -> str:
    """`1.92 nats/token (-85.3% perplexity) better on PG19 at 12K, interval 0.30 to 3.54`.

    The interval is at the corrected level.
    """
    difference, score = entry.difference, entry.score
    assert difference is not None
    sign = 1 if score.higher else -1
    is_loss = score.meaning.kind == "loss"
    times, unit = (
        (1.0, LOSS_UNITS.get(score.family, "nats/token")) if is_loss else (score.percent, "points")
    )
    unit = unit if is_loss or score.percent == 100 else score.family
    digits = 3 if is_loss or score.percent != 100 else 1
    size = sign * times * difference.difference
    text = f"{abs(size):.{digits}f} {unit} "
    if is_loss:
        text += f"({100 * math.expm1(difference.difference):+.1f}% perplexity) "
    where = task_label(entry.task) + ("" if entry.family else f" ({score.metric})")
    text += f"{'better' if size > 0 else 'worse'} on {where} at {length_label(entry.length)}"
    if difference.low is None or difference.high is None:
        return text
    ends = sorted(abs(times * end) for end in (difference.low, difference.high))
    return f"{text}, interval {ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
