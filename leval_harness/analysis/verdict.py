"""The verdict: what the results say of each model, in sentences.

Every number in a sentence stands in a table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from leval_harness.analysis.effective_context import EffectiveLine, effective_lines
from leval_harness.analysis.effective_sentences import against_sentence, sentence, yardstick
from leval_harness.analysis.entries import FAMILY, Analysis, Entry, grouped
from leval_harness.analysis.labels import LOSS_UNITS, counted, length_label, task_label
from leval_harness.old_results import Run
from leval_tasks.statistics.paired import CANNOT_TELL, SIGNIFICANT, fewest_clusters

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
        by_position: those of the sentences that compare methods by position, two for a method; a
            page folds them where there are many.
    """

    block: str
    sentences: tuple[str, ...]
    notes: tuple[str, ...] = ()
    by_position: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"- {each.rstrip('.')}." for each in self.sentences]
        return "\n".join([*filter(None, (self.block,)), *said, *(f"  ({e})" for e in self.notes)])


def verdicts(analysis: Analysis) -> list[Verdict]:
    """One verdict for each block of which something can be said."""
    lines, gaps = effective_lines(analysis)
    beside_baseline = [entry for entry in analysis.board if entry.difference]
    of_block = grouped(lines, lambda line: line.block)
    compared = grouped(beside_baseline, lambda entry: entry.block)
    found = []
    for block in dict.fromkeys((*of_block, *compared)):
        own, entries = of_block.get(block, []), compared.get(block, [])
        decided = [entry for entry in entries if entry.mark != CANNOT_TELL]
        unclear = [entry for entry in entries if entry.mark == CANNOT_TELL]
        by_position = tuple(_by_position(own, analysis))
        sentences = (
            *_effective(own, analysis),
            *by_position,
            *_comparisons(decided, analysis),
            *_undecided(own, analysis),
            *_inconclusive(unclear, analysis),
        )
        if sentences:
            notes = tuple(dict.fromkeys(map(yardstick, own)))
            found.append(Verdict(block, sentences, notes, by_position))
    return [*found, Verdict("", (), tuple(gaps))] if gaps else found


def _effective(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """How far each method reads."""
    for line in lines:
        yield analysis.titles[line.method] + sentence(line).removeprefix(line.method)


def _by_position(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """Where each method reads better or worse than the baseline, or than without Resonance."""
    for line in lines:
        for against in filter(None, (line.against, line.resonance)):
            named = replace(against, baseline=analysis.titles[against.baseline])
            yield against_sentence(analysis.titles[line.method], named)


def _comparisons(entries: Sequence[Entry], analysis: Analysis) -> Iterator[str]:
    """A sentence for each method of a block that so many documents can tell from the baseline.

    A difference counts as found where the Holm-corrected test is significant.
    """
    titles = analysis.titles
    for method, of_method in grouped(entries, lambda entry: entry.label).items():
        other = analysis.baselines[of_method[0].block]
        yield f"{titles[method]} against {titles[other]}: {_says(of_method)}"


def _undecided(lines: Sequence[EffectiveLine], analysis: Analysis) -> Iterator[str]:
    """Methods for which these texts decide nothing; the command that reads twice the texts."""
    open_ones = [e.method for e in lines if e.these.no_degradation.verdict == "undecided"]
    if not open_ones:
        return
    entries = [e for e in analysis.entries if e.block == lines[0].block and e.family == FAMILY]
    twice = {entry.task: 2 * n for entry in entries if (n := _num_docs(entry))}
    names = ", ".join(analysis.titles[name] for name in open_ones)
    yield f"Not decided for {names}: {_more(entries, twice, 2)}"


def _inconclusive(entries: Sequence[Entry], analysis: Analysis) -> Iterator[str]:
    """Tasks whose documents are too few for any difference; the command that reads enough.

    The bundled sample is left out: it shows that a task runs, and decides nothing.
    """
    unclear = [entry for entry in entries if not entry.score.sample]
    if not unclear:
        return
    tasks = ", ".join(dict.fromkeys(task_label(entry.task) for entry in unclear))
    documents = sorted({entry.score.clusters or 0 for entry in unclear})
    n = " to ".join(dict.fromkeys((f"{documents[0]}", f"{documents[-1]}")))
    text = f"{counted(len(unclear), 'comparison')} on {tasks} inconclusive (n = {n})"
    if len(unclear) <= MOST_NAMED:
        each = (f"{analysis.titles[entry.label]} {_size(entry)}" for entry in unclear)
        text = f"Inconclusive (n = {n}): {', '.join(each)}"
    enough: dict[str, int] = {}
    for entry in unclear:
        assert entry.difference is not None
        if _num_docs(entry):
            needed = fewest_clusters(entry.difference.threshold)
            enough[entry.task] = max(needed, enough.get(entry.task, 0))
    if enough:
        limited = [entry for entry in unclear if entry.task in enough]
        times = max(enough[entry.task] / (_num_docs(entry) or 1) for entry in limited)
        block = unclear[0].block  # with the baseline, which is computed again too
        again = [e for e in analysis.entries if e.block == block and e.task in enough]
        text += f"; {_more(again, enough, times)}"
    yield text


def _num_docs(entry: Entry) -> int | None:
    """Documents to which its run was limited."""
    text = entry.score.settings.get("num_docs") or ""
    return int(text) if text.isdigit() else None


def _more(entries: Sequence[Entry], texts: Mapping[str, int], times: float) -> str:
    """The command that reads so many texts of each task, and its cost, `times` that of before."""
    cost = max(round(times * _busy([entry.run for entry in entries]) / 60), 1)
    command = entries[0].run.command
    much = "twice the texts" if times == 2 else "enough texts to find a difference"
    if command.startswith(SWEEP):
        settings = [f"tasks.{task}.metadata.num_docs={n}" for task, n in texts.items()]
        how = f"`{' --set '.join([command, *settings])}` reads {much}"
    else:
        how = f"{much} (num_docs: {', '.join(map(str, texts.values()))}) would be read"
    return f"{how}, in about {counted(cost, 'minute')}"


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
    """The differences that were found, the largest length first, and what shows none."""
    found = [entry for entry in entries if entry.mark == SIGNIFICANT]
    same = [entry for entry in entries if entry.mark != SIGNIFICANT]
    named = sorted(found, key=lambda e: e.length or 0, reverse=True)[:MOST_NAMED]
    parts = [_difference(entry) for entry in named]
    if len(found) > len(named):
        parts.append(counted(len(found) - len(named), "further difference"))
    if len(same) == 1:
        parts.append(f"no difference found {_size(same[0])}")
    elif same:
        parts.append(f"no difference found in {counted(len(same), 'comparison')}")
    return "; ".join(parts)


def _amounts(entry: Entry) -> tuple[float, tuple[float, float] | None, str, int]:
    """A difference and the ends of its interval, in a unit, and the digits to show."""
    difference, score = entry.difference, entry.score
    assert difference is not None
    if score.meaning.kind == "loss":
        times, unit, digits = 1.0, LOSS_UNITS.get(score.family, "nats/token"), 3
    elif score.percent == 100:
        times, unit, digits = score.percent, "points", 1
    else:
        times, unit, digits = score.percent, score.family, 3
    low, high = difference.low, difference.high
    ends = None if low is None or high is None else (times * low, times * high)
    return times * difference.difference, ends, unit, digits


def _where(entry: Entry) -> str:
    where = task_label(entry.task) + ("" if entry.family else f" ({entry.score.metric})")
    return f"{where} at {length_label(entry.length)}"


def _size(entry: Entry) -> str:
    """`on PG19 at 12K (+0.006 nats/token, interval -0.013 to +0.025)`: not called a difference."""
    size, ends, unit, digits = _amounts(entry)
    interval = f", interval {ends[0]:+.{digits}f} to {ends[1]:+.{digits}f}" if ends else ""
    return f"on {_where(entry)} ({size:+.{digits}f} {unit}{interval})"


def _difference(entry: Entry) -> str:
    """`1.92 nats/token (-85.3% perplexity) better on PG19 at 12K, interval 0.30 to 3.54`.

    The interval is at the corrected level.
    """
    size, ends, unit, digits = _amounts(entry)
    text = f"{abs(size):.{digits}f} {unit} "
    if entry.score.meaning.kind == "loss":
        text += f"({100 * math.expm1(size):+.1f}% perplexity) "
    text += f"{'better' if (size > 0) == entry.score.higher else 'worse'} on {_where(entry)}"
    if ends is None:
        return text
    low, high = sorted(end if size > 0 else -end for end in ends)
    return f"{text}, interval {low:.{digits}f} to {high:.{digits}f}"
