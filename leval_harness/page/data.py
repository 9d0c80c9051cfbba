"""The table model as plain JSON for the page's script; keys are short, there are thousands."""

import json
import math
from typing import Any

from leval_harness.analysis import Analysis
from leval_harness.analysis.labels import task_label
from leval_harness.analysis.reach import Point, ReachLine, reach_gaps, reach_lines, reach_text
from leval_harness.analysis.retrieval import Retrieval
from leval_harness.layout import LOG
from leval_harness.results import Run
from leval_harness.results.metrics import is_of_nats
from leval_harness.results.needles import DEPTHS
from leval_harness.tables import leaderboard_table
from leval_harness.tables.formats import plain
from leval_harness.tables.model import Block, Cell, Row, Table
from leval_tasks.closed.catalog import chance_note
from leval_tasks.statistics.paired import ASSUMED, Difference
from leval_tasks.statistics.reach import THRESHOLD

MOST_BASELINES = 16
"""Comparisons with every method as baseline grow with its square; beyond this only the default."""


def script(name: str, value: object) -> str:
    """A script file that hands `value` to the page; harmless in whatever it is pasted into."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for bad in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written
    return f"LEVAL.receive({json.dumps(name)},{text});\n"


def number(value: float | None, digits: int = 6, times: float = 1) -> float | None:
    """A finite number in the unit shown, with so many significant digits; else None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{times * value:.{digits}g}")


def leaderboard(table: Table, analysis: Analysis) -> dict[str, Any]:
    """Everything the first view needs of a `leaderboard_table`: columns, rows, runs, notes."""
    tasks = [column for column in table.columns if column.kind == "task"]
    lines = reach_lines(analysis)
    return {
        "columns": [
            {
                "label": plain(column.label),
                "task": column.task,
                "lower": column.lower_is_better,
                "raw": not column.percent,
                "nats": column.nats,
                "chance": number(column.chance),
            }
            for column in tasks
        ],
        "reach": [_reach(line) for line in lines],
        "gaps": [plain(text) for text in reach_gaps(analysis, lines)],
        "average": next((at for at, c in enumerate(table.columns[2:]) if c.kind == "average"), 0),
        "rows": [_row(table, block, row) for block in table.blocks for row in block.rows],
        "runs": [_provenance(run) for run in analysis.results.runs],
        "costs": [_cost(run) for run in analysis.results.runs],
        "baselines": {plain(k): plain(v) for k, v in analysis.baselines.items()},
        "assumed": ASSUMED,
        "parts": DEPTHS,
        "notes": [chance_note()] if any(column.chance is not None for column in tasks) else [],
    }


def _row(table: Table, block: Block, row: Row) -> dict[str, Any]:
    """A row, its cells by the places of their columns among those of tasks."""
    kinds = [column.kind for column in table.columns]
    tasks = [cell for cell, kind in zip(row.cells, kinds, strict=True) if kind == "task"]
    average = row.cells[kinds.index("average")] if "average" in kinds else Cell()
    shown = {
        "block": plain(block.title),
        "method": plain(row.method),
        "ctx": row.length,
        "cells": {at: shown for at, cell in enumerate(tasks) if (shown := _cell(cell))},
        "avg": number(average.value),
        "avgText": average.text,
    }
    if row.kind == "published":
        return {**shown, "published": True}
    return {**shown, "avgRank": average.rank, "partial": row.partial, "sample": row.sample}


def _cell(cell: Cell) -> dict[str, Any]:
    """One number of the leaderboard, or why there is none; empty where nothing was run."""
    if cell.entry is None:
        return {} if cell.value is None else {"v": cell.value, "t": cell.text}
    entry, score = cell.entry, cell.entry.score
    if not score.finished:
        return {"s": score.status, "why": plain(score.note)[:300], "run": score.run}
    numbers = {
        "v": number(score.value, times=score.percent),
        "se": number(score.stderr, times=score.percent),
        "lo": number(entry.low, times=score.percent),
        "hi": number(entry.high, times=score.percent),
        "rank": entry.rank,
        "n": score.n,
        "g": score.clusters,
        "cut": number(score.cut, times=100),
        "un": number(score.unparsed, times=100),
        "lim": number(score.at_limit, times=100),
        "open": number(score.thinking_cut, times=100),
    }
    data = plain(" ".join(text for text in (score.source, score.data) if text))
    known: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    known["t"] = cell.text  # as the tables round it
    if cell.stderr_text:
        known["e"] = cell.stderr_text
    if cell.bounds:
        ends = (score.if_wrong, score.if_right)
        known["ends"] = [number(end, times=score.percent) for end in ends]
    if cell.between and not cell.stderr_text:
        known["exact"] = 1
    if is_of_nats(score.metric):
        known["m"] = score.metric  # by which the samples of a text name it
    return {**known, "run": score.run, "data": data}


def comparisons(analysis: Analysis) -> dict[str, dict[str, Any]]:
    r"""For each baseline `"run column length" -> comparison`, in the blocks that have the method.

    Under `reach`: `"block\nmethod" -> {length: differences}` of what the answer rests on.
    """
    labels = {entry.label: None for entry in analysis.entries if entry.label}
    if len(labels) > MOST_BASELINES:
        labels = {name: None for name in analysis.baselines.values() if name}
    return {plain(label): _compared_with(label, analysis.against(label)) for label in labels}


def _compared_with(baseline: str, analysis: Analysis) -> dict[str, Any]:
    """Comparisons with this very method; a block without it has another baseline."""
    table = leaderboard_table(analysis)
    lines = [line for line in reach_lines(analysis) if line.points]
    losses = {
        f"{plain(line.block)}\n{plain(line.method)}": dict(map(_apart, line.points))
        for line in lines
        if analysis.baselines[line.block] == baseline != line.method
    }
    cells = {
        f"{entry.score.run} {plain(column.label)} {row.length}": _comparison(
            difference, entry.score.percent
        )
        for block in table.blocks
        for row in block.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if (entry := cell.entry) and (difference := entry.difference)
        if analysis.baselines[entry.block] == baseline
    }
    return {**cells, "reach": losses} if losses else cells


def _apart(point: Point) -> tuple[int, list[float | None]]:
    """A length, and the differences to a baseline there with their ends, nats a token.

    Of the loss, and of that on key tokens where a reference told them.
    """
    told = (*_difference(point.against), *_difference(point.key_against))
    return point.length, [number(each, 5) for each in told]


def _comparison(difference: Difference, times: float) -> list[Any]:
    """`[difference, low, high, p, mark, wins, ties, losses, detectable, smallest p, threshold]`."""
    return [
        number(difference.difference, 4, times),
        number(difference.low, 4, times),
        number(difference.high, 4, times),
        number(difference.p_holm, 4),
        difference.mark,
        difference.wins,
        difference.ties,
        difference.losses,
        number(difference.detectable, 4, times),
        number(difference.smallest_p, 3),
        number(difference.threshold, 3),
    ]


def _reach(line: ReachLine) -> dict[str, Any]:
    """How far a model reads under a method, and the losses by length that say so."""
    told = (line.no_loss, line.gain)
    ends = [[each.low, each.high] if each else None for each in told]
    return {
        "block": plain(line.block),
        "method": plain(line.method),
        "shipped": line.shipped,
        "claimed": line.claimed,
        "noLoss": reach_text(line.no_loss),
        "gain": reach_text(line.gain),
        "noLossEnds": ends[0],
        "gainEnds": ends[1],
        "texts": line.texts,
        "tokens": line.tokens,
        "keys": line.key_tokens,
        "referred": line.referred,
        "tasks": [task_label(task) for task in line.tasks],
        "points": [_point(point) for point in line.points],
        "retrieval": _retrieval(line.retrieval) if line.retrieval else None,
    }


def _retrieval(found: Retrieval) -> dict[str, Any]:
    """How far a model retrieves, and `[length, part, found, asked]` by depth in the prompt."""
    return {
        "above": reach_text(found.above),
        "kept": reach_text(found.kept),
        "aboveEnds": [found.above.low, found.above.high],
        "keptEnds": [found.kept.low, found.kept.high] if found.kept else None,
        "threshold": 100 * THRESHOLD,
        "probes": found.probes,
        "lengths": [each.length for each in found.counts],
        "tasks": [task_label(task) for task in found.tasks],
        "names": list(found.tasks),
        "needles": list(found.needles),
        "depths": [[each.length, each.part, each.found, each.asked] for each in found.depths],
    }


def _point(point: Point) -> list[Any]:
    """A length and three numbers with the ends of their intervals, nats a token.

    The loss, the gain from the next shorter length, and the loss on key tokens.
    """
    key = point.key
    told = (
        *(point.loss, point.low, point.high),
        *(point.step.gain if point.step else _NONE),
        *((key.value, key.low, key.high) if key else _NONE),
    )
    return [point.length, *(number(each, 5) for each in told)]


_NONE = (None, None, None)


def _difference(found: Difference | None) -> tuple[float | None, float | None, float | None]:
    return (found.difference, found.low, found.high) if found else _NONE


def _cost(run: Run) -> dict[str, float]:
    """What a whole run took: seconds, tokens read and written, bytes."""
    known = run.telemetry
    tokens = known.get("tokens_prefilled", 0.0) + known.get("tokens_generated", 0.0)
    cost = {
        "seconds": number(known.get("seconds") or run.seconds),
        "tokens": number(tokens or None),
        "memory": number(known.get("peak_memory_bytes")),
    }
    return {name: value for name, value in cost.items() if value is not None}


def _provenance(run: Run) -> dict[str, str]:
    """What made a number."""
    facts = {
        "Run": run.run_id,
        "Command": run.command,
        "Created": run.created,
        "State": f"{run.status} {run.reason}".strip(),
        **{name.replace("_", " ").capitalize(): value for name, value in run.settings.items()},
        "Versions": ", ".join(f"{name} {value}" for name, value in run.versions.items()),
        "Host": ", ".join(f"{name} {value}" for name, value in run.host.items()),
        "Seconds": "" if run.seconds is None else f"{run.seconds:,.1f}",
        "Telemetry": ", ".join(f"{name} {value:,.10g}" for name, value in run.telemetry.items()),
        "Log": f"{run.folder.name}/{LOG}" if (run.folder / LOG).is_file() else "",
    }
    return {name: plain(str(value))[:1000] for name, value in facts.items() if value}
