"""How far does it really read? One line per model and method, and the numbers that it rests on.

By loss: the same texts read at growing lengths. By retrieval: RULER's scores at several lengths,
and where the needles that were found lay in their prompts.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leval_harness.analysis.entries import Analysis, Entry, grouped
from leval_harness.analysis.labels import length_label, task_label
from leval_harness.results import Results, ResultsError
from leval_harness.results.sample_lines import needles_of
from leval_tasks.metrics import length_of
from leval_tasks.statistics.clustered import Estimate, Floats, estimate_ratio
from leval_tasks.statistics.paired import Difference, compare_perplexities
from leval_tasks.statistics.reach import (
    Reach,
    Retrieved,
    Step,
    reach_above,
    reach_kept,
    reach_of,
    steps_of,
)
from leval_tasks.statistics.skewed_t import MARGIN

LOSS, KEY_LOSS = "loss", "key_loss"
OWN = "own"
"""Stands for the model itself where no reference model determined the key tokens."""

RULER = re.compile(r"niah_|ruler_")
NEEDLES = re.compile(r"niah_")

Losses = dict[int, dict[str, tuple[float, float]]]
"""Length -> text -> nats and tokens; a text is a task and a document."""


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


@dataclass(frozen=True, slots=True)
class Point:
    """The same tokens of the same texts at one length.

    Attributes:
        length: tokens that the model sees in all.
        loss: nats a token, over all texts.
        low, high: ends of its 95% interval by document; None below three texts.
        step: what changed from the next shorter length; None for the shortest.
        against: difference to the block's baseline at this length, on the texts that both read;
            None for the baseline itself and without such texts.
        key: nats a token on the key tokens, those that a long context helps; None where the backend
            does not report each token or there are none.
        key_against: difference of these to the baseline's, where a reference model determined the
            key tokens of both.
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
        referred: whether a reference model determined them.
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

    A limited number of questions has a block of its own: its retrieval is joined to the model's
    line by loss where there is only one.
    """
    lines = []
    keys = grouped(_entries(analysis, KEY_LOSS), lambda entry: (entry.block, entry.label))
    for block, of_block in grouped(_entries(analysis, LOSS), lambda entry: entry.block).items():
        by_method = grouped(of_block, lambda entry: entry.label)
        baseline = analysis.baselines.get(block, "")
        base = _common_losses(by_method.get(baseline, []), analysis.results)
        base_keys = keys.get((block, baseline), [])
        for label, part in by_method.items():
            if losses := _common_losses(part, analysis.results):
                is_base = label == baseline
                line = _line(block, label, part, losses, {} if is_base else base)
                own_keys = keys.get((block, label), [])
                lines.append(
                    _with_keys(line, own_keys, [] if is_base else base_keys, analysis.results)
                )
    return _joined(lines, retrievals(analysis))


def _entries(analysis: Analysis, family: str) -> list[Entry]:
    """Finished scores of one family of metrics of the `reach_*` tasks."""
    reach = (entry for entry in analysis.entries if entry.family == "reach")
    return [entry for entry in reach if entry.score.family == family and entry.score.finished]


def _line(
    block: str, label: str, entries: Sequence[Entry], losses: Losses, base: Losses
) -> ReachLine:
    shipped = [e.score.shipped_length for e in entries if e.score.shipped_length]
    claimed = [e.score.claimed_length for e in entries if e.score.claimed_length]
    nats, tokens = np.array([list(each.values()) for each in losses.values()]).transpose(2, 0, 1)
    sums = nats, tokens[0], tuple(losses)
    points = []
    for length, step in zip(losses, [None, *steps_of(*sums)], strict=True):
        loss = estimate_ratio(*_columns(losses[length]), exponential=False)
        paired = _paired_texts(losses[length], base.get(length, {}))
        against = compare_perplexities(*paired) if paired is not None else None
        points.append(Point(length, loss.value, loss.low, loss.high, step, against))
    return ReachLine(
        block=block,
        model=entries[0].run.model,
        method=label,
        shipped=min(shipped, default=None),
        claimed=min(claimed, default=None),
        no_loss=reach_of(*sums, MARGIN) if len(points) > 1 else None,
        gain=reach_of(*sums, -MARGIN) if len(points) > 1 else None,
        texts=tokens[0].size,
        tokens=int(tokens[0].sum()),
        tasks=tuple(dict.fromkeys(entry.task for entry in entries)),
        points=tuple(points),
    )


def _with_keys(
    line: ReachLine, keys: Sequence[Entry], base_keys: Sequence[Entry], results: Results
) -> ReachLine:
    """The line with the losses on key tokens."""
    losses, base = _losses(keys, results), _losses(base_keys, results)
    references = _references(keys)
    points, most = [], 0
    for point in line.points:
        if found := losses.get(point.length):
            nats, tokens = _columns(found)
            most = int(tokens.sum())
            paired = None
            if OWN not in references and references == _references(base_keys):
                paired = _paired_texts(found, base.get(point.length, {}), all_texts=True)
            against = compare_perplexities(*paired) if paired is not None else None
            estimate = estimate_ratio(nats, tokens, exponential=False)
            point = replace(point, key=estimate, key_against=against)
        points.append(point)
    referred = most > 0 and OWN not in references
    return replace(line, points=tuple(points), key_tokens=most, referred=referred)


def _joined(
    lines: Sequence[ReachLine], retrieved: Mapping[tuple[str, str], tuple[Entry, Retrieval]]
) -> list[ReachLine]:
    """Lines by loss with their retrieval, and lines with retrieval alone."""
    by_loss = grouped(lines, lambda line: (line.model, line.method))
    by_probes = grouped(retrieved, lambda key: (retrieved[key][0].run.model, key[1]))
    joined, used = [], set()
    for line in lines:
        keys = by_probes.get((line.model, line.method), [])
        own = (line.block, line.method)
        alone = len(keys) == 1 and len(by_loss[line.model, line.method]) == 1
        key = own if own in retrieved else keys[0] if alone else None
        used.add(key)
        joined.append(replace(line, retrieval=retrieved[key][1]) if key else line)
    return joined + [
        ReachLine(block=block, model=entry.run.model, method=label, retrieval=found)
        for (block, label), (entry, found) in retrieved.items()
        if (block, label) not in used
    ]


def reach_gaps(analysis: Analysis, lines: Sequence[ReachLine]) -> list[str]:
    """What was run and is in no line of `reach_lines`, or is not compared, and why."""
    entries = _entries(analysis, LOSS)
    by_place = {(line.block, line.method): line for line in lines if line.points}
    several = len({entry.block for entry in entries}) > 1
    gaps = []
    for (block, label), part in grouped(entries, lambda e: (e.block, e.label)).items():
        name = f"{label} in '{block}'" if several else label
        if missing := _left_out(part, analysis.results):
            gaps.append(f"Not counted: {name}: {'; '.join(missing)}")
        baseline, line = analysis.baselines.get(block, ""), by_place.get((block, label))
        base = by_place.get((block, baseline))
        if line is None or base is None or line is base:
            continue
        if not any(point.against for point in line.points):
            gaps.append(
                f"Not compared: {name} and {baseline}: no text of both at one length with the same "
                "number of tokens"
            )
        elif line.texts != base.texts:
            gaps.append(
                f"{name} and {baseline} are compared on the texts of both ({line.texts} and "
                f"{base.texts} were read)"
            )
    return gaps


def _left_out(entries: Sequence[Entry], results: Results) -> list[str]:
    """Which of one method's tasks and lengths its curve does not hold, and why."""
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common_lengths(by_task)
    missing = []
    for task, part in by_task.items():
        if any(results.ratios(entry.score) is None for entry in part):
            missing.append(f"{task_label(task)}, whose samples were not logged")
        elif lengths and not _common_texts(_losses(part, results), lengths):
            missing.append(f"{task_label(task)}, of which no text was read at every length")
    others = {e.score.at for e in entries if e.score.at is not None} - set(lengths)
    if others:
        named = ", ".join(length_label(length) for length in sorted(others))
        missing.append(f"{named}, at which not every task was asked")
    return missing


def reach_text(reach: Reach | None) -> str:
    """`8K, not 16K`, `at least 8K`, `nowhere` or `cannot tell`; a dash for None."""
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


def _losses(entries: Sequence[Entry], results: Results) -> Losses:
    """Losses of all texts of these entries whose samples were logged."""
    losses: Losses = {}
    for entry in entries:
        ratios = results.ratios(entry.score)
        if ratios is not None and entry.score.at is not None:
            of_length = losses.setdefault(entry.score.at, {})
            for name, *sums in zip(*ratios.by_cluster(), strict=True):
                of_length[f"{entry.task} {name}"] = (float(sums[0]), float(sums[1]))
    return losses


def _common_losses(entries: Sequence[Entry], results: Results) -> Losses:
    """Losses at the lengths that all tasks of these entries have, of texts read at each of them."""
    by_task = grouped(entries, lambda entry: entry.task)
    lengths = _common_lengths(by_task)
    common: Losses = {}
    for part in by_task.values():
        losses = _losses(part, results)
        texts = _common_texts(losses, lengths)
        for length in lengths if texts else ():
            common.setdefault(length, {}).update({each: losses[length][each] for each in texts})
    return common


def _common_lengths(by_task: Mapping[str, Sequence[Entry]]) -> list[int]:
    """The lengths at which every task was asked, ascending."""
    lengths = [{e.score.at for e in part if e.score.at} for part in by_task.values()]
    return sorted(set.intersection(*lengths)) if lengths else []


def _common_texts(losses: Losses, lengths: Sequence[int]) -> list[str]:
    """Texts of a task that were read at all lengths; none if their tokens differ between them."""
    if not set(lengths) <= set(losses):
        return []
    first, *others = (losses[length] for length in lengths)
    texts = [text for text in first if all(text in other for other in others)]
    same = all(other[text][1] == first[text][1] for other in others for text in texts)
    return texts if same else []


def _columns(losses: Mapping[str, tuple[float, float]]) -> tuple[Floats, Floats]:
    """Nats and tokens of some texts, `[G]` each."""
    nats, tokens = np.array(list(losses.values())).T
    return nats, tokens


def _paired_texts(
    own: Mapping[str, tuple[float, float]],
    other: Mapping[str, tuple[float, float]],
    *,
    all_texts: bool = False,
) -> tuple[Floats, Floats, Floats] | None:
    """Own nats, the other's and tokens, of each text that both read, `[G]` each.

    None where there is none, or a text has another number of tokens in the other; with `all_texts`
    also where one of them has more texts.
    """
    texts = sorted(set(own) & set(other))
    if not texts or any(own[text][1] != other[text][1] for text in texts):
        return None
    if all_texts and set(own) != set(other):
        return None
    nats, tokens = _columns({text: own[text] for text in texts})
    return nats, _columns({text: other[text] for text in texts})[0], tokens


def _references(keys: Sequence[Entry]) -> set[str]:
    """The reference models that determined the key tokens, `own` for the model itself."""
    return {entry.score.settings.get("key_tokens", OWN) for entry in keys}


def paired_losses(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[str, int, Floats]]:
    """What both methods read of each task, and of all tasks together, at each length.

    Args:
        method: its `loss@…` of one block, or its `key_loss@…`.
        baseline: the same of the other method.
        results: with the samples.

    Yields:
        The task, or an empty text for all of them; the length; nats of the method, of the baseline
        and tokens of each text, `[3, G]`.

    Raises:
        ResultsError: a text has another number of tokens in the baseline.
    """
    sides = [grouped(side, lambda entry: entry.task) for side in (method, baseline)]
    tasks = [task for task in sides[0] if task in sides[1]]
    for task in (*tasks, *([""] if len(tasks) > 1 else [])):
        own, theirs = ([e for t in ([task] if task else tasks) for e in side[t]] for side in sides)
        is_key = own[0].score.family == KEY_LOSS
        if is_key and (OWN in _references(own) or _references(own) != _references(theirs)):
            continue
        find = _losses if is_key else _common_losses
        losses, base = find(own, results), find(theirs, results)
        for length in sorted(set(losses) & set(base)):
            paired = _paired_texts(losses[length], base[length], all_texts=is_key)
            if paired is not None:
                yield task, length, np.stack(paired)
            elif not is_key and set(losses[length]) & set(base[length]):
                raise ResultsError(
                    f"{own[0].task} at {length_label(length)}: a text has another number of tokens "
                    "in the baseline; compare runs of one tokenizer and the same settings"
                )


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
