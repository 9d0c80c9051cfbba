"""A whole sweep on one results folder: workers are started until no run is left.

A worker is one process with one loaded model, which claims runs of its group one after the other,
part by part (`claims`). Any number of machines may do this on one folder.
"""

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leval_harness.results.layout import RUN_FILE, RUNS_FOLDER, SCHEMA_VERSION, SWEEP
from leval_harness.sweep import SweepError
from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.config import SweepConfig
from leval_harness.sweep.estimate import Estimator, MeasuredRates, flops_by_run
from leval_harness.sweep.executor import Executor, create_executor
from leval_harness.sweep.gpus import VISIBLE_DEVICES
from leval_harness.sweep.groups import Group, grouped, work_of
from leval_harness.sweep.preflight import check_runs
from leval_harness.sweep.progress import Progress, say
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.sharing import parts_worth_sharing
from leval_harness.sweep.worker import WorkerRequest
from leval_harness.sweep.workload import Workloads
from resonance_vllm.common.errors import escape_control_characters
from resonance_vllm.common.files import write_json

POLL_SECONDS = 0.5


def write_sweep(
    folder: Folder, config: SweepConfig, runs: Sequence[RunRecord], command: str
) -> None:
    """Write `sweep.json`: the runs in the order of the config, their names, the baseline."""
    rows = [
        {
            "id": run.run_id,
            "model": run.model.name,
            "method": run.method.name,
            "context_length": run.context_length,
            "tasks": list(run.tasks),
        }
        for run in runs
    ]
    content = {
        "schema_version": SCHEMA_VERSION,
        "name": config.name,
        "baseline": config.baseline,
        "margin": config.margin,
        "command": command,
        "runs": rows,
    }
    write_json(folder.path / SWEEP, content)


@dataclass
class Sweep:
    """The loop that starts workers while runs are open.

    Attributes:
        folder: the results folder, which may be shared with other machines.
        groups: all runs, in the order in which groups should start.
        executor: where workers run.
        request: what every worker is given; each gets the runs of its group in addition.
        progress: prints what happens.
        workers: the running workers of this process, each with its group.
        sleep: waits so many seconds before the next look; a simulation advances its clock.
    """

    folder: Folder
    groups: Sequence[Group]
    executor: Executor
    request: WorkerRequest
    progress: Progress
    workers: dict[Any, Group] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> dict[str, RunState]:
        """Compute what nobody else computes, and return the state of each run at the end.

        Runs that another machine computes are left to it, once their claims have been seen to live.

        Raises:
            SweepError: the disk is full, or workers cannot be started.
        """
        runs = [run.run_id for group in self.groups for run in group.runs]
        try:
            with self.progress:
                return self._loop(runs)
        except OSError as error:
            if isinstance(error, SweepError):
                raise
            raise SweepError(f"the sweep cannot continue: {error}") from error
        finally:
            for worker in self.workers:
                self.executor.stop(worker)

    def _loop(self, runs: Sequence[str]) -> dict[str, RunState]:
        """Start workers until no run is left, and return the state of each run."""
        idle_since = None
        while True:
            self._remove_ended()
            states = self.folder.states(runs)
            self.progress.update(states)
            if self._start_one(states):
                continue
            if self.workers:
                idle_since = None
            else:
                # A machine that died looks alive until its claims are old. So wait until each
                # owner has given a sign of life after we became idle.
                idle_since = idle_since or self.folder.now()
                owners = [owner for state in states.values() for owner in state.owners]
                if all(owner["seen"] > idle_since for owner in owners):
                    return states
            self.sleep(POLL_SECONDS)

    def _remove_ended(self) -> None:
        for worker in list(self.workers):
            if self.executor.poll(worker):
                del self.workers[worker]

    def _start_one(self, states: Mapping[str, RunState]) -> bool:
        """Start the worker that is needed most, and return whether there was room for one."""
        for group in self._by_need(states):
            gpus = self._free_slot(group)
            if gpus is None:
                continue  # a group of fewer GPUs may still fit
            records = [run.written() for run in group.runs]
            request = replace(self.request, records=records)
            worker = self.executor.start(request, gpus, self._environment(group, gpus))
            self.workers[worker] = group
            return True
        return False

    def _by_need(self, states: Mapping[str, RunState]) -> list[Group]:
        """Return the groups that can use another worker, the one that needs it most first.

        A second worker loads the model a second time. So it joins a group only when every group
        has a worker, and then the group of which most is left for each of its workers.
        """
        workers_of = Counter(group.key for group in self.workers.values())
        needing = [
            group for group in self.groups if self._can_use(group, states, workers_of[group.key])
        ]
        waiting = [group for group in needing if workers_of[group.key] == 0]

        def left(group: Group) -> float:
            work = [
                self.request.work.get(run.run_id, 1.0) * states[run.run_id].share_left()
                for run in group.runs
            ]
            return sum(work) / (workers_of[group.key] + 1)

        return waiting or sorted(needing, key=left, reverse=True)

    def _can_use(self, group: Group, states: Mapping[str, RunState], workers: int) -> bool:
        """Return whether one more worker would find a part of a run of the group to compute."""
        members = [(run.run_id, states[run.run_id]) for run in group.runs]
        free = sum(self._free_parts(name, state) for name, state in members)
        if free == 0:
            return False
        # A worker that still starts has no claim yet, but will claim one of these parts.
        claimed_here = 0
        for _, state in members:
            claimed_here += sum(owner.get("sweep") == self.request.sweep for owner in state.owners)
        return free + claimed_here > workers

    def _free_parts(self, run: str, state: RunState) -> int:
        """Return how many further workers could take part in a run."""
        expected = self.request.expected_parts.get(run)
        if expected is None:
            return int(state.is_open)  # it takes too little time to be divided
        return len(state.free_parts(expected))

    def _free_slot(self, group: Group) -> list[str] | None:
        """Return the GPUs that a worker of a group would get; None if there is no room for it."""
        capacity = self.executor.capacity
        if group.gpus == 0:
            on_cpu = sum(running.gpus == 0 for running in self.workers.values())
            return [] if on_cpu < capacity.cpu_workers else None
        taken = {gpu for worker in self.workers for gpu in worker.gpus}
        return neighbouring(capacity.gpus, taken, group.gpus)

    def _environment(self, group: Group, gpus: Sequence[str]) -> dict[str, str]:
        """Return the variables of a worker: it sees only its GPUs, and has its share of the cores."""
        capacity = self.executor.capacity
        variables: dict[str, str] = {}
        if capacity.gpus:
            variables = dict.fromkeys(VISIBLE_DEVICES, ",".join(gpus))
        side_by_side = capacity.cpu_workers
        if group.gpus:
            side_by_side = len(capacity.gpus) // group.gpus
        if side_by_side > 1 and "OMP_NUM_THREADS" not in os.environ:
            variables["OMP_NUM_THREADS"] = str(max(1, _cores() // side_by_side))
        return variables


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def neighbouring(gpus: Sequence[str], taken: Collection[str], number: int) -> list[str] | None:
    """Return so many free GPUs that are as close together as possible; None if there are too few.

    GPUs 0 to 3 are usually connected better than 0, 1, 6 and 7. Blocks that begin at a multiple of
    their size go first, so that what is left over can be a block again.

    Args:
        gpus: names of all GPUs, neighbours side by side.
        taken: names of those that are in use.
        number: how many are needed, at least one.
    """
    free = [at for at, gpu in enumerate(gpus) if gpu not in taken]
    candidates = [free[first : first + number] for first in range(len(free) - number + 1)]
    if not candidates:
        return None

    def distance(places: Sequence[int]) -> tuple[int, bool]:
        return places[-1] - places[0], places[0] % number != 0

    return [gpus[at] for at in min(candidates, key=distance)]


def elsewhere(states: Mapping[str, RunState]) -> list[Mapping[str, Any]]:
    """Return the owners of runs that are still being computed."""
    return [state.owner for state in states.values() if state.owner is not None]


def clean_up(folder: Folder, run: RunRecord) -> None:
    """Remove what a worker left that was killed just after it had moved the results into place."""
    folder.forget_failure(run.run_id)
    folder.forget_parts(run.run_id)
    if not run.keeps_answers:
        folder.forget_answers(run.run_id)


def run_sweep(
    config: SweepConfig,
    runs: Sequence[RunRecord],
    path: Path,
    command: str,
    executor: str = "local",
) -> dict[str, RunState]:
    """Compute the runs of a sweep that nobody has computed or computes.

    Args:
        config: the sweep.
        runs: its runs, from `plan`.
        path: the results folder.
        command: what the user typed, for the record.
        executor: a key of `executor.EXECUTORS`.

    Returns:
        Id of each run -> its state at the end.

    Raises:
        ConfigError: something would make a run fail, see `preflight`.
        SweepError: the disk is full, workers cannot be started, or the cluster is gone.
    """
    where = create_executor(executor, config.jobs)
    finished = [run for run in runs if (path / RUNS_FOLDER / run.run_id / RUN_FILE).exists()]
    workloads = Workloads()
    to_do = [run for run in runs if run not in finished]
    check_runs(to_do, where.capacity, workloads)
    estimator = Estimator(workloads, MeasuredRates(path))
    estimates = estimator.of_all(to_do)
    flops = flops_by_run(estimates)
    work = work_of(to_do, flops)
    groups = grouped(runs, where.capacity.gpus, work)
    folder = Folder(path)
    write_sweep(folder, config, runs, command)
    for run in to_do:
        folder.forget_failure(run.run_id)
    for run in finished:
        clean_up(folder, run)
    done = len(finished)
    say(
        f"{escape_control_characters(str(path))}: {len(runs)} runs, {done} done, {len(runs) - done} to do"
    )
    request = WorkerRequest(
        folder=str(folder.path),
        sweep=uuid.uuid4().hex[:12],
        command=command,
        time_limit=config.time_limit,
        stall_limit=config.stall_limit,
        flops=flops,
        work=work,
        expected_parts=parts_worth_sharing(to_do, estimates, workloads),
    )
    progress = Progress(runs, folder, estimates)
    return Sweep(folder, groups, where, request, progress).run()
