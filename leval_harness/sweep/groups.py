"""Groups of runs that one loaded model can serve, in the order in which they should start."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from leval_harness.results.layout import REFERENCE
from leval_harness.sweep.run_record import RunRecord

USUAL_LENGTH = 8192
"""Tokens that a run without a context length is taken to have."""


class Group(NamedTuple):
    """Runs that one loaded model can serve.

    Attributes:
        key: the same for all runs of the group, see `plan.group_of`.
        runs: the longest first.
        gpus: how many a worker takes; 0 if it runs on the CPU.
    """

    key: str
    runs: tuple[RunRecord, ...]
    gpus: int


def size_of(run: RunRecord) -> int:
    """Return a rough measure of the work of a run: the tokens of one of its documents.

    The windows of a reference overlap by half, so that each token is read about twice.
    """
    length = run.context_length or USUAL_LENGTH
    if run.method.name != REFERENCE:
        return length
    documents = run.metadata.get("context_length") or length
    longest = max(documents) if isinstance(documents, list | tuple) else int(documents)
    return 2 * max(longest, length)


def grouped(runs: Iterable[RunRecord], gpus: Sequence[str]) -> list[Group]:
    """Return the groups of some runs, those that should start first in front.

    What takes long and what needs several GPUs goes first: started late, it would leave the other
    GPUs idle at the end, and several GPUs rarely become free at the same time. Within a group the
    longest runs go first for the same reason.

    Args:
        runs: in the order of the config, which decides between equals.
        gpus: names of the GPUs that there are. Without any, models of one GPU use the CPU.
    """
    by_key: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_key.setdefault(run.group, []).append(run)
    groups = []
    for key, members in by_key.items():
        needed = members[0].gpus
        if needed == 1 and not gpus:
            needed = 0
        longest_first = sorted(members, key=size_of, reverse=True)
        groups.append(Group(key, tuple(longest_first), needed))
    return sorted(groups, key=lambda group: (group.gpus, _work(group)), reverse=True)


def _work(group: Group) -> int:
    return sum(size_of(run) for run in group.runs)
