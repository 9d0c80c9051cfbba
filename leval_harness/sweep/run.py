"""A whole sweep on one results folder: groups of cells, workers on GPUs, until nothing is left.

A group is the cells that one loaded model can serve; a worker is one process with one load, which
claims cells of its group one after the other (`claims`). Any number of machines may do this on one
folder.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leval_harness.layout import SCHEMA_VERSION, SWEEP
from leval_harness.sweep import ConfigError, SweepError
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.claims import CellState, Folder, file_system_time
from leval_harness.sweep.config import SweepConfig
from leval_harness.sweep.progress import Progress
from leval_harness.sweep.workers import Worker, WorkerRequest
from resonance_vllm.errors import printable
from resonance_vllm.files import write_json

if TYPE_CHECKING:
    from leval_harness.sweep.ray_executor import RayExecutor

POLL_SECONDS = 0.5
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
SMI = {
    "nvidia-smi --query-gpu=index --format=csv,noheader": r"^\d+",
    "rocm-smi --showid --csv": r"^card(\d+)",
}
"""Command that lists GPUs -> where their numbers stand in its output."""


@dataclass(frozen=True)
class Group:
    """The cells that one loaded model can serve, and how many GPUs a worker takes; 0 on a CPU."""

    key: str
    cells: tuple[PlannedCell, ...]
    gpus: int

    @property
    def title(self) -> str:
        """What messages call it: its model."""
        return self.cells[0].record.model.name


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` has them.

    Of the variable, which may hold UUIDs or MIG names, else of `nvidia-smi` or `rocm-smi`: torch
    may be a build for CPUs.
    """
    for variable in DEVICES:
        if (given := os.environ.get(variable)) is not None:
            names = [each.strip() for each in given.split(",")]
            return [name for name in names if name not in ("", "-1")]
    for command, number in SMI.items():
        with contextlib.suppress(OSError):
            output = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if names := re.findall(number, output.stdout, re.MULTILINE):
                return names
    return []


def grouped(
    cells: Iterable[PlannedCell], gpus: Sequence[str], apart: Collection[str] = ()
) -> list[Group]:
    """Cells that one loaded model can serve, together.

    Args:
        cells: of the sweep.
        gpus: that are visible. Without any, what takes one runs on the CPU.
        apart: ids of those whose rotation could not be exchanged in a loaded model; each alone.
    """
    found: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        found.setdefault(cell.id if cell.id in apart else cell.group, []).append(cell)
    return [
        Group(key, tuple(each), 0 if each[0].gpus == 1 and not gpus else each[0].gpus)
        for key, each in found.items()
    ]


def check_gpus(groups: Iterable[Group], there: int, where: str) -> None:
    """Refuse a model that takes more GPUs than there are.

    Raises:
        ConfigError: names the model and both numbers.
    """
    for group in groups:
        if group.gpus > there:
            raise ConfigError(
                f"models: {group.title} takes {group.gpus} GPUs and {there} {where}; make "
                "tensor_parallel_size or gpus of the model smaller, or run where there are more"
            )


def write_sweep(
    folder: Folder, config: SweepConfig, cells: Sequence[PlannedCell], command: str
) -> None:
    """Write what the folder is of: the order of the cells, their names, the baseline."""
    rows = [
        {
            "id": cell.id,
            "model": cell.record.model.name,
            "label": cell.record.model.name,
            "method": cell.record.method.name,
            "context_length": cell.record.context_length,
            "tasks": list(cell.record.tasks),
        }
        for cell in cells
    ]
    about = {"schema_version": SCHEMA_VERSION, "name": config.name, "baseline": config.baseline}
    about |= {"margin": config.margin, "command": command, "cells": rows}
    write_json(folder.path / SWEEP, about)


@dataclass
class LocalExecutor:
    """Workers on this machine: as many as its GPUs allow, and `jobs` of those that take none."""

    gpus: list[str]
    jobs: int = 1
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(self.gpus)
        self.at_a_place = len(self.gpus), "are visible"

    def has_room(self, group: Group) -> bool:
        """Whether a further worker for a group can start now."""
        if group.gpus:
            return group.gpus <= len(self.free)
        return sum(not worker.gpus for worker in self.workers) < self.jobs

    def start(self, group: Group, request: WorkerRequest) -> None:
        """Start a worker on the first free GPUs; workers side by side share the cores."""
        mine, self.free = self.free[: group.gpus], self.free[group.gpus :]
        environment = devices(mine) if self.gpus else {}
        slots = len(self.gpus) // group.gpus if group.gpus else self.jobs
        if slots > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, cores() // slots))
        self.workers.append(Worker.start(request, group.key, mine, environment))

    def running(self) -> Mapping[str, int]:
        """Key of a group -> how many workers it has; those that have ended are judged first."""
        for worker in [each for each in self.workers if each.has_ended()]:
            self.workers.remove(worker)
            self.free += worker.gpus
            worker.judge()
        return Counter(worker.group for worker in self.workers)

    def stop(self) -> None:
        """End every worker."""
        for worker in self.workers:
            worker.ask_to_end()
        for worker in self.workers:
            worker.end()
            worker.let_go()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices(names: Sequence[str]) -> dict[str, str]:
    """The variables with which a process sees some GPUs alone, also on ROCm."""
    chosen = ",".join(names)
    if os.environ.get(DEVICES[0]) is None and os.environ.get("ROCR_VISIBLE_DEVICES") is not None:
        numbers = ",".join(map(str, range(len(names))))  # it renumbers what it leaves
        return {DEVICES[0]: numbers, DEVICES[1]: numbers, DEVICES[2]: chosen}
    return {DEVICES[0]: chosen, DEVICES[1]: chosen}


@dataclass
class Sweep:
    """The loop that starts workers while cells are open.

    Every worker is told the `request`, with the cells of its group.
    """

    folder: Folder
    cells: Sequence[PlannedCell]
    executor: "LocalExecutor | RayExecutor"
    progress: Progress
    request: WorkerRequest

    def run(self) -> dict[str, CellState]:
        """Compute what nobody else does; what is known of the cells at the end.

        A cell that another machine computes is waited for until its claim has been seen to live.

        Raises:
            SweepError: the disk is full, or workers cannot be started.
        """
        idle_since = None
        try:
            while True:
                running = self.executor.running()
                states = self.folder.states(cell.id for cell in self.cells)
                self.progress.update(states)
                if self._start(states, running):
                    continue
                if running:
                    idle_since = None
                else:
                    idle_since = idle_since or file_system_time(self.folder.path)
                    if not any(_may_be_abandoned(state, idle_since) for state in states.values()):
                        return states
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise SweepError(f"the sweep cannot go on: {error}") from error
        finally:
            self.executor.stop()

    def _start(self, states: Mapping[str, CellState], running: Mapping[str, int]) -> bool:
        """Start the worker that is most needed, where there is room for it.

        A group without a worker goes first; a further worker joins a group while no group waits.
        """
        groups = grouped(self.cells, self.executor.gpus, self.folder.apart())
        wanted = [group for group in groups if self._lacks(group, states, running)]
        waiting = [group for group in wanted if not running.get(group.key)]
        for group in waiting or sorted(wanted, key=lambda each: running[each.key]):
            if self.executor.has_room(group):
                records = [cell.record.written() for cell in group.cells]
                self.executor.start(group, replace(self.request, records=records))
                return True
        return False

    def _lacks(
        self, group: Group, states: Mapping[str, CellState], running: Mapping[str, int]
    ) -> bool:
        """Whether a group has more cells to compute here than workers."""
        of_group = [states[cell.id] for cell in group.cells]
        mine = [s for s in of_group if s.owner and s.owner.get("sweep") == self.request.sweep]
        unclaimed = [state for state in of_group if state.is_open]
        return bool(unclaimed) and len(unclaimed) + len(mine) > running.get(group.key, 0)


def _may_be_abandoned(state: CellState, since: float) -> bool:
    """Whether a cell is open, or its owner has not been seen to live since a time."""
    if state.is_over or state.owner is None:
        return state.is_open
    try:
        return bool(state.owner["claim"].stat().st_mtime < since)
    except FileNotFoundError:
        return False


def elsewhere(states: Mapping[str, CellState]) -> list[Mapping[str, Any]]:
    """The owners of cells that others still compute."""
    return [s.owner for s in states.values() if s.owner is not None and not s.is_over]


def run_sweep(
    config: SweepConfig,
    cells: Sequence[PlannedCell],
    path: Path,
    command: str,
    executor: str = "local",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, CellState]:
    """Compute the cells of a sweep that nobody has computed or computes.

    Args:
        config: of the sweep.
        cells: as planned.
        path: folder of the results.
        command: what the user typed, for the record.
        executor: `local` or `ray`.
        say: takes a line for the user.

    Returns:
        What is known of each cell at the end.

    Raises:
        ConfigError: a model takes more GPUs than there are.
        SweepError: the disk is full, workers cannot be started, or the cluster is gone.
    """
    with contextlib.ExitStack() as stack:
        where: LocalExecutor | RayExecutor
        if executor == "ray":
            from leval_harness.sweep.ray_executor import connected

            where = stack.enter_context(connected())
        else:
            where = LocalExecutor(visible_gpus(), config.jobs)
        check_gpus(grouped(cells, where.gpus), *where.at_a_place)
        folder = Folder.of(path)
        write_sweep(folder, config, cells, command)
        states = folder.states(cell.id for cell in cells)
        done = sum(state.done for state in states.values())
        say(f"{printable(str(path))}: {len(cells)} cells, {done} done, {len(cells) - done} to do")
        request = WorkerRequest(
            folder=str(folder.path),
            began=folder.began,
            sweep=uuid.uuid4().hex[:12],
            command=command,
        )
        states = Sweep(folder, cells, where, Progress(cells, folder), request).run()
        if not elsewhere(states):
            # not the folders themselves: another machine may still look at them
            shutil.rmtree(folder.work / "cache", ignore_errors=True)
        return states
