"""The verdict: what the results say of each model, in sentences.

Every number in a sentence stands in a table.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leval_harness.analysis.effective_context import (
    FAMILY,
    EffectiveLine,
    against_sentence,
    effective_lines,
    sentence,
    yardstick,
)
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
    """What is said of one block: a model in one setting.

    Attributes:
        block: its title; empty for what was measured and could not be counted.
        sentences: on the effective context length of each method, on differences between methods,
            and on what was not decided.
        notes: what the sentences rest on.
    """

    block: str
    sentences: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"- {each.rstrip('.')}." for each in self.sentences]
        return "\n".join([*filter(None, (self.block,)), *said, *(f"  ({e})" for e in self.notes)])


def verdicts(analysis: Analysis) -> list[Verdict]:
    """One verdict for each block of which something can be said."""
    lines, gaps = effective_lines(analysis)
    of_block = grouped(lines, lambda line: line.block)
    compared = _comparisons(analysis)
    found = [
        Verdict(
            block,
            (
                *_effective(of_block.get(block, []), analysis),
                *compared.get(block, []),
                *_undecided(of_block.get(block, []), analysis),
            ),
            tuple(dict.fromkeys(map(yardstick, of_block.get(block, [])))),
        )
        for block in dict.fromkeys((*of_block, *compared))
    ]
    return [*found, Verdict("", (), tuple(gaps))] if gaps else found


def _effective(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """How far each method reads, and where it reads better or worse than the baseline."""
    titles = analysis.titles
    for line in lines:
        yield titles.get(line.method, line.method) + sentence(line).removeprefix(line.method)
    for line in lines:
        if line.against and (text := against_sentence(line)):
            _, _, positions = text.partition(", by position")
            name, baseline = line.method, line.against.baseline
            other = titles.get(baseline, baseline)
            yield f"{titles.get(name, name)} against {other}, by position{positions}"


def _comparisons(analysis: Analysis) -> dict[str, list[str]]:
    """Block -> a sentence for each method with scores or perplexities beside the baseline's.

    A difference counts as found where the Holm-corrected test is significant; where so few
    documents cannot decide, the comparison is inconclusive.
    """
    titles = analysis.titles
    primary = without_twins([entry for entry in analysis.entries if entry.score.primary])
    compared = [entry for entry in primary if entry.difference and entry.family != FAMILY]
    found: dict[str, list[str]] = {}
    for (block, method), part in grouped(compared, lambda e: (e.block, e.label)).items():
        baseline = analysis.baselines[block]
        name, other = titles[method], titles.get(baseline, baseline)
        found.setdefault(block, []).append(f"{name} against {other}: {_says(part)}")
    return found


def _undecided(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """Methods for which these texts decide nothing, and what twice the texts would cost."""
    open_ones = [e.method for e in lines if e.these.no_degradation.verdict == "undecided"]
    if not open_ones:
        return
    block = lines[0].block
    runs = {
        entry.score.run: entry.run.seconds or 0.0
        for entry in analysis.entries
        if entry.block == block and entry.family == FAMILY
    }
    minutes = max(sum(runs.values()) / 60, 1)
    names = ", ".join(analysis.titles.get(name, name) for name in open_ones)
    yield (
        f"Not decided for {names}: twice the texts (num_docs: {2 * max(e.texts for e in lines)}) "
        f"take about {minutes:.0f} more minutes"
    )


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
