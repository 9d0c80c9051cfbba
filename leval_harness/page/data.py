"""The analysis as plain JSON for the page's script; keys are short, there are thousands."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leval_harness.analysis import Analysis
from leval_harness.analysis.effective_context import EffectiveLine
from leval_harness.analysis.effective_sentences import length_text
from leval_harness.analysis.entries import FAMILY, grouped
from leval_harness.analysis.labels import LOSS_UNITS, length_label, task_label
from leval_harness.analysis.retrieval import Retrieval
from leval_harness.analysis.verdict import Verdict
from leval_harness.layout import LOG
from leval_harness.old_results import Run
from leval_harness.old_results.sample_lines import DEPTHS
from leval_harness.secrets import redact
from leval_harness.tables.model import Block, Cell, Row, Table
from leval_tasks.statistics.paired import ASSUMED, Difference
from resonance_vllm.errors import plain

MOST_SENTENCES = 8
"""A longer verdict folds its comparisons by position, so that the figure stands on the screen."""

CITATION = (
    "leval-harness; Resonance RoPE: Wang et al., Findings of ACL 2024, arXiv 2403.00071; "
    "L-Eval: An et al., ACL 2024, arXiv 2307.11088"
)
SHOWN_VERSIONS = ("leval-harness", "lm_eval", "transformers", "vllm", "torch")


def script(name: str, value: object) -> str:
    """A script file that passes `value` to the page, with HTML's special characters escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = redact(text, names=False)
    for bad in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written
    return f"LEVAL.receive({json.dumps(name)},{text});\n"


def number(value: float | None, digits: int = 6, times: float = 1) -> float | None:
    """A number with this many significant digits, or None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{times * value:.{digits}g}")


def about(runs: Sequence[Run]) -> dict[str, Any]:
    """What stands below the title: models, dates, machines, versions, commands, citation."""
    dates = sorted({run.created[:10] for run in runs if "T" in run.created})
    versions = {
        name: sorted({f"{run.versions[name]}" for run in runs if run.versions.get(name)})
        for name in SHOWN_VERSIONS
    }
    facts = {
        "models": _unique(run.model for run in runs),
        "dates": list(dict.fromkeys(dates[:1] + dates[-1:])),
        "machines": _unique(run.machine for run in runs),
        "versions": [f"{name} {' and '.join(each)}" for name, each in versions.items() if each],
        "commands": _unique(run.command for run in runs),
        "citation": [CITATION],
    }
    return {name: [plain(text)[:1000] for text in texts] for name, texts in facts.items()}


def _unique(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def verdict(found: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Sentences by block, the first thing that the page says."""
    return [
        {
            "block": plain(each.block),
            "sentences": [plain(text) for text in each.sentences if text not in folded],
            "folded": list(map(plain, folded)),
            "notes": list(map(plain, each.notes)),
        }
        for each in found
        for folded in [each.by_position if len(each.sentences) > MOST_SENTENCES else ()]
    ]


def reads(lines: Iterable[EffectiveLine], analysis: Analysis) -> list[dict[str, Any]]:
    """How far each method reads: for each block the ends of its bins, and a row a method.

    `missing` says which methods have no number.

    A cell is the gain from full context as text, what stands in its tooltip, and `better` or
    `worse` where the difference to the baseline is shown.
    """
    blocks, titles = [], analysis.titles
    stopped = [e for e in analysis.entries if e.family == FAMILY and not e.score.finished]
    for block, of_block in grouped(lines, lambda line: line.block).items():
        without = {
            f"{titles[e.label]} on {e.task} ({e.score.status})" for e in stopped if e.block == block
        }
        against = next((line.against.baseline for line in of_block if line.against), "")
        ends = sorted({each.end for line in of_block for each in line.these.bins})
        rows = [
            {
                "method": plain(titles[line.method]),
                "kept": length_text(line.these.no_degradation),
                "benefits": length_text(line.these.benefits),
                "claimed": length_label(line.claimed),
                "cells": list(map(_gains(line).get, ends)),
            }
            for line in of_block
        ]
        blocks.append(
            {
                "block": plain(block),
                "baseline": plain(titles.get(against, "")),
                "ends": [f"{end:,}" for end in ends],
                "rows": rows,
                "missing": [f"Without a number: {', '.join(sorted(without))}"] if without else [],
            }
        )
    return blocks


def _gains(line: EffectiveLine) -> dict[int, dict[str, str]]:
    """End of a bin -> its cell."""
    cells, against = {}, line.against
    pairs = zip(against.bins, against.verdicts, strict=True) if against else ()
    compared = {other.end: (other, is_so) for other, is_so in pairs}
    for each in line.these.bins:
        about = f"tokens {each.start:,} to {each.end:,}"
        if each.low is not None and each.high is not None:
            about += f"; a bin decides between {each.low:+.3f} and {each.high:+.3f}"
        other, is_so = compared.get(each.end, (None, ""))
        if other:
            about += f"; {other.gain:+.3f} over the baseline{f', {is_so}' if is_so else ''}"
        cells[each.end] = {"text": f"{each.gain:+.3f}", "about": about, "mark": is_so}
    return cells


def leaderboard(
    table: Table,
    analysis: Analysis,
    lines: Iterable[EffectiveLine] = (),
    retrieved: Iterable[Retrieval] = (),
) -> dict[str, Any]:
    """Everything the first view needs of a `leaderboard_table`: columns, rows, runs, notes."""
    tasks = [column for column in table.columns if column.kind == "task"]
    return {
        "columns": [
            {
                "label": plain(column.label),
                "task": column.task,
                "lower": column.lower_is_better,
                "raw": not column.percent,
                "nats": column.nats,
                "ppl": column.perplexity,
                "chance": number(column.chance),
            }
            for column in tasks
        ],
        "titles": {plain(label): plain(name) for label, name in analysis.titles.items()},
        "claimed": _claimed(analysis),
        "gains": [
            {
                "block": plain(line.block),
                "method": plain(line.method),
                "points": [
                    [each.end, *(number(n) for n in (each.gain, each.low, each.high))]
                    for each in line.these.bins
                ],
            }
            for line in lines
        ],
        "retrieval": list(map(_retrieval, retrieved)),
        "average": next((at for at, c in enumerate(table.columns[2:]) if c.kind == "average"), 0),
        "rows": [_row(table, block, row) for block in table.blocks for row in block.rows],
        "runs": [_provenance(run) for run in analysis.results.runs],
        "costs": [_cost(run) for run in analysis.results.runs],
        "baselines": {plain(k): plain(v) for k, v in analysis.baselines.items()},
        "assumed": ASSUMED,
        "parts": DEPTHS,
        "notes": list(map(plain, table.notes)),
    }


def _claimed(analysis: Analysis) -> dict[str, int]:
    """Block -> tokens that its checkpoint claims as shipped, where all entries agree."""
    found = {}
    for block, part in grouped(analysis.entries, lambda entry: entry.block).items():
        lengths = {n for entry in part if (n := entry.score.shipped_length) is not None}
        if len(lengths) == 1:
            found[plain(block)] = lengths.pop()
    return found


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
    known: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    known["t"] = cell.text  # as the tables round it
    if cell.stderr_text:
        known["e"] = cell.stderr_text
    if cell.bounds:
        ends = (score.if_wrong, score.if_right)
        known["ends"] = [number(end, times=score.percent) for end in ends]
    if cell.between and not cell.stderr_text:
        known["exact"] = 1
    known |= {"m": score.metric, "f": score.chosen}  # their names in the samples
    if score.meaning.kind == "loss":
        known["unit"] = LOSS_UNITS.get(score.family, "nats/token")
    data = plain(" ".join(text for text in (score.source, score.data) if text))
    return {**known, "run": score.run, "data": data}


def comparisons(
    table: Table, analysis: Analysis, compared: Mapping[str, Mapping[int, Difference]]
) -> dict[str, dict[str, Any]]:
    r"""For each baseline `"run column length" -> comparison`, in the blocks that have the method.

    `table` is the analysis's `leaderboard_table`, `compared` is from `Analysis.differences_to`.
    """
    columns = {
        id(cell.entry): f"{cell.entry.score.run} {plain(column.label)} {row.length}"
        for block in table.blocks
        for row in block.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.entry
    }
    return {
        plain(baseline): {
            columns[id(entry)]: _comparison(found[at], entry.score.percent)
            for at, entry in enumerate(analysis.entries)
            if at in found and id(entry) in columns
        }
        for baseline, found in compared.items()
    }


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


def _retrieval(found: Retrieval) -> dict[str, Any]:
    """`[length, part, found, asked]` by depth in the prompt, and the tasks with the needles."""
    return {
        "block": plain(found.block),
        "method": plain(found.method),
        "lengths": [each.length for each in found.counts],
        "tasks": [task_label(task) for task in found.tasks],
        "names": list(found.tasks),
        "needles": list(found.needles),
        "depths": list(found.depths),
    }


def _cost(run: Run) -> dict[str, float]:
    """What a whole run took: seconds, tokens read and written, bytes."""
    cost = {
        "seconds": number(run.busy_seconds),
        "tokens": number(run.tokens or None),
        "memory": number(run.telemetry.get("peak_memory_bytes")),
    }
    return {name: value for name, value in cost.items() if value is not None}


def _provenance(run: Run) -> dict[str, str]:
    """Command, versions, settings and whatever else belongs to the numbers of a run."""
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
