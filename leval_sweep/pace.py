"""How long cells will take: for their work as long as finished cells of the same model took."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leval_leaderboard.cell_record import DoneRecord, read_record
from leval_leaderboard.layout import DONE
from leval_sweep.cell_files import why_not_done
from leval_sweep.cells import PlannedCell
from leval_sweep.estimate import estimate


class Pace:
    """Work of each cell, and what finished work took.

    Args:
        cells: those that are asked about; where nothing is known of a cell's documents its work is
            the mean of the others'.

    Attributes:
        work: cell id -> tokens of a prompt that cost as much as the cell.
        finished: model -> work and seconds of its finished cells.
    """

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        reckoned = {cell.id: estimate(cell.record).work for cell in cells}
        known = [work for work in reckoned.values() if work]
        mean = sum(known) / len(known) if known else 1.0
        self.work = {ident: work or mean for ident, work in reckoned.items()}
        self.finished: dict[str, tuple[float, float]] = {}

    def add(self, cell: PlannedCell, seconds: float) -> None:
        """Note what a cell took."""
        work, took = self.finished.get(cell.record.model.name, (0.0, 0.0))
        self.finished[cell.record.model.name] = (work + self.work[cell.id], took + seconds)

    def add_finished(self, cells: Iterable[PlannedCell], folder: Path) -> None:
        """Note what cells took that are done in a sweep's folder."""
        for cell in cells:
            done = read_record(DoneRecord, folder / cell.id / DONE)
            if done and done.seconds:
                self.add(cell, done.seconds)

    def seconds(self, cell: PlannedCell) -> float | None:
        """Seconds for a whole cell; None where neither cells nor the config tell a speed."""
        model = cell.record.model.name
        if model not in self.finished and cell.tokens_per_second:
            return self.work[cell.id] / cell.tokens_per_second
        pairs = [self.finished[model]] if model in self.finished else [*self.finished.values()]
        work = sum(pair[0] for pair in pairs)
        return self.work[cell.id] * sum(pair[1] for pair in pairs) / work if work else None

    def remaining(
        self, ahead: Iterable[tuple[PlannedCell, float]], parallel: int = 1
    ) -> float | None:
        """Seconds until cells are done that have run for some seconds; None where it is unknown."""
        left = 0.0
        for cell, ran in ahead:
            whole = self.seconds(cell)
            if whole is None:
                return None
            left += max(0.0, whole - ran)  # one that takes longer is about to end, not ended
        return left / max(1, parallel)


def dry_run(cells: list[PlannedCell], folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows for `--dry-run`, and the sum over what is still to do (None where one is unknown)."""
    done = {cell.id for cell in cells if why_not_done(folder / cell.id, cell.id) is None}
    pace = Pace(cells)
    pace.add_finished((cell for cell in cells if cell.id in done), folder)
    rows = []
    for cell in cells:
        guess, seconds = estimate(cell.record), pace.seconds(cell)
        rows.append(
            {
                "cell_id": cell.id,
                "title": cell.record.title,
                "prompt_tokens": guess.prompt_tokens,
                "new_tokens": guess.new_tokens,
                "seconds": round(seconds) if guess.work and seconds else None,
                "done": cell.id in done,
            }
        )
    to_do = [row for row in rows if not row["done"]]
    total: dict[str, Any] = {"cells": len(rows), "to_do": len(to_do)}
    for key in ("prompt_tokens", "new_tokens", "seconds"):
        values = [row[key] for row in to_do]
        total[key] = None if None in values else sum(values)
    return rows, total
