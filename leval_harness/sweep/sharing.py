"""Which runs are worth dividing between workers, before any of their requests is made."""

from collections.abc import Iterable, Mapping

from leval_harness.sweep.estimate import Estimate
from leval_harness.sweep.identity import RUNNING_TEXT
from leval_harness.sweep.parts import (
    FEWEST_PARTS,
    MOST_PARTS,
    MOST_PROMPT_TOKENS_OF_ENGINE,
    MOST_REQUESTS,
    MOST_TOKENS,
    is_engine,
)
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import families_of
from leval_harness.sweep.workload import Workload, Workloads

WORTH_JOINING_SECONDS = 60.0
"""A further worker has to load the model: for a run that takes less, it would come too late."""


def parts_worth_sharing(
    runs: Iterable[RunRecord], estimates: Mapping[str, Estimate], workloads: Workloads
) -> dict[str, int]:
    """Return about how many parts runs will have, without runs that are too short to be divided."""
    return {
        run.run_id: expected_parts(run, workloads.of(run))
        for run in runs
        if is_worth_joining(estimates[run.run_id])
    }


def is_worth_joining(estimate: Estimate) -> bool:
    """Return whether a run takes so long that further workers may join it, as far as is known."""
    return estimate.hours is None or estimate.hours * 3600 > WORTH_JOINING_SECONDS


def expected_parts(run: RunRecord, workload: Workload | None) -> int:
    """Return about how many parts a run will have, before its requests are made.

    Args:
        run: a planned run.
        workload: what it makes its model read; None where that is not known, which counts as one
            part until the first worker has made the requests.
    """
    if workload is None or not workload.passes:
        return 1
    documents = workload.texts or workload.documents
    tokens = sum(one.tokens - one.cached for one in workload.passes) / documents
    requests = len(workload.passes) / documents
    has_windows = families_of(run.tasks) <= RUNNING_TEXT
    most_tokens = MOST_TOKENS
    if is_engine(run.model.backend) and not has_windows:
        most_tokens = MOST_PROMPT_TOKENS_OF_ENGINE
    in_portion = min(MOST_REQUESTS / requests, most_tokens / tokens)
    if not is_engine(run.model.backend) and (has_windows or requests > 1):
        in_portion = min(in_portion, documents / FEWEST_PARTS)
    return min(MOST_PARTS, round(documents / max(1.0, in_portion)) or 1)
