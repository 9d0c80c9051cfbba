"""The same workers as tasks of a Ray cluster, each with as many GPUs as its model takes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from leval_harness.sweep import SweepError
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.local_executor import EarlyEnds, KilledEarlyError, LocalWorker
from leval_harness.sweep.worker import WorkerRequest

UNPLACEABLE_SECONDS = 60.0
"""How long no living node may be able to hold a waiting task: a node may be restarting."""


def work(request: WorkerRequest) -> None:
    """Run one worker to its end, on the node and with the GPUs that Ray chose."""
    worker = LocalWorker(request, (), {})
    while not worker.has_ended():
        time.sleep(0.5)
    worker.record_end()


class RayWorker:
    """A worker on some node of the cluster; `gpus` are as many as it takes, which Ray chooses."""

    def __init__(self, task: Any, gpus: Sequence[str]) -> None:
        self.task = task
        self.gpus = gpus
        self.unplaceable_since: float | None = None


class RayExecutor:
    """Runs workers on the cluster of `RAY_ADDRESS`, or on one that is started here.

    Raises:
        SweepError: there is no such cluster.
    """

    def __init__(self, cpu_workers: int) -> None:
        del cpu_workers  # Ray counts the cores of the cluster
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "WARNING"}
        try:
            ray.init(ignore_reinit_error=True, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SweepError(f"Ray: {error}") from error
        per_node = [resources.get("GPU", 0) for resources in living_nodes()]
        names = [str(number) for number in range(int(sum(per_node)))]
        cores = int(ray.cluster_resources().get("CPU", 0))
        self.early_ends = EarlyEnds()
        self.capacity = Capacity(names, cores, int(max(per_node, default=0)))

    def start(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> RayWorker:
        """Start a worker as a Ray task; Ray itself hides the GPUs of others from it."""
        del environment
        remote: Any = ray.remote(max_retries=0)(work)  # a sweep has its own retries
        task = remote.options(num_cpus=1, num_gpus=len(gpus)).remote(request)
        return RayWorker(task, gpus)

    def poll(self, worker: RayWorker) -> bool:
        """Return whether a task has ended, see `Executor.poll`.

        Raises:
            SweepError: the worker could do nothing, or no living node has enough GPUs for it.
        """
        ready, _ = ray.wait([worker.task], timeout=0)
        if not ready:
            self._refuse_unplaceable(worker)
            return False
        try:
            ray.get(worker.task)
            self.early_ends.note(None)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, KilledEarlyError):
                raise SweepError(str(error.cause or error)) from error
            self.early_ends.note(error.cause)
        except ray.exceptions.RayError:
            pass  # Ray lost the node or the process: another worker takes the claim over
        return True

    def stop(self, worker: RayWorker) -> None:
        """Cancel a task, and the worker with it."""
        ray.cancel(worker.task, force=True)

    def _refuse_unplaceable(self, worker: RayWorker) -> None:
        """End the sweep if no living node could ever run a task: Ray itself would wait for ever."""
        needed = len(worker.gpus)
        with_cores = [node.get("GPU", 0) for node in living_nodes() if node.get("CPU", 0) >= 1]
        if any(gpus >= needed for gpus in with_cores):
            worker.unplaceable_since = None
            return
        now = time.monotonic()
        worker.unplaceable_since = worker.unplaceable_since or now
        if now - worker.unplaceable_since > UNPLACEABLE_SECONDS:
            largest = max(with_cores, default=0)
            raise SweepError(
                f"Ray: a worker needs 1 core and {needed} GPUs on one node, and of the living nodes "
                f"with a core the largest has {largest:g} GPUs; start a node with enough GPUs and "
                "run the same command again"
            )


def living_nodes() -> list[dict[str, float]]:
    """Return the resources of each node of the cluster that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
