"""Paired differences of reach losses: two methods on the same tokens of the same texts."""

from collections.abc import Iterator, Sequence

from leval_harness.analysis.analyse import grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.reach_curves import LOSS, curve_of, key_losses
from leval_harness.analysis.task_titles import length_label
from leval_harness.results import Results, ResultsError
from leval_harness.results.ratios import Floats


def paired_losses(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[str, int, Floats]]:
    """What both read of each task, and of all tasks together, at each length.

    Args:
        method: its `loss@…` of one block, or its `key_loss@…`.
        baseline: the same of the other.
        results: with the samples.

    Yields:
        The task, or nothing for all of them; the length; nats of the method, of the baseline and
        tokens of each text, `[3, G]`.

    Raises:
        ResultsError: a text has another number of tokens in the baseline.
    """
    sides = [grouped(side, lambda entry: entry.task) for side in (method, baseline)]
    tasks = [task for task in sides[0] if task in sides[1]]
    for task in (*tasks, *([""] if len(tasks) > 1 else [])):
        own, theirs = ([e for t in ([task] if task else tasks) for e in side[t]] for side in sides)
        find = _losses if own[0].score.family == LOSS else _key_losses
        for length, part in find(own, theirs, results):
            yield task, length, part


def _losses(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[int, Floats]]:
    own, theirs = (curve_of(side, results) for side in (method, baseline))
    if own is None or theirs is None:
        return
    for length in own.lengths:
        if (part := own.paired(theirs, length)) is not None:
            yield length, part
        elif length in theirs.lengths and set(own.documents) & set(theirs.documents):
            raise ResultsError(
                f"{method[0].task} at {length_label(length)}: a text has another number of tokens "
                "in the baseline; compare runs of one tokenizer and the same settings"
            )


def _key_losses(
    method: Sequence[Entry], baseline: Sequence[Entry], results: Results
) -> Iterator[tuple[int, Floats]]:
    own, theirs = (key_losses(side, results) for side in (method, baseline))
    for length in sorted(each for each in own if each is not None):
        if (part := own[length].paired(theirs.get(length))) is not None:
            yield length, part
