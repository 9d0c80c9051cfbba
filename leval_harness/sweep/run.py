"""A whole sweep on one results folder: groups of runs, workers on GPUs, until nothing is left.

A group is the runs that one loaded model can serve; a worker is one process with one load, which
claims runs of its group one after the other (`claims`). Any number of machines may do this on one
folder.
"""

import contextlib
import os
import re
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click

from leval_harness.results.layout import SCHEMA_VERSION, SWEEP
from leval_harness.sweep import ConfigError, SweepError
from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.config import SweepConfig
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.worker import Worker, WorkerRequest
from resonance_vllm.common.errors import escape_control_characters
from resonance_vllm.common.files import write_json

POLL_SECONDS, HEARTBEAT_SECONDS = 0.5, 60.0
USUAL_LENGTH = 8192
"""A run counts as its context length, in tokens; as this where it has none."""
DEVICES, RENUMBERING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "ROCR_VISIBLE_DEVICES"
"""Variables with which a process sees some GPUs alone; one of ROCm numbers those again, from 0."""
SMI = {
    "nvidia-smi --query-gpu=index --format=csv,noheader": r"^\d+",
    "rocm-smi --showid --csv": r"^card(\d+)",
}
"""Command that lists GPUs -> where their numbers stand in its output."""


class Group(NamedTuple):
    """The runs that one loaded model can serve, and how many GPUs a worker takes; 0 on a CPU."""

    key: str
    runs: tuple[RunRecord, ...]
    gpus: int


class Slots(NamedTuple):
    """Where workers run: what starts one, all GPUs, workers without any, most GPUs of one."""

    start: Callable[..., Any]
    gpus: Sequence[str]
    jobs: int
    most: int


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` has them.

    Of the variable, which may hold UUIDs or MIG names, else of `nvidia-smi` or `rocm-smi`: torch
    may be a build for CPUs.
    """
    for variable in (*DEVICES, RENUMBERING):
        if (given := os.environ.get(variable)) is not None:
            names = [each.strip() for each in given.split(",")]
            there = [name for name in names if name not in ("", "-1")]
            return list(map(str, range(len(there)))) if variable == RENUMBERING else there
    for command, number in SMI.items():
        with contextlib.suppress(OSError):
            output = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if names := re.findall(number, output.stdout, re.MULTILINE):
                return names
    return []


def grouped(runs: Iterable[RunRecord], gpus: Sequence[str]) -> list[Group]:
    """Runs that one loaded model can serve, together; without GPUs, models of one use the CPU."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    return [
        Group(key, tuple(each), 0 if each[0].gpus == 1 and not gpus else each[0].gpus)
        for key, each in found.items()
    ]


def write_sweep(
    folder: Folder, config: SweepConfig, runs: Sequence[RunRecord], command: str
) -> None:
    """Write what the folder is of: the order of the runs, their names, the baseline."""
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
    about = {"schema_version": SCHEMA_VERSION, "name": config.name, "baseline": config.baseline}
    about |= {"margin": config.margin, "command": command, "runs": rows}
    write_json(folder.path / SWEEP, about)


class Progress:
    """Writes when a run starts or ends, and once a minute how far the running ones are."""

    def __init__(self, runs: Sequence[RunRecord], folder: Folder) -> None:
        self.runs, self.folder = {run.run_id: run for run in runs}, folder
        self.states: Mapping[str, RunState] = {}
        self.started = self.last_line = time.monotonic()
        self.at_start = 0.0

    def update(self, states: Mapping[str, RunState]) -> None:
        """Take what is known of the runs now, and write what has changed."""
        before, self.states = self.states, states
        if not before:
            before, self.at_start = states, self._size(self._share)
        for name, state in states.items():
            if state.owner and not before[name].owner:
                self._say(name, "started")
            elif state.is_over and not before[name].is_over:
                self._say(name, "done" if state.done else f"failed: {state.failure}")
        if time.monotonic() - self.last_line > HEARTBEAT_SECONDS:
            for name in (name for name, state in states.items() if state.owner):
                self._say(name, f"{self._share(name):.0%}")

    def _say(self, name: str, what: str) -> None:
        self.last_line = time.monotonic()
        failed = sum(state.failure is not None for state in self.states.values())
        over = sum(state.is_over for state in self.states.values())
        place = f"[{over}/{len(self.runs)}{f', {failed} failed' if failed else ''}]"
        click.echo(f"{place} {self.runs[name].title}: {what}, {self._eta()}")

    def _share(self, name: str) -> float:
        """Share of a run that is computed."""
        state = self.states[name]
        return 1.0 if state.done else self.folder.share(name) if state.owner else 0.0

    def _size(self, share: Callable[[str], float]) -> float:
        """Tokens of the runs that have not failed, each weighed by a share."""
        there = (name for name, state in self.states.items() if state.failure is None)
        return sum((self.runs[name].context_length or USUAL_LENGTH) * share(name) for name in there)

    def _eta(self) -> str:
        """What is left, at the rate of what this start has computed so far."""
        done, total = self._size(self._share), self._size(lambda name: 1.0)
        if done <= self.at_start and done < total:
            return "ETA unknown"
        rate = (time.monotonic() - self.started) / max(1.0, done - self.at_start)
        return f"ETA {timedelta(seconds=round((total - done) * rate))}"


@dataclass
class Sweep:
    """The loop that starts workers while runs are open; all are told the `request`."""

    folder: Folder
    groups: Sequence[Group]
    slots: Slots
    request: WorkerRequest
    progress: Progress
    workers: dict[Any, Group] = field(default_factory=dict)

    def run(self) -> dict[str, RunState]:
        """Compute what nobody else does; what is known of the runs at the end.

        A run that another machine computes is waited for until its claim has been seen to live.

        Raises:
            SweepError: the disk is full, or workers cannot be started.
        """
        runs = [run.run_id for group in self.groups for run in group.runs]
        idle_since = None
        try:
            while True:
                for worker in [each for each in self.workers if each.has_ended()]:
                    del self.workers[worker]
                    worker.judge()
                states = {run: self.folder.state(run) for run in runs}
                self.progress.update(states)
                if self._start(states):
                    continue
                if self.workers:
                    idle_since = None
                else:
                    idle_since = idle_since or self.folder.now()
                    if all(owner["seen"] > idle_since for owner in elsewhere(states)):
                        return states
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise SweepError(f"the sweep cannot go on: {error}") from error
        finally:
            for worker in self.workers:
                worker.end()

    def _start(self, states: Mapping[str, RunState]) -> bool:
        """Start the worker that is most needed, where there is room for it.

        A group without a worker goes first; a further worker joins a group while no group waits.
        """
        running = Counter(group.key for group in self.workers.values())
        wanted = [group for group in self.groups if self._lacks(group, states, running[group.key])]
        waiting = [group for group in wanted if not running[group.key]]
        taken = {gpu for worker in self.workers for gpu in worker.gpus}
        free = [gpu for gpu in self.slots.gpus if gpu not in taken]
        jobs = self.slots.jobs - sum(not group.gpus for group in self.workers.values())
        for group in waiting or sorted(wanted, key=lambda each: running[each.key]):
            if group.gpus <= len(free) if group.gpus else jobs > 0:
                records = [run.written() for run in group.runs]
                request, gpus = replace(self.request, records=records), free[: group.gpus]
                worker = self.slots.start(request, gpus, self._environment(group, gpus))
                self.workers[worker] = group
                return True
        return False

    def _lacks(self, group: Group, states: Mapping[str, RunState], workers: int) -> bool:
        """Whether a group has more runs to compute here than workers."""
        of_group = [states[run.run_id] for run in group.runs]
        mine = sum((s.owner or {}).get("sweep") == self.request.sweep for s in of_group)
        unclaimed = sum(state.is_open for state in of_group)
        return bool(unclaimed) and unclaimed + mine > workers

    def _environment(self, group: Group, gpus: Sequence[str]) -> dict[str, str]:
        """Variables of a worker: it sees its GPUs alone, and workers side by side share cores."""
        found = dict.fromkeys(DEVICES, ",".join(gpus)) if self.slots.gpus else {}
        side_by_side = len(self.slots.gpus) // group.gpus if group.gpus else self.slots.jobs
        if side_by_side > 1 and "OMP_NUM_THREADS" not in os.environ:
            known = hasattr(os, "sched_getaffinity")
            cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
            found["OMP_NUM_THREADS"] = str(max(1, cores // side_by_side))
        return found


def elsewhere(states: Mapping[str, RunState]) -> list[Mapping[str, Any]]:
    """The owners of runs that are still computed."""
    return [state.owner for state in states.values() if state.owner is not None]


def run_sweep(
    config: SweepConfig,
    runs: Sequence[RunRecord],
    path: Path,
    command: str,
    executor: str = "local",
) -> dict[str, RunState]:
    """Compute the runs of a sweep that nobody has computed or computes; how they stand then.

    `path` is the folder of the results, `command` what the user typed, `executor` local or ray.

    Raises:
        ConfigError: a model takes more GPUs than there are.
        SweepError: the disk is full, workers cannot be started, or the cluster is gone.
    """
    if executor == "ray":
        from leval_harness.sweep.ray_executor import cluster

        slots = cluster()
    else:
        gpus = visible_gpus()
        slots = Slots(Worker, gpus, config.jobs, len(gpus))
    groups = grouped(runs, slots.gpus)
    for group in groups:
        if group.gpus > slots.most:
            raise ConfigError(
                f"models: {group.runs[0].model.name} takes {group.gpus} GPUs and {slots.most} are "
                "visible on one machine; make tensor_parallel_size or gpus of the model smaller, "
                "or run where there are more"
            )
    folder = Folder(path)
    write_sweep(folder, config, runs, command)
    for run in runs:
        folder.forget_failure(run.run_id)
    done = sum(folder.is_done(run.run_id) for run in runs)
    start = f"{len(runs)} runs, {done} done, {len(runs) - done} to do"
    click.echo(f"{escape_control_characters(str(path))}: {start}")
    request = WorkerRequest(folder=str(folder.path), sweep=uuid.uuid4().hex[:12], command=command)
    return Sweep(folder, groups, slots, request, Progress(runs, folder)).run()
