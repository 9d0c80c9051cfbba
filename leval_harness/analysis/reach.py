"""How far does it really read? One line a model and method, and the numbers that it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leval_harness.analysis.analyse import Analysis, grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.reach_curves import (
    KEY_LOSS,
    LOSS,
    OWN,
    Curve,
    KeyLosses,
    curve_of,
    key_losses,
    left_out,
)
from leval_harness.analysis.retrieval import Retrieval, retrievals
from leval_harness.analysis.task_titles import length_label
from leval_tasks.statistics.clustered import Estimate, estimate_ratio
from leval_tasks.statistics.paired import Difference, compare_perplexities
from leval_tasks.statistics.reach import MARGIN, Reach, Step, reach_of, steps_of


@dataclass(frozen=True, slots=True)
class Point:
    """The same tokens of the same texts at one length.

    Attributes:
        length: tokens in all that the model sees.
        loss: nats a token, over all texts.
        low, high: its 95% interval by document; None below three texts.
        step: what changed from the next shorter length; None for the shortest.
        against: to the block's baseline at this length, on the texts that both read; None for the
            baseline itself and where nothing can be paired.
        key: nats a token on the key tokens, those that a long context helps; None where the backend
            does not tell each token's or there are none.
        key_against: of these to the baseline's, where a reference model told both the same tokens.
    """

    length: int
    loss: float
    low: float | None
    high: float | None
    step: Step | None = None
    against: Difference | None = None
    key: Estimate | None = None
    key_against: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachLine:
    """How far one model reads under one method.

    Attributes:
        block: title of the rows that it may be compared with.
        model: its name.
        method: the method's label.
        shipped: tokens that the checkpoint's config claims as it is.
        claimed: tokens that it claims under the method.
        no_loss: the largest length without a loss, by the texts; None where no text was read.
        gain: the largest length up to which each longer context still helped.
        texts: documents of all `reach_*` tasks together.
        tokens: scored in them, at each length.
        key_tokens: of these, those that a long context helps.
        referred: whether a reference model told which those are.
        tasks: names of those tasks.
        points: by length, ascending.
        retrieval: by RULER's tasks; None where none was run.
    """

    block: str
    model: str
    method: str
    shipped: int | None = None
    claimed: int | None = None
    no_loss: Reach | None = None
    gain: Reach | None = None
    texts: int = 0
    tokens: int = 0
    key_tokens: int = 0
    referred: bool = False
    tasks: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    retrieval: Retrieval | None = None


def reach_lines(analysis: Analysis) -> list[ReachLine]:
    """A line for each model and method that was run with a `reach_*` task, or with RULER's.

    What rests on a limited number of questions has a block of its own: it is joined to the model's
    line by loss where there is one alone.
    """
    entries = _entries(analysis)
    lines = []
    keys = grouped(entries, lambda entry: entry.score.family).get(KEY_LOSS, [])
    entries = [entry for entry in entries if entry.score.family == LOSS]
    for block, of_block in grouped(entries, lambda entry: entry.block).items():
        by_method = grouped(of_block, lambda entry: entry.label)
        curves = {label: curve_of(part, analysis.results) for label, part in by_method.items()}
        baseline = analysis.baselines.get(block, "")
        base = curves.get(baseline)
        told = {
            label: key_losses(
                [k for k in keys if (k.block, k.label) == (block, label)], analysis.results
            )
            for label in by_method
        }
        for label, part in by_method.items():
            if curve := curves[label]:
                line = _line(block, label, part, curve, base)
                rival = told.get(baseline, {}) if label != baseline else {}
                lines.append(_with_keys(line, told[label], rival))
    return _joined(lines, retrievals(analysis))


def reach_gaps(analysis: Analysis) -> list[str]:
    """What was asked and is in no line of `reach_lines`, or is not compared, and why."""
    entries = [entry for entry in _entries(analysis) if entry.score.family == LOSS]
    lines = {(line.block, line.method): line for line in reach_lines(analysis) if line.points}
    several = len({entry.block for entry in entries}) > 1
    said = []
    for (block, label), part in grouped(entries, lambda e: (e.block, e.label)).items():
        name = f"{label} in '{block}'" if several else label
        if missing := left_out(part, analysis.results):
            said.append(f"Not counted: {name}: {'; '.join(missing)}")
        baseline, line = analysis.baselines.get(block, ""), lines.get((block, label))
        base = lines.get((block, baseline))
        if line is None or base is None or line is base:
            continue
        if not any(point.against for point in line.points):
            said.append(
                f"Not compared: {name} and {baseline}: no text of both at one length with the same "
                "number of tokens"
            )
        elif line.texts != base.texts:
            said.append(
                f"{name} and {baseline} are compared on the texts of both ({line.texts} and "
                f"{base.texts} were read)"
            )
    return said


def _entries(analysis: Analysis) -> list[Entry]:
    return [
        entry
        for entry in analysis.entries
        if entry.family == "reach"
        and entry.score.family in (LOSS, KEY_LOSS)
        and entry.score.finished
    ]


def _joined(
    lines: Sequence[ReachLine], retrieved: Mapping[tuple[str, str], tuple[Entry, Retrieval]]
) -> list[ReachLine]:
    """Lines by loss with what was retrieved, and lines of what was retrieved alone."""
    by_loss = grouped(lines, lambda line: (line.model, line.method))
    by_probes = grouped(retrieved, lambda key: (retrieved[key][0].run.model, key[1]))
    joined = []
    for line in lines:
        keys = by_probes.get((line.model, line.method), [])
        own = (line.block, line.method)
        alone = len(keys) == 1 and len(by_loss[line.model, line.method]) == 1
        key = own if own in retrieved else keys[0] if alone else None
        joined.append(replace(line, retrieval=retrieved[key][1]) if key else line)
    told = {id(line.retrieval) for line in joined}
    for (block, label), (entry, found) in retrieved.items():
        if id(found) not in told:
            joined.append(
                ReachLine(block=block, model=entry.run.model, method=label, retrieval=found)
            )
    return joined


def _with_keys(
    line: ReachLine, keys: Mapping[int | None, KeyLosses], base: Mapping[int | None, KeyLosses]
) -> ReachLine:
    """With the losses on key tokens."""
    points, most, told_by = [], 0, set[str]()
    for point in line.points:
        found = keys.get(point.length)
        if found is not None and (counted := found.tokens > 0).any():
            most = int(found.tokens.sum())
            told_by |= found.told_by
            estimate = estimate_ratio(found.nats[counted], found.tokens[counted], None)
            paired = found.paired(base.get(point.length))
            against = compare_perplexities(*paired) if paired is not None else None
            point = replace(point, key=estimate, key_against=against)
        points.append(point)
    referred = bool(told_by) and OWN not in told_by
    return replace(line, points=tuple(points), key_tokens=most, referred=referred)


def _line(
    block: str, label: str, entries: Sequence[Entry], curve: Curve, base: Curve | None
) -> ReachLine:
    shipped = [e.score.shipped_length for e in entries if e.score.shipped_length]
    claimed = [e.score.claimed_length for e in entries if e.score.claimed_length]
    several = len(curve.lengths) > 1
    args = (curve.nats, curve.tokens, curve.lengths)
    return ReachLine(
        block=block,
        model=entries[0].run.model,
        method=label,
        shipped=min(shipped, default=None),
        claimed=min(claimed, default=None),
        no_loss=reach_of(*args, MARGIN) if several else None,
        gain=reach_of(*args, -MARGIN) if several else None,
        texts=curve.documents.size,
        tokens=int(curve.tokens.sum()),
        tasks=tuple(dict.fromkeys(entry.task for entry in entries)),
        points=_points(curve, None if curve is base else base),
    )


def _points(curve: Curve, base: Curve | None) -> tuple[Point, ...]:
    steps = [None, *steps_of(curve.nats, curve.tokens, curve.lengths)]
    points = []
    for at, length in enumerate(curve.lengths):
        estimate = estimate_ratio(curve.nats[at], curve.tokens, None)
        point = Point(length, estimate.value, estimate.low, estimate.high, steps[at])
        paired = curve.paired(base, length) if base else None
        against = compare_perplexities(*paired) if paired is not None else None
        points.append(replace(point, against=against))
    return tuple(points)


def reach_text(reach: Reach | None) -> str:
    """`8K, not 16K`, `at least 8K`, `nowhere` or `cannot tell`; a dash where nothing was asked."""
    if reach is None:
        return "–"
    if reach.low is None:
        return "cannot tell"
    if reach.low == 0:
        return "nowhere"
    shown = length_label(reach.low)
    if reach.known is None:
        return f"at least {shown}"
    return shown if reach.refused is None else f"{shown}, not {length_label(reach.refused)}"
