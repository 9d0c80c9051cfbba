"""What the page shows, as plain JSON-able values; short keys since there are thousands of them."""

import json
import math
from typing import Any

from leval_leaderboard.layout import LOG
from leval_leaderboard.results.chance import CHANCE_NOTE
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.scores import lower_is_better
from leval_leaderboard.tables.analysis import Analysis
from leval_leaderboard.tables.escape import plain
from leval_leaderboard.tables.names import CLOSED, length_label, task_label
from leval_leaderboard.tables.published import TABLE_2, TASKS, size_of

MOST_BASELINES = 16
"""Comparisons with every method as baseline grow with its square; beyond this only the default."""


def script(name: str, value: object) -> str:
    """A script file that hands `value` to the page; harmless in whatever it is pasted into."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for bad in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    return f"LEVAL.receive({json.dumps(name)},{text});\n"


def number(value: Any, digits: int = 6) -> float | None:
    """A finite number with so many significant digits, else None."""
    if value is None or not math.isfinite(float(value)):
        return None
    return float(f"{float(value):.{digits}g}")


def shown_rows(analysis: Analysis) -> Any:
    """Rows of the main metrics with `column`, the heading they stand under."""
    frame = analysis.frame()
    shown = frame[frame["primary"].fillna(False).astype(bool)].copy()
    families = shown["metric"].astype(str).str.split("@").str[0]
    shown = shown[~families.isin(["word_perplexity", "byte_perplexity", "bits_per_byte"])]
    at = shown["metric"].astype(str).str.split("@").str[1]
    shown["column"] = [
        task_label(str(task))
        + (f" {family.split('_')[0]} ppl@{length_label(float(n))}" if isinstance(n, str) else "")
        for task, family, n in zip(shown["task"], families[shown.index], at, strict=True)
    ]
    return shown


def leaderboard(analysis: Analysis, shown: Any) -> dict[str, Any]:
    """Everything the first view needs: columns, rows, runs, notes."""
    columns = _columns(shown)
    index = {column["label"]: at for at, column in enumerate(columns)}
    rows: dict[tuple[str, str, float], dict[str, Any]] = {}
    for record in shown.to_dict("records"):
        length = number(record["context_length"])
        key = (record["block"], record["label"], -1.0 if length is None else length)
        row = rows.setdefault(
            key,
            {"block": plain(record["block"]), "method": plain(record["label"]), "ctx": length,
             "partial": bool(record["partial"]), "sample": bool(record["sample"]), "cells": {}},
        )  # fmt: skip
        if record["task"]:
            row["cells"][index[record["column"]]] = _cell(record)
    place: dict[str, int] = {}
    for row in rows.values():
        place.setdefault(row["block"], len(place))
    entries = sorted(rows.values(), key=lambda row: (place[row["block"]], row["ctx"] or 0))
    closed = [index[label] for label in CLOSED.values() if label in index]
    for row in entries:
        values = [row["cells"].get(at, {}).get("v") for at in closed]
        full = len(closed) == len(CLOSED) and all(value is not None for value in values)
        row["avg"] = number(sum(values) / len(values)) if full else None
    _rank_averages(entries)
    return {
        "columns": columns,
        "average": len(closed) == len(CLOSED),
        "rows": entries + _published(analysis, index),
        "runs": [_provenance(run) for run in analysis.results.runs],
        "baselines": {plain(k): plain(v) for k, v in analysis.baselines.items()},
        "notes": [CHANCE_NOTE] if shown["chance"].notna().any() else [],
    }


def _rank_averages(rows: list[dict[str, Any]]) -> None:
    """`avgRank` 1 and 2 within block and context length, where there is anybody to beat."""
    places: dict[Any, set[float]] = {}
    for row in rows:
        if row["avg"] is not None:
            places.setdefault((row["block"], row["ctx"]), set()).add(row["avg"])
    for row in rows:
        values = sorted(places.get((row["block"], row["ctx"]), ()), reverse=True)
        row["avgRank"] = values.index(row["avg"]) + 1 if row["avg"] in values else 0
        if len(values) < 2:
            row["avgRank"] = 0


def _columns(shown: Any) -> list[dict[str, Any]]:
    order = [*CLOSED, "leval_topic_retrieval"]
    found: dict[str, dict[str, Any]] = {}
    for record in shown.drop_duplicates("column").to_dict("records"):
        if record["task"]:
            lower = lower_is_better(str(record["metric"]))
            found[record["column"]] = {
                "label": plain(record["column"]), "task": record["task"], "lower": lower,
                "chance": number(record["chance"]),
            }  # fmt: skip
    place = {task: at for at, task in enumerate(order)}
    return sorted(found.values(), key=lambda column: place.get(column["task"], len(place)))


def _cell(record: dict[str, Any]) -> dict[str, Any]:
    """One number of the leaderboard; scores in percent, perplexities as they are."""
    if record["status"] != "done" or number(record["value"]) is None:
        return {"s": record["status"], "why": plain(str(record["note"] or ""))[:300],
                "run": record["run"]}  # fmt: skip
    unit = 1 if lower_is_better(str(record["metric"])) else 100
    cell = {
        "v": unit * record["value"], "se": unit * record["stderr"], "lo": unit * record["low"],
        "hi": unit * record["high"], "rank": record["rank"], "n": record["n"],
        "g": record["clusters"], "cut": 100 * record["cut"], "un": 100 * record["unparsed"],
    }  # fmt: skip
    known = {name: number(value) for name, value in cell.items()}
    data = plain(" ".join(str(record[name]) for name in ("source", "data") if record[name]))
    return {name: value for name, value in known.items() if value is not None} | {
        "run": record["run"],
        "data": data,
    }


def comparisons(analysis: Analysis, shown: Any) -> dict[str, dict[str, list[Any]]]:
    """For each baseline method: `"run column" -> [diff, low, high, p, mark, w, t, l, mdd]`."""
    methods = [m for m in dict.fromkeys(shown["label"]) if m]
    wanted = methods if len(methods) <= MOST_BASELINES else list(set(analysis.baselines.values()))
    columns = {int(at): str(column) for at, column in shown["column"].items()}
    found = {}
    for method in wanted:
        if not method:
            continue
        frame = analysis.against(method).frame()
        frame = frame[frame.index.isin(columns) & frame["difference"].notna()]
        frame = frame[frame["block"].map(analysis_baseline(frame, method))]
        found[plain(method)] = {
            f"{record.run} {plain(columns[at])}": _comparison(record)
            for at, record in zip(frame.index, frame.itertuples(), strict=True)
        }
    return found


def analysis_baseline(frame: Any, method: str) -> Any:
    """Whether a block really was compared with `method` (its own row has no difference)."""
    compared = {block: method not in set(part["label"]) for block, part in frame.groupby("block")}
    return lambda block: compared[block]


def _comparison(record: Any) -> list[Any]:
    unit = 1 if lower_is_better(str(record.metric)) else 100
    numbers = [unit * record.difference, unit * record.diff_low, unit * record.diff_high,
               record.p_holm]  # fmt: skip
    return [
        *(number(value, 4) for value in numbers),
        record.mark, int(record.wins), int(record.ties), int(record.losses),
        number(unit * record.detectable, 4), number(record.smallest_p, 3),
        number(record.threshold, 3),
    ]  # fmt: skip


def _published(analysis: Analysis, index: dict[str, int]) -> list[dict[str, Any]]:
    """The paper's rows for the models that were run."""
    sizes = sorted({size for model in analysis.frame()["model"] if (size := size_of(str(model)))})
    rows = []
    for size in sizes:
        for method, (length, *values) in TABLE_2[size].items():
            cells = {
                index[task]: {"v": value}
                for task, value in zip(TASKS[:-1], values[:-1], strict=True)
                if task in index
            }
            rows.append(
                {"block": f"{size} (published)", "method": method, "ctx": length * 1024,
                 "published": True, "cells": cells, "avg": values[-1]}
            )  # fmt: skip
    return rows


def _provenance(run: Run) -> dict[str, Any]:
    """What made a number."""
    facts = {
        "Run": run.run_id, "Command": run.command, "Created": run.created,
        "State": f"{run.status} {run.reason}".strip(),
        **{name.replace("_", " ").capitalize(): value for name, value in run.settings.items()},
        "Versions": ", ".join(f"{k} {v}" for k, v in run.versions.items()),
        "Host": ", ".join(f"{k} {v}" for k, v in run.host.items()),
        "Seconds": "" if run.seconds is None else f"{run.seconds:,.1f}",
        "Telemetry": ", ".join(f"{k} {v:,.10g}" for k, v in run.telemetry.items()),
        "Log": f"{run.folder.name}/{LOG}" if (run.folder / LOG).is_file() else "",
    }  # fmt: skip
    return {name: plain(str(value))[:1000] for name, value in facts.items() if value}
