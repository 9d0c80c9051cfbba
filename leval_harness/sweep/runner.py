"""A whole sweep on one results folder: finished cells stay, the others are computed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from leval_harness.cell_record import CellRecord, FailedRecord, read_record
from leval_harness.layout import CELL, DONE, FAILED, SUPERSEDED
from leval_harness.locks import LockedError, is_locked, lock
from leval_harness.sweep import SweepLockedError
from leval_harness.sweep.cell_files import relabel, why_not_done
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.executors import Executor
from leval_harness.sweep.identity import differences, first_few
from leval_harness.sweep.launch import CellOutcome
from leval_harness.sweep.progress import Progress
from resonance_vllm.files import read_object

LOCK = ".lock"
TURN_SECONDS = 3600.0
Shard = tuple[int, int]
"""Number of a shard, from 1, and how many there are."""


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
        """All cells of the plan."""
        return [*self.finished, *self.pending, *self.skipped]


@contextlib.contextmanager
def sweep_lock(folder: Path, shard: Shard | None = None) -> Iterator[None]:
    """Hold a sweep's folder: alone, or one of its shards beside the other shards.

    Raises:
        SweepLockedError: another sweep works on this folder or shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock(folder / LOCK, shared=shard is not None))
            if shard is not None:
                # another shard may hold it for a moment, to see whether it is held
                stack.enter_context(lock(_shard_lock(folder, shard), patience=1.0))
        except LockedError as error:
            raise SweepLockedError(
                f"another sweep works on {folder} ({error}); wait for it, end it, or choose "
                "another --out"
            ) from None
        yield


def _shard_lock(folder: Path, shard: Shard) -> Path:
    return folder / f"{LOCK}-{shard[0]}-of-{shard[1]}"


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """For what shards do one after the other: taking stock, and writing tables and page."""
    with lock(folder / f"{LOCK}-turn", patience=TURN_SECONDS):
        yield


def shard_of(cells: list[PlannedCell], shard: Shard | None) -> list[PlannedCell]:
    """The cells of a shard: every n-th one, since neighbours cost about the same."""
    return cells if shard is None else cells[shard[0] - 1 :: shard[1]]


def take_stock(
    folder: Path, plan: list[PlannedCell], retry_failed: bool = True, shard: Shard | None = None
) -> Stock:
    """Find out what of a plan, or of one shard of it, is done.

    Finished cells get the labels of the plan. Cells in the folder that the plan lacks are moved
    aside, unless another shard works there, whose config may be another one.
    """
    stock = Stock()
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(folder):
        bring_back(folder, plan)
        others = set(folder.glob(f"{LOCK}-*-of-*")) - {_shard_lock(folder, shard or (0, 0))}
        alone = shard is None or not any(map(is_locked, others))
        if alone and (moved := set_aside(folder, plan)):
            places = first_few(
                list(dict.fromkeys(place for each in moved for place in each.differs))
            )
            stock.notes.append(
                f"{len(moved)} cells of an earlier config moved to {folder / SUPERSEDED}; they "
                f"differ in {places}"
            )
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


def bring_back(folder: Path, plan: list[PlannedCell]) -> None:
    """Move the cells of a plan that were set aside back to the sweep's folder."""
    for cell in plan:
        if (folder / SUPERSEDED / cell.id).is_dir() and not (folder / cell.id).exists():
            (folder / SUPERSEDED / cell.id).replace(folder / cell.id)


class EarlierCell(NamedTuple):
    """A cell of an earlier config.

    Attributes:
        folder: of the cell; its name is the id.
        title: what messages call it.
        differs: place in the identity -> old and new value, against the planned cell that is most
            like it.
    """

    folder: Path
    title: str
    differs: dict[str, tuple[str, str]]


def earlier_cells(folder: Path, plan: list[PlannedCell]) -> list[EarlierCell]:
    """The cells in a sweep's folder that a plan lacks, and what sets each apart from the plan."""
    wanted, found = {cell.id for cell in plan}, []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        is_cell = (read_object(path / CELL) or {}).get("cell_id") == path.name
        if not is_cell or path.name in wanted or (folder / SUPERSEDED / path.name).exists():
            continue
        record = read_record(CellRecord, path / CELL)
        if record is None:
            found.append(EarlierCell(path, path.name, {}))
            continue
        compared = [(differences(record.identity, c.record.identity), c) for c in plan]
        same_title = {c.id for c in plan if c.record.title == record.title}
        differs, _ = min(compared, key=lambda each: (len(each[0]), each[1].id not in same_title))
        found.append(EarlierCell(path, record.title, differs))
    return found


def set_aside(folder: Path, plan: list[PlannedCell]) -> list[EarlierCell]:
    """Move cells that a plan lacks to `SUPERSEDED` and return them.

    Tables would show two versions of one row otherwise.
    """
    moved = earlier_cells(folder, plan)
    for cell in moved:
        (folder / SUPERSEDED).mkdir(exist_ok=True)
        cell.folder.replace(folder / SUPERSEDED / cell.folder.name)
    return moved


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
