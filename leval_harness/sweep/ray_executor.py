"""The same workers as tasks of a Ray cluster, each with as many GPUs as its model takes."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leval_harness.sweep import ConfigError, SweepError
from leval_harness.sweep.run import Group
from leval_harness.sweep.workers import Worker, WorkerRequest
from resonance_vllm.errors import needs_extra


def work(request: WorkerRequest, group: str) -> None:
    """Run one worker to its end: what a Ray task does."""
    worker = Worker.start(request, group)
    while not worker.has_ended():
        time.sleep(0.5)
    worker.judge()


@contextlib.contextmanager
def connected() -> "Iterator[RayExecutor]":
    """Join the cluster of `RAY_ADDRESS`, or start one here.

    Raises:
        ConfigError: Ray is not installed.
        SweepError: there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--executor ray needs Ray: {needs_extra('ray')}") from error
    joined = ray.is_initialized()  # by a caller in Python, whose cluster stays
    try:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "WARNING"}
        ray.init(ignore_reinit_error=True, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SweepError(f"Ray: {error}") from error
    try:
        yield RayExecutor(ray)
    finally:
        if not joined:
            ray.shutdown()


@dataclass
class RayExecutor:
    """Workers as Ray tasks, with the methods of `LocalExecutor`; Ray says when one has room.

    Attributes:
        ray: the module.
        tasks: reference -> key of the group.
    """

    ray: Any
    tasks: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alive = [node["Resources"].get("GPU", 0) for node in self.ray.nodes() if node["Alive"]]
        self.gpus = [str(number) for number in range(int(sum(alive)))]
        self.at_a_place = int(max(alive, default=0)), "are on one node of the Ray cluster"

    def has_room(self, group: Group) -> bool:
        """Whether a further worker may be submitted: one a GPU of the cluster, or a core."""
        slots = self.ray.cluster_resources().get("GPU" if group.gpus else "CPU", 0)
        return bool(len(self.tasks) < slots)

    def start(self, group: Group, request: WorkerRequest) -> None:
        """Submit a worker."""
        task: Any = self.ray.remote(max_retries=0)(work)
        options = {"num_cpus": 1, "num_gpus": group.gpus}
        self.tasks[task.options(**options).remote(request, group.key)] = group.key

    def running(self) -> Mapping[str, int]:
        """Key of a group -> how many workers it has.

        Raises:
            SweepError: a worker could do nothing.
        """
        references = [*self.tasks]
        for reference in (
            references and self.ray.wait(references, num_returns=len(references), timeout=0)[0]
        ):
            del self.tasks[reference]
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                raise SweepError(str(error.cause or error)) from error
            except self.ray.exceptions.RayError:
                pass  # Ray lost the node or the process: the claim is taken over
        return Counter(self.tasks.values())

    def stop(self) -> None:
        """End every worker."""
        for reference in self.tasks:
            self.ray.cancel(reference, force=True)
