"""The protocol by which a sweep starts workers, and the executors that implement it.

A new executor is a class with the constructor `(cpu_workers)`, the attribute and the three methods
of `Executor`, and an entry in `EXECUTORS`. What `start` returns is hashable and has the attribute
`gpus` (`RunningWorker`). The loop that decides which worker starts when (`run.Sweep`) knows nothing
else of it.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from leval_harness.sweep.gpus import visible_gpus
from resonance_vllm.common.errors import check_choice

if TYPE_CHECKING:
    from leval_harness.sweep.worker import WorkerRequest

EXECUTORS = {
    "local": "leval_harness.sweep.local_executor:LocalExecutor",
    "ray": "leval_harness.sweep.ray_executor:RayExecutor",
}
"""Name on the command line -> `module:class`, imported on use: Ray is an optional dependency."""


class Capacity(NamedTuple):
    """What an executor can run side by side.

    Attributes:
        gpus: names of all GPUs; each belongs to one worker at a time.
        cpu_workers: workers without a GPU that may run at a time.
        gpus_per_machine: the most GPUs of one machine, which is the most that a worker can have.
    """

    gpus: Sequence[str]
    cpu_workers: int
    gpus_per_machine: int


class RunningWorker(Protocol):
    """A worker that has been started; executors know more of it."""

    gpus: Sequence[str]


class Executor(Protocol):
    """Starts worker processes, says when one has ended, and stops one."""

    capacity: Capacity

    def start(
        self, request: "WorkerRequest", gpus: Sequence[str], environment: Mapping[str, str]
    ) -> Any:
        """Start a worker and return its handle, a hashable `RunningWorker`.

        Args:
            request: what the worker is to do.
            gpus: names of the GPUs that it may use, as many as its model needs.
            environment: variables to set for it, among them those that hide other GPUs.

        Raises:
            OSError: the worker cannot be started.
        """

    def poll(self, worker: Any) -> bool:
        """Return whether a worker has ended; if so, record how and free what it held.

        Raises:
            SweepError: no worker can do anything here, so that the sweep has to end.
        """

    def stop(self, worker: Any) -> None:
        """Stop a worker and all that it has started, and free the run that it had claimed."""


def create_executor(name: str, cpu_workers: int) -> Executor:
    """Return the executor of a name.

    Args:
        name: a key of `EXECUTORS`.
        cpu_workers: how many workers without a GPU may run at a time, where the executor does not
            know better.

    Raises:
        SettingError: there is no executor of this name.
        SweepError: its cluster cannot be reached.
    """
    module, _, attribute = EXECUTORS[check_choice("executor", name, EXECUTORS)].partition(":")
    executor: Executor = getattr(import_module(module), attribute)(cpu_workers)
    return executor


def capacity_here(name: str, cpu_workers: int) -> Capacity:
    """Return what an executor can run as far as this machine knows, without starting anything.

    Args:
        name: a key of `EXECUTORS`; of a cluster the size is not known.
        cpu_workers: as of `create_executor`.
    """
    gpus = visible_gpus()
    largest = len(gpus) if name == "local" else sys.maxsize
    return Capacity(gpus, cpu_workers, largest)
