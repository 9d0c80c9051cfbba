"""Run cells: a few at a time on this machine, or as tasks of a Ray cluster.

An executor takes cells and a display, and yields outcomes. Both compute a cell by `run_cell`.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_harness.layout import LOG
from leval_harness.sweep import ConfigError, SweepError
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.launch import POLL_SECONDS, CellOutcome, run_cell
from leval_harness.sweep.progress import Progress
from leval_harness.sweep.supervisor import descendants_die_with_us
from resonance_vllm.errors import needs_extra

RAY_RETRIES = 3
RAY_POLL_SECONDS = 1.0
RAY_LAST_CLUSTER = "ray/ray_current_cluster"
"""File that names the last cluster, in Ray's folder of temporary files."""
_KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalExecutor:
    """Runs cells on this machine in order, at most `jobs` at a time, which share its cores."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self.environment: dict[str, str] = {}
        if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            self.environment["OMP_NUM_THREADS"] = str(max(1, available_cores() // jobs))

    def run(
        self, cells: list[PlannedCell], folder: Path, command: str, progress: Progress
    ) -> Generator[CellOutcome]:
        """Compute the cells; when the caller stops, those that run are ended."""
        waiting = deque(cells)
        running: dict[Future[CellOutcome], PlannedCell] = {}
        stopped = threading.Event()

        def end_if_stopped() -> None:
            if stopped.is_set():
                raise KeyboardInterrupt

        pool = ThreadPoolExecutor(self.jobs)
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    cell = waiting.popleft()
                    progress.start(cell)
                    request = (cell, folder / cell.id, command, end_if_stopped, self.environment)
                    running[pool.submit(run_cell, *request)] = cell
                ended, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                progress.tick()
                for future in ended:
                    progress.end(running.pop(future), future.result())
                    yield future.result()
        finally:
            stopped.set()
            pool.shutdown()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class RayExecutor:
    """Runs cells as Ray tasks with the `resources` of their models; Ray repeats lost ones.

    Without `address` the cluster of the environment is used, or a new one is started here.
    """

    address: str | None = None

    def run(
        self, cells: list[PlannedCell], folder: Path, command: str, progress: Progress
    ) -> Generator[CellOutcome]:
        """Submit every cell and yield outcomes as they arrive.

        A cell that Ray gives up is a failed cell; the others go on.

        Raises:
            SweepError: no node of the cluster can hold one of the cells, or no node is left.
        """
        try:
            import ray
        except ImportError as error:
            message = f"--executor ray needs Ray: {needs_extra('ray')}"
            raise ConfigError(message) from error
        with contextlib.ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(descendants_die_with_us())
                _connect(ray, self.address)
                stack.callback(ray.shutdown)
            try:
                yield from _run_on_ray(ray, cells, folder, command, progress)
            except ray.exceptions.RayError as error:
                raise SweepError(what_ray_lost(ray, error)) from error


def _run_on_ray(
    ray: Any, cells: list[PlannedCell], folder: Path, command: str, progress: Progress
) -> Generator[CellOutcome]:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for cell in cells:
        _check_resources(cell, nodes)
    task: Any = ray.remote(max_retries=RAY_RETRIES)(run_cell)
    pending = {
        task.options(**ray_options(cell)).remote(cell, folder.resolve() / cell.id, command): cell
        for cell in cells
    }
    try:
        while pending:
            ready, _ = ray.wait(list(pending), timeout=RAY_POLL_SECONDS)
            for reference, cell in pending.items():
                begun = reference in ready or _has_begun(folder / cell.id, progress)
                if begun and cell.id not in progress.running:
                    progress.start(cell)
            progress.tick()
            if not ready and not any(node["Alive"] for node in ray.nodes()):
                raise SweepError(  # Ray would wait for a node without end
                    "no node of the Ray cluster is alive any more: its raylet was killed, or "
                    "died; what is done is kept, and the same command resumes"
                )
            for reference in ready:
                cell = pending.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    reason = what_ray_lost(ray, error)
                    outcome = CellOutcome(cell_id=cell.id, kind="killed", reason=reason)
                progress.end(cell, outcome)
                yield outcome
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


Executor = LocalExecutor | RayExecutor


def _connect(ray: Any, address: str | None) -> None:
    """Join or start a cluster and put back the signal handlers that Ray replaces."""
    handlers = {each: signal.getsignal(each) for each in _KEPT_SIGNALS}
    where = address or default_address()
    ray.init(address=where, include_dashboard=False, log_to_driver=False, logging_level="WARNING")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def default_address() -> str | None:
    """None, with which Ray searches for a cluster, or `local` if the one it would find is gone.

    Ray joins the cluster that was last started on this machine. The file that names it outlives a
    cluster that was killed, and Ray would wait for that one.
    """
    if os.environ.get("RAY_ADDRESS"):
        return None
    try:
        last = (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / RAY_LAST_CLUSTER).read_text()
    except OSError:
        return None
    host, _, port = last.strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return None
    except (OSError, ValueError):
        return "local"


def what_ray_lost(ray: Any, error: Exception) -> str:
    """Why Ray gave a cell up: it lost the worker, or the raylet of the worker's machine."""
    why = str(error).strip().partition("\n")[0] or type(error).__name__
    lost = ray.exceptions
    if isinstance(error, lost.WorkerCrashedError):
        return f"Ray lost its worker {RAY_RETRIES + 1} times: {why}"
    if isinstance(error, (lost.LocalRayletDiedError, lost.NodeDiedError, lost.RaySystemError)):
        return f"Ray's own process on the cell's machine (the raylet) died: {why}"
    return f"Ray gave it up: {why}"


def _has_begun(folder: Path, progress: Progress) -> bool:
    """Whether a worker has begun a cell: its log is newer than the sweep."""
    log = folder / LOG
    return log.exists() and log.stat().st_mtime > max(time.time() - 60, progress.began)


def ray_options(cell: PlannedCell) -> dict[str, Any]:
    """Ray's task options from the `resources` of a cell's model.

    `num_cpus` (default 1), `num_gpus` and `memory` (bytes) are Ray's own; every other name is a
    custom resource of the cluster.
    """
    known = ("num_cpus", "num_gpus", "memory")
    options: dict[str, Any] = {"num_cpus": 1}
    options |= {key: value for key, value in cell.resources.items() if key in known}
    custom = {key: value for key, value in cell.resources.items() if key not in known}
    return {**options, "resources": custom} if custom else options


def _check_resources(cell: PlannedCell, nodes: list[dict[str, float]]) -> None:
    """Refuse a cell that no node can hold, for which Ray would wait without end."""
    options = ray_options(cell)
    wanted = {
        **options.get("resources", {}),
        "CPU": options["num_cpus"],
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
    }
    if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes):
        needs = ", ".join(f"{key} {value:g}" for key, value in wanted.items() if value)
        raise SweepError(
            f"no node of the Ray cluster has {needs}, which '{cell.record.title}' needs; "
            "change resources of its model, or add a node"
        )
