"""A whole sweep on one results folder: what is done stays, the rest is run, failures are told."""

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from leval_border.files import read_object
from leval_leaderboard.cell_record import FailedRecord, read_record
from leval_leaderboard.layout import CELL, DONE, FAILED, SUPERSEDED
from leval_sweep.cell_files import relabel, why_not_done
from leval_sweep.cells import PlannedCell
from leval_sweep.errors import SweepLockedError
from leval_sweep.estimate import Pace
from leval_sweep.executors import Executor
from leval_sweep.launch import CellOutcome
from leval_sweep.progress import Progress

LOCK = ".lock"


@dataclass(frozen=True)
class Stock:
    """What a results folder holds of a plan before anything runs.

    Attributes:
        finished: cells whose results are there and whole.
        pending: cells to be computed, in order.
        skipped: cells that failed before and are not tried again now.
        notes: sentences for the user.
    """

    finished: list[PlannedCell] = field(default_factory=list)
    pending: list[PlannedCell] = field(default_factory=list)
    skipped: list[PlannedCell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[PlannedCell]:
        """All of them."""
        return [*self.finished, *self.pending, *self.skipped]

    def pace(self, folder: Path) -> Pace:
        """What the finished cells took, to reckon with for the pending ones."""
        return Pace([*self.finished, *self.pending], folder)


@contextlib.contextmanager
def sweep_lock(folder: Path, shard: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold a sweep's folder: alone, or one of its shards beside the other shards.

    The kernel releases the lock with the process, however that ends.

    Raises:
        SweepLockedError: another sweep works on this folder or shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        whole = fcntl.LOCK_EX if shard is None else fcntl.LOCK_SH
        _lock(held, folder / LOCK, whole)
        if shard is not None:
            _lock(held, folder / f"{LOCK}-{shard[0]}-of-{shard[1]}", fcntl.LOCK_EX)
        yield


def _lock(held: contextlib.ExitStack, path: Path, mode: int) -> None:
    handle = held.enter_context(path.open("a+"))
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        who = handle.read().strip()
        raise SweepLockedError(
            f"another sweep works on {path.parent}{f' ({who})' if who else ''}; wait for it, end "
            "it, or choose another --out"
        ) from None
    if mode == fcntl.LOCK_EX:
        # only a hint for whoever is refused: on a full disk the lock holds without it
        with contextlib.suppress(OSError):
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {platform.node()}")
            handle.flush()


def shard_of(cells: list[PlannedCell], shard: tuple[int, int] | None) -> list[PlannedCell]:
    """Every n-th cell for shard (i, n), i from 1: neighbours are alike in cost."""
    return cells if shard is None else cells[shard[0] - 1 :: shard[1]]


def set_aside(folder: Path, plan: list[PlannedCell]) -> int:
    """Hide cells of an earlier config, take back those that are wanted again; how many went.

    Two versions of one row would stand in the table otherwise.
    """
    wanted = {cell.id for cell in plan}
    attic = folder / SUPERSEDED
    for ident in wanted:
        if (attic / ident).is_dir() and not (folder / ident).exists():
            (attic / ident).replace(folder / ident)
    moved = 0
    for path in sorted(folder.iterdir()):
        is_cell = (read_object(path / CELL) or {}).get("cell_id") == path.name
        if is_cell and path.name not in wanted and not (attic / path.name).exists():
            attic.mkdir(exist_ok=True)
            path.replace(attic / path.name)
            moved += 1
    return moved


def take_stock(
    folder: Path,
    plan: list[PlannedCell],
    retry_failed: bool = True,
    shard: tuple[int, int] | None = None,
) -> Stock:
    """Find out what of a plan, or of one shard of it, is done.

    Finished cells get today's labels; cells in the folder that the plan lacks are set aside.
    """
    stock = Stock()
    if moved := set_aside(folder, plan):
        attic = folder / SUPERSEDED
        stock.notes.append(f"{moved} cells of an earlier config put aside in {attic}")
    for cell in shard_of(plan, shard):
        wrong = why_not_done(folder / cell.id, cell.id)
        if wrong is None:
            relabel(folder / cell.id, cell.record)
            stock.finished.append(cell)
        elif (folder / cell.id / DONE).exists():
            stock.notes.append(f"{cell.record.title}: {wrong}; it is computed again")
            stock.pending.append(cell)
        elif (folder / cell.id / FAILED).exists() and not retry_failed:
            stock.skipped.append(cell)
        else:
            stock.pending.append(cell)
    return stock


def run_pending(
    stock: Stock, folder: Path, command: str, executor: Executor, progress: Progress
) -> list[CellOutcome]:
    """Compute what is not done yet; a full disk ends the sweep, as all further work is lost."""
    outcomes = []
    with contextlib.closing(executor.run(stock.pending, folder, command, progress)) as running:
        for outcome in running:
            outcomes.append(outcome)
            if outcome.kind == "disk":
                break
    return outcomes


def old_failure(folder: Path, cell: PlannedCell) -> CellOutcome:
    """The failure that an earlier run noted for a cell."""
    noted = read_record(FailedRecord, folder / cell.id / FAILED) or FailedRecord()
    return CellOutcome(
        cell_id=cell.id, kind=noted.kind, reason=noted.reason, log_tail=list(noted.log_tail)
    )
