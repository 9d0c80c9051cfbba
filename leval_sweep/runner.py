"""A whole sweep on one results folder: what is done stays, the rest is run, failures are told."""

import contextlib
import fcntl
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from leval_border.files import read_object, write_json
from leval_leaderboard.layout import CELL, DONE, FAILED, SUPERSEDED
from leval_sweep.cell_files import why_not_done
from leval_sweep.cells import Cell
from leval_sweep.errors import SweepLockedError
from leval_sweep.executors import Executor
from leval_sweep.launch import Outcome
from leval_sweep.progress import Pace, Progress

log = logging.getLogger(__name__)

LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class State:
    """What a results folder holds of a plan before anything runs.

    Attributes:
        finished: cells whose results are there and whole.
        pending: cells to be computed, in order.
        skipped: cells that failed before and are not tried again now.
        notes: sentences for the user about what was found.
    """

    finished: list[Cell]
    pending: list[Cell]
    skipped: list[Cell]
    notes: list[str]


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


def shard_of(cells: list[Cell], shard: tuple[int, int] | None) -> list[Cell]:
    """Every n-th cell for shard (i, n), i from 1: neighbours are alike in cost."""
    return cells if shard is None else cells[shard[0] - 1 :: shard[1]]


def set_aside(folder: Path, plan: list[Cell]) -> int:
    """Hide cells of an earlier config, and take those back that are wanted again.

    Two versions of one row would stand in the table otherwise.

    Returns:
        How many cells were put aside.
    """
    wanted = {cell.id for cell in plan}
    attic = folder / SUPERSEDED
    for ident in wanted:
        if (attic / ident).is_dir() and not (folder / ident).exists():
            (attic / ident).replace(folder / ident)
    moved = 0
    for path in sorted(folder.iterdir()):
        cell = read_object(path / CELL) if path.is_dir() and path.name not in wanted else None
        if cell is None or cell.get("cell_id") != path.name:
            continue
        attic.mkdir(exist_ok=True)
        if (attic / path.name).exists():
            continue
        path.replace(attic / path.name)
        moved += 1
    return moved


def take_stock(folder: Path, cells: list[Cell], retry_failed: bool) -> State:
    """Find out what of a plan is done; finished cells get today's labels."""
    finished, pending, skipped, notes = [], [], [], []
    for cell in cells:
        wrong = why_not_done(folder / cell.id, cell.id)
        if wrong is None:
            _relabel(folder / cell.id, cell)
            finished.append(cell)
        elif (folder / cell.id / DONE).exists():
            notes.append(f"{cell.title}: {wrong}; it is computed again")
            pending.append(cell)
        elif (folder / cell.id / FAILED).exists() and not retry_failed:
            skipped.append(cell)
        else:
            pending.append(cell)
    return State(finished=finished, pending=pending, skipped=skipped, notes=notes)


def _relabel(folder: Path, cell: Cell) -> None:
    """Write names that decide no number (model, method, baseline) as the config has them now."""
    record = read_object(folder / CELL) or {}
    new = json.loads(json.dumps({**record, **cell.record}))
    if new != record:
        write_json(folder / CELL, new)


def known_pace(folder: Path, state: State, work: dict[str, float]) -> Pace:
    """What the cells finished earlier took, and what the config says of the others."""
    speeds = [cell.tokens_per_second for cell in state.pending if cell.tokens_per_second]
    pace = Pace(work=work, expected=len(speeds) / sum(speeds) if speeds else None)
    for cell in state.finished:
        seconds = (read_object(folder / cell.id / DONE) or {}).get("seconds")
        if isinstance(seconds, int | float) and seconds > 0:
            pace.finished.append((work[cell.id], float(seconds)))
    return pace


def run_pending(
    state: State,
    folder: Path,
    command: str,
    executor: Executor,
    progress: Progress,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Compute what is not done yet.

    A full disk ends the sweep: every further cell would be computed for nothing.

    Returns:
        The outcomes of the cells that were run.
    """
    outcomes: list[Outcome] = []
    running = executor.run(state.pending, folder, command, progress)
    try:
        for outcome in running:
            outcomes.append(outcome)
            told(outcome)
            if outcome.kind == "disk":
                break
    finally:
        running.close()  # type: ignore[attr-defined]
        progress.close()
    return outcomes


def old_failure(folder: Path, cell: Cell) -> Outcome:
    """The failure that an earlier run noted for a cell."""
    noted = read_object(folder / cell.id / FAILED) or {}
    tail = noted.get("log_tail")
    return Outcome(
        cell_id=cell.id,
        kind=str(noted.get("kind", "error")),
        reason=str(noted.get("reason", "no reason was noted")),
        log_tail=[str(line) for line in tail] if isinstance(tail, list) else [],
    )
