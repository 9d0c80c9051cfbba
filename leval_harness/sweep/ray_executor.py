"""The same workers as tasks of a Ray cluster, each with as many GPUs as its model takes."""

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leval_harness.sweep import ConfigError, SweepError
from leval_harness.sweep.run import Group, _counted
from leval_harness.sweep.workers import Worker, WorkerRequest
from resonance_vllm.errors import needs_extra

_KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def work(request: WorkerRequest, group: str) -> None:
    """Run one worker to its end: what a Ray task does."""
    states = request.place.states(request.cells).values()
    if not any(state.is_open for state in states):
        return  # others were quicker
    worker = Worker.start(request, group, (), {})
    while not worker.has_ended():
        time.sleep(0.5)
    worker.judge()


@dataclass
class RayExecutor:
    """Workers as Ray tasks.

    Attributes:
        ray: the module.
        tasks: reference -> key of the group.
    """

    ray: Any
    tasks: dict[Any, Group] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def connected(cls, address: str | None) -> "Iterator[RayExecutor]":
        """Join the cluster of an address or of the environment, or start one here.

        Raises:
            ConfigError: Ray is not installed.
            SweepError: there is no such cluster.
        """
        try:
            import ray
        except ImportError as error:
            raise ConfigError(f"--executor ray needs Ray: {needs_extra('ray')}") from error
        handlers = {each: signal.getsignal(each) for each in _KEPT_SIGNALS}
        joined = ray.is_initialized()
        try:
            if not joined:
                quiet = {"include_dashboard": False, "log_to_driver": False}
                ray.init(address=address, logging_level="WARNING", **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SweepError(f"Ray: {error}") from error
        for number, handler in handlers.items():  # Ray replaces them
            signal.signal(number, handler)
        try:
            yield cls(ray)
        finally:
            if not joined:
                ray.shutdown()

    @property
    def gpus(self) -> list[str]:
        """One name for each GPU of the cluster."""
        return [str(n) for n in range(int(self.ray.cluster_resources().get("GPU", 0)))]

    @property
    def most_gpus(self) -> int:
        """GPUs of the node that has most of them."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return int(max((node.get("GPU", 0) for node in nodes), default=0))

    def has_room(self, group: Group) -> bool:
        """Whether the cluster has as many GPUs, or cores, as its workers take with this one."""
        there = self.ray.cluster_resources()
        groups = [*self.tasks.values(), group]
        gpus = sum(each.gpus for each in groups)
        return bool(gpus <= there.get("GPU", 0) and len(groups) <= there.get("CPU", 0))

    def start(self, group: Group, request: WorkerRequest) -> None:
        """Submit a worker."""
        task: Any = self.ray.remote(max_retries=0)(work)
        options = {"num_cpus": 1, "num_gpus": group.gpus}
        self.tasks[task.options(**options).remote(request, group.key)] = group

    def running(self) -> Mapping[str, int]:
        """Key of a group -> how many workers it has.

        Raises:
            SweepError: a worker could do nothing, or no node of the cluster is left.
        """
        if not any(node["Alive"] for node in self.ray.nodes()):
            raise SweepError("no node of the Ray cluster is alive any more")
        ended, _ = (
            self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=0)
            if (self.tasks)
            else ([], [])
        )
        for reference in ended:
            del self.tasks[reference]
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                raise SweepError(str(error.cause or error)) from error
            except self.ray.exceptions.RayError:
                continue  # Ray lost the node or the process: the claim is taken over
        return _counted(group.key for group in self.tasks.values())

    def stop(self) -> None:
        """End every worker."""
        for reference in self.tasks:
            self.ray.cancel(reference, force=True)
