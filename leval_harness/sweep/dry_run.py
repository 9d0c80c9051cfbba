"""What `leval-harness sweep --dry-run` shows: groups and runs, remarks, and what would fail."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leval_harness.backends import BACKENDS
from leval_harness.results.layout import REFERENCE, RUNS_FOLDER
from leval_harness.sweep import ConfigError
from leval_harness.sweep.context_lengths import native_length
from leval_harness.sweep.estimate import (
    Estimate,
    Estimator,
    MeasuredRates,
    all_warnings,
    flops_by_run,
    total,
)
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.groups import Group, grouped, work_of
from leval_harness.sweep.identity import closest
from leval_harness.sweep.preflight import check_runs
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.workload import Workloads
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.core.spec import RopeSpec

MOST_DIFFERENCES = 5
"""Differences from the closest finished run that are shown."""


@dataclass(frozen=True)
class DryRun:
    """What a sweep would do.

    Attributes:
        groups: each with `model`, `gpus`, `cost` of what is to do, and `runs`: `run_id`, `title`,
            `done`, and for a run that is to do its `cost`, the `closest` finished run and what
            `differs` from it.
        cost: of all that is to do, in hours of one worker.
        notes: remarks, a sentence or two each.
        problems: what would make a run fail.
    """

    groups: list[dict[str, Any]]
    cost: Estimate
    notes: list[str]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain dictionaries and lists."""
        groups = [
            {
                **group,
                "cost": group["cost"].to_dict(),
                "runs": [_with_plain_cost(run) for run in group["runs"]],
            }
            for group in self.groups
        ]
        return {
            "groups": groups,
            "cost": self.cost.to_dict(),
            "notes": self.notes,
            "problems": self.problems,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines that a terminal shows, without the problems."""
        for number, group in enumerate(self.groups, start=1):
            runs = group["runs"]
            yield f"Group {number}: {group['model']}, {count_of_runs(len(runs))}, one model instance"
            yield f"  GPUs: {group['gpus']}"
            yield f"  Cost: {group['cost'].text(with_parts=True)}"
            for run in runs:
                state = "done " if run["done"] else "to do"
                yield f"  {run['run_id']}  {state}  {run['title']}"
                if not run["done"]:
                    yield f"    {run['cost'].text()}"
                for place, (old, new) in list(run.get("differs", {}).items())[:MOST_DIFFERENCES]:
                    yield f"    not {run['closest']}: {place}: {old} -> {new}"
        done = [run["done"] for group in self.groups for run in group["runs"]]
        yield f"{count_of_runs(len(done))}, {done.count(False)} to do"
        if False in done:
            yield f"Cost: {self.cost.text()}, one worker"
        for note in self.notes:
            yield f"Note: {note}"


def count_of_runs(number: int) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{number} run{'' if number == 1 else 's'}"


def _with_plain_cost(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run with its cost as plain values."""
    plain = dict(run)
    if "cost" in plain:
        plain["cost"] = plain["cost"].to_dict()
    return plain


def dry_run(
    runs: Sequence[RunRecord],
    folder: Path,
    capacity: Capacity,
    device_tflops: float | None = None,
    device_gb: float | None = None,
) -> DryRun:
    """Return what a sweep would do in a results folder, which need not exist.

    Args:
        runs: the planned runs.
        folder: where the sweep has its results.
        capacity: the GPUs that there are.
        device_tflops: 10^12 operations per second that a device reaches, for the estimate of hours;
            None for what runs beside this sweep have reached on this machine.
        device_gb: memory of a device in 10^9 bytes; None for that of this machine's.
    """
    finished = {path.name: path for path in sorted((folder / RUNS_FOLDER).glob("*"))}
    planned = {run.run_id for run in runs}
    others = [path for name, path in finished.items() if name not in planned]
    to_do = [run for run in runs if run.run_id not in finished]
    workloads = Workloads()
    problems: list[str] = []
    try:
        check_runs(to_do, capacity, workloads)
    except ConfigError as error:
        problems = str(error).split("\n")
    estimator = Estimator(workloads, MeasuredRates(folder), device_tflops)
    estimates = estimator.of_all(to_do)
    work = work_of(to_do, flops_by_run(estimates))
    groups = [_group(group, estimates, others) for group in grouped(runs, capacity.gpus, work)]
    warnings = all_warnings(to_do, estimates, device_gb)
    notes = [*shortening_methods(runs), *nothing_beyond(runs), *warnings]
    return DryRun(groups, total(list(estimates.values())), notes, problems)


def _group(
    group: Group, estimates: Mapping[str, Estimate], others: Sequence[Path]
) -> dict[str, Any]:
    """Return what a dry run says of a group: its runs with what each costs, and their total.

    Args:
        group: runs that share a model instance.
        estimates: run id -> cost, of runs that are not done.
        others: folders of finished runs, of which the closest to each run is named.
    """
    rows = []
    for run in group.runs:
        is_done = run.run_id not in estimates
        row: dict[str, Any] = {"run_id": run.run_id, "title": run.title, "done": is_done}
        if not is_done:
            row["cost"] = estimates[run.run_id]
        if not is_done and others:
            row["closest"], row["differs"] = closest(run, others)
        rows.append(row)
    of_group = total([row["cost"] for row in rows if "cost" in row])
    model = group.runs[0].model.name
    return {"model": model, "gpus": group.gpus, "cost": of_group, "runs": rows}


@cache
def _positions(path: str, revision: str | None) -> PositionConfig:
    return PositionConfig.from_checkpoint(path, revision)


def _positions_of(run: RunRecord) -> PositionConfig | None:
    """Return what the config of a run's checkpoint says; None for a served model."""
    if run.model.backend not in BACKENDS:
        return None
    revision = None if Path(run.model.path).is_dir() else run.model.revision
    return _positions(run.model.path, revision)


def shortening_methods(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield a sentence for each method whose limit is below the native length of its model."""
    seen = set()
    for run in runs:
        positions = _positions_of(run)
        rope = run.method.rope_parameters
        key = (run.model.name, run.method.name)
        if positions is None or rope is None or key in seen:
            continue
        seen.add(key)
        native = native_length(positions, {})
        limit = length_limit(positions, RopeSpec.from_dict(rope))
        if native is not None and limit < native:
            yield (
                f"{run.method.name} shortens the context of {run.model.name}: its limit is "
                f"{limit:,} tokens, the native context length {native:,}; a larger factor or "
                "original_max_position_embeddings extends it"
            )


def nothing_beyond(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield a sentence for each model of which nothing beyond the native length is measured."""
    by_model: dict[str, list[RunRecord]] = {}
    for run in runs:
        # The reference reads windows of its own length, however short the documents are.
        if run.method.name != REFERENCE:
            by_model.setdefault(run.model.name, []).append(run)
    for name, of_model in by_model.items():
        scales = any(
            run.method.rope_parameters and run.method.rope_parameters["rope_type"] != "default"
            for run in of_model
        )
        natives = [native_length(_positions_of(run), run.metadata) for run in of_model]
        native = max((length for length in natives if length is not None), default=None)
        longest = max(run.context_length or 0 for run in of_model)
        if scales and native is not None and 0 < longest <= native:
            yield (
                f"{name}: nothing is measured beyond its native context length of {native:,} tokens "
                f"(the longest: {longest:,}). This shows what each method costs within it, and not "
                "whether a method extends it; context_lengths: [1.5x] would"
            )
