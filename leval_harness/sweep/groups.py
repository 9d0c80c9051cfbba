"""Groups of runs that one loaded model can serve, in the order in which they should start."""

from collections.abc import Iterable, Mapping, Sequence
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


def work_of(runs: Iterable[RunRecord], flops: Mapping[str, float]) -> dict[str, float]:
    """Return a measure of the work of each run, by which runs of one sweep can be compared.

    Args:
        runs: those that are to be computed.
        flops: id of a run -> its estimated floating-point operations.

    Returns:
        Id of each run -> its operations if they are known for all of them, else the tokens of a
        document.
    """
    to_do = list(runs)
    if all(run.run_id in flops for run in to_do):
        return {run.run_id: flops[run.run_id] for run in to_do}
    return {run.run_id: float(size_of(run)) for run in to_do}


def grouped(
    runs: Iterable[RunRecord], gpus: Sequence[str], work: Mapping[str, float] | None = None
) -> list[Group]:
    """Return the groups of some runs, those that should start first in front.

    What takes long and what needs several GPUs goes first: started late, it would leave the other
    GPUs idle at the end, and several GPUs rarely become free at the same time. Within a group the
    longest runs go first for the same reason.

    Args:
        runs: in the order of the config, which decides between equals.
        gpus: names of the GPUs that there are. Without any, models of one GPU use the CPU.
        work: id of a run -> a measure of its work; one without it counts as nothing. None for the
            tokens of a document.
    """
    by_key: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_key.setdefault(run.group, []).append(run)

    def work_of_run(run: RunRecord) -> float:
        return float(size_of(run)) if work is None else work.get(run.run_id, 0.0)

    groups = []
    for key, members in by_key.items():
        needed = members[0].gpus
        if needed == 1 and not gpus:
            needed = 0
        longest_first = sorted(members, key=work_of_run, reverse=True)
        groups.append(Group(key, tuple(longest_first), needed))

    def order(group: Group) -> tuple[int, float]:
        return group.gpus, sum(map(work_of_run, group.runs))

    return sorted(groups, key=order, reverse=True)
