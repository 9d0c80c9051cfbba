"""How well a sweep fills eight GPUs: the real scheduler and claims, with a clock that is simulated.

    python benchmarks/bench_schedule.py

Workers are `leval_harness.sweep.run.Sweep`'s, and claim runs and parts of runs as they do, in a
temporary folder. Only what takes hours is replaced by its duration: loading a model, making the
requests of a run, computing a document. The columns are the hours of a sweep whose groups start in
the order of the config and whose runs are not divided; of one that starts the longest first; of one
that also divides runs by documents, as the product does; the least that is possible; and the share
of GPU time in which documents are computed, in the last of the three.
"""

import heapq
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from leval_harness.sweep.claims import Folder
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.groups import grouped
from leval_harness.sweep.parts_of_run import PartsOfOthersError, PartsOfRun
from leval_harness.sweep.run import Sweep
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.worker import ClaimedRuns, WorkerRequest

GPUS = [str(number) for number in range(8)]
LOAD_HOURS = 45 / 3600
"""To start a process and load an 8B model from a page cache."""
REQUESTS_HOURS = 15 / 3600
"""To swap the rotation and tokenize the documents of a run."""


class Run(NamedTuple):
    """A run of a simulated sweep.

    Attributes:
        model: runs of the same model share an instance.
        documents: number of its documents, each a part.
        hours: of one worker for all documents.
        gpus: that a worker takes.
    """

    model: str
    documents: int
    hours: float
    gpus: int = 1


CASES: Mapping[str, Sequence[Run]] = {
    "one model, one method, 8 documents": [Run("8B", 8, 1.52)],
    "nine methods and the reference at 128K, 8 documents": [Run("8B", 8, 1.52)] * 10,
    "eight methods at 16K, 32K, 64K, 128K": [
        Run("8B", 8, hours) for _ in range(8) for hours in (0.1, 0.2, 0.4, 0.8)
    ],
    "thirty models of one GPU each, then one model of four GPUs": [
        *(Run(f"small {number}", 8, 1.9) for number in range(30)),
        Run("70B", 8, 16.3, gpus=4),
    ],
    "thirty short runs and one long": [*[Run("8B", 8, 0.1)] * 30, Run("8B", 32, 4.0)],
}


@dataclass
class Clock:
    """The simulated time in hours, and what happens next."""

    hours: float = 0.0
    coming: list[tuple[float, int, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def after(self, hours: float, worker: "SimulatedWorker") -> None:
        """Let a worker go on after so many hours."""
        heapq.heappush(self.coming, (self.hours + hours, next(self.numbers), worker))

    def sleep(self, _: float) -> None:
        """Advance to the next event, and let its worker go on to the one after."""
        self.hours, _, worker = heapq.heappop(self.coming)
        worker.go_on()


class SimulatedWorker:
    """A worker that claims as real ones do, and computes by letting time pass."""

    def __init__(
        self, simulation: "Simulation", request: WorkerRequest, gpus: Sequence[str]
    ) -> None:
        self.simulation = simulation
        self.gpus = gpus
        self.has_ended = False
        log = Path(request.folder) / f"{next(simulation.clock.numbers)}.log"
        log.touch()
        self.claimed = ClaimedRuns(replace(request, log=str(log)))
        self.steps = self.work()

    def go_on(self) -> None:
        """Do what comes next, until time has to pass for it."""
        hours = next(self.steps, None)
        if hours is None:
            self.has_ended = True
            return
        self.simulation.clock.after(hours, self)

    def work(self) -> Iterator[float]:
        """Yield the hours that each step takes."""
        is_loaded = False
        for run in self.claimed:
            if not is_loaded:
                yield LOAD_HOURS
                is_loaded = True
            yield REQUESTS_HOURS
            yield from self.compute(run)

    def compute(self, record: RunRecord) -> Iterator[float]:
        """Yield the hours of each part that this worker takes of a run."""
        run = self.simulation.runs[record.run_id]
        heartbeat = self.claimed.heartbeat
        assert heartbeat.claim is not None
        attempt = heartbeat.claim.attempt
        number = run.documents if self.simulation.divides else 1
        parts = PartsOfRun(heartbeat, number, attempt)
        try:
            for part in parts:
                yield run.hours / number
                self.simulation.busy += run.gpus * run.hours / number
                parts.finish(part, {})
        except PartsOfOthersError:
            return
        folder = self.claimed.folder.work / attempt
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(record.written()))
        self.claimed.folder.publish(record.run_id, folder)


class Quiet:
    """Shows no progress."""

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, states: Any) -> None:
        """Take the states of the runs."""


class Simulation:
    """A sweep on eight GPUs; also the executor of its workers.

    Args:
        runs: in the order of the config.
        divides: whether runs are divided by documents.
        is_ordered: whether groups and runs start by their work, not in the order of the config.
    """

    def __init__(self, runs: Sequence[Run], divides: bool = True, is_ordered: bool = True) -> None:
        self.capacity = Capacity(GPUS, 1, len(GPUS))
        self.clock = Clock()
        self.runs = {f"{number:016x}": run for number, run in enumerate(runs)}
        self.divides = divides
        self.is_ordered = is_ordered
        self.busy = 0.0

    def hours(self) -> float:
        """Return how long the sweep takes."""
        records = [
            RunRecord(
                schema_version=1,
                run_id=name,
                model={"name": run.model},
                method={"name": "rope"},
                tasks=("task",),
                group=run.model,
                gpus=run.gpus,
            )
            for name, run in self.runs.items()
        ]
        work = {name: run.hours if self.is_ordered else 1.0 for name, run in self.runs.items()}
        groups = grouped(records, GPUS, work)
        if not self.is_ordered:
            groups.sort(key=lambda group: group.runs[0].run_id)
        expected = {}
        if self.divides:
            expected = {name: run.documents for name, run in self.runs.items()}
        with tempfile.TemporaryDirectory() as where:
            request = WorkerRequest(
                folder=where, sweep="s", command="", work=work, expected_parts=expected
            )
            folder = Folder(Path(where))
            sweep = Sweep(folder, groups, self, request, Quiet(), sleep=self.clock.sleep)
            states = sweep.run()
        assert all(state.done for state in states.values())
        return self.clock.hours

    # The protocol of executors.

    def start(
        self, request: WorkerRequest, gpus: Sequence[str], environment: Mapping[str, str]
    ) -> SimulatedWorker:
        """Start a simulated worker."""
        worker = SimulatedWorker(self, request, gpus)
        self.clock.after(0.0, worker)
        return worker

    def poll(self, worker: SimulatedWorker) -> bool:
        """Return whether a worker has ended."""
        return worker.has_ended

    def stop(self, worker: SimulatedWorker) -> None:
        """Nothing is left running by a simulated worker."""


def bound(runs: Sequence[Run]) -> float:
    """Return the hours below which no order of the documents can come."""
    by_gpus = sum(run.hours * run.gpus for run in runs) / len(GPUS)
    by_document = max(run.hours / run.documents for run in runs)
    return max(by_gpus, by_document)


class Row(NamedTuple):
    """What came out for a case: hours, and the share of busy GPU time where runs are divided."""

    case: str
    in_config_order: float
    longest_first: float
    divided: float
    bound: float
    busy: float


def measure(case: str) -> Row:
    """Return the row of a case."""
    runs = CASES[case]
    divided = Simulation(runs)
    hours = divided.hours()
    return Row(
        case,
        Simulation(runs, divides=False, is_ordered=False).hours(),
        Simulation(runs, divides=False).hours(),
        hours,
        bound(runs),
        divided.busy / (hours * len(GPUS)),
    )


def main() -> None:
    """Print the table."""
    print("| eight GPUs | config's order | longest first | divided | bound | busy |")
    print("|---|--:|--:|--:|--:|--:|")
    for case in CASES:
        row = measure(case)
        hours = (row.in_config_order, row.longest_first, row.divided, row.bound)
        print(f"| {case} | " + " | ".join(f"{one:.2f} h" for one in hours) + f" | {row.busy:.0%} |")


if __name__ == "__main__":
    main()
