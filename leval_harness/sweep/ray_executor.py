"""The same workers as tasks of a Ray cluster, each with as many GPUs as its model takes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from leval_harness.sweep import SweepError
from leval_harness.sweep.run import Slots
from leval_harness.sweep.worker import Worker, WorkerRequest


def work(request: WorkerRequest) -> None:
    """Run one worker to its end, with the GPUs that Ray chose."""
    worker = Worker(request, (), {})
    while not worker.has_ended():
        time.sleep(0.5)
    worker.judge()


class RayWorker:
    """A `Worker` on some node of the cluster; `gpus` are as many as it takes, which Ray chooses."""

    def __init__(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.gpus = gpus
        task: Any = ray.remote(max_retries=0)(work)
        self.task = task.options(num_cpus=1, num_gpus=len(gpus)).remote(request)

    def has_ended(self) -> bool:
        """Whether the task is over."""
        return bool(ray.wait([self.task], timeout=0)[0])

    def judge(self) -> None:
        """After its end: say why it could do nothing.

        Raises:
            SweepError: see `Worker.judge`.
        """
        try:
            ray.get(self.task)
        except ray.exceptions.RayTaskError as error:
            raise SweepError(str(error.cause or error)) from error
        except ray.exceptions.RayError:
            pass  # Ray lost the node or the process: the claim is taken over

    def end(self) -> None:
        """End the task, and the worker with it."""
        ray.cancel(self.task, force=True)


def cluster() -> Slots:
    """Join the cluster of `RAY_ADDRESS`, or start one here, until this process ends.

    Raises:
        SweepError: there is no such cluster.
    """
    try:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "WARNING"}
        ray.init(ignore_reinit_error=True, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SweepError(f"Ray: {error}") from error
    alive = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
    gpus = [str(number) for number in range(int(sum(alive)))]
    cores = int(ray.cluster_resources().get("CPU", 0))
    return Slots(RayWorker, gpus, cores, int(max(alive, default=0)))
