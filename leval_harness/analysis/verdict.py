"""The verdict: what the results say of each model, in sentences.

Every number in a sentence stands in a table.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

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
from leval_harness.results import Run

SWEEP = "leval-harness sweep "
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
        for against in filter(None, (line.against, line.resonance)):
            other = titles.get(against.baseline, against.baseline)
            named = replace(against, baseline=other)
            yield against_sentence(titles.get(line.method, line.method), named)


def _comparisons(analysis: Analysis) -> dict[str, list[str]]:
    """Block -> a sentence for each method with scores or perplexities beside the baseline's.

    A difference counts as found where the Holm-corrected test is significant; where so few
    documents cannot decide, the comparison is inconclusive. Where all of a block's are, one
    sentence says so.
    """
    titles = analysis.titles
    primary = without_twins([entry for entry in analysis.entries if entry.score.primary])
    compared = [entry for entry in primary if entry.difference and entry.family != FAMILY]
    found: dict[str, list[str]] = {}
    for block, of_block in grouped(compared, lambda entry: entry.block).items():
        other = titles.get(analysis.baselines[block], analysis.baselines[block])
        if all(entry.mark == CANNOT_TELL for entry in of_block):
            found[block] = [f"Every method against {other}: {_says(of_block)}"]
            continue
        by_method = grouped(of_block, lambda entry: entry.label).items()
        found[block] = [f"{titles[method]} against {other}: {_says(e)}" for method, e in by_method]
    return found


def _undecided(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """Methods for which these texts decide nothing; the command that reads twice the texts."""
    open_ones = [e.method for e in lines if e.these.no_degradation.verdict == "undecided"]
    if not open_ones:
        return
    entries = [e for e in analysis.entries if e.block == lines[0].block and e.family == FAMILY]
    tasks = {entry.task: entry.score.settings.get("num_docs") for entry in entries}
    twice = {task: 2 * int(texts) for task, texts in tasks.items() if texts and texts.isdigit()}
    minutes = max(round(2 * _busy([entry.run for entry in entries]) / 60), 1)
    command = entries[0].run.command.partition(" --only ")[0]
    if command.startswith(SWEEP):
        settings = [f"tasks.{task}.metadata.num_docs={texts}" for task, texts in twice.items()]
        how = f"`{' --set '.join([command, *settings])}` reads twice the texts"
    else:
        how = f"twice the texts (num_docs: {', '.join(map(str, twice.values()))}) would be read"
    names = ", ".join(analysis.titles.get(name, name) for name in open_ones)
    yield f"Not decided for {names}: {how}, in about {counted(minutes, 'minute')}"


def _busy(runs: Sequence[Run]) -> float:
    """Seconds in which at least one of the runs was computed; runs side by side count once."""
    spans = sorted(
        (start, start + (run.seconds or 0.0))
        for run in {run.run_id: run for run in runs}.values()
        if (start := _timestamp(run.created)) is not None
    )
    total, until = 0.0, -math.inf
    for start, end in spans:
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def _timestamp(created: str) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return None


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
