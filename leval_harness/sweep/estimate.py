"""Tokens and time that `--dry-run` estimates for each cell, good to a factor of two."""

import heapq
import itertools
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from leval_harness.backends import reading_once
from leval_harness.cell_record import CellRecord, DoneRecord, read_record
from leval_harness.layout import CELL, DONE
from leval_harness.sweep.cell_files import why_not_done
from leval_harness.sweep.cells import PlannedCell
from leval_harness.sweep.task_registry import members, own_tasks
from leval_tasks.data import SAMPLE
from leval_tasks.generation import generation_tokens
from leval_tasks.metadata import (
    ClosedSettings,
    EffectiveContextSettings,
    PerplexitySettings,
    read_metadata,
)
from resonance_vllm.files import json_lines, parse_json, user_path

Sizes = tuple[tuple[int, int], ...]
"""Characters and questions of every document of a file."""

CHARACTERS_PER_TOKEN = 4.0
GENERATED_TOKEN_COST = 20.0
"""Tokens of a prompt that cost about as much as one generated token."""
DEFAULT_CONTEXT = 8192
QUESTION_TOKENS = 150.0
METHOD = (
    "Estimated from the documents' characters / 4, cut at the context length, counted once a "
    f"document on {', '.join(reading_once())} and once a question elsewhere, plus 150 tokens a "
    "question; a new token costs as much as 20 of a prompt; time at the speed of finished cells of "
    "the same model, else at the tokens_per_second of its config, else at that of other models."
)


class TokenCounts(NamedTuple):
    """Tokens of one cell; None where nothing is known of the documents."""

    prompt_tokens: float | None
    new_tokens: float | None

    @property
    def work(self) -> float | None:
        """Prompt tokens that cost as much as the cell."""
        if self.prompt_tokens is None:
            return None
        return self.prompt_tokens + GENERATED_TOKEN_COST * (self.new_tokens or 0.0)


def estimate(record: CellRecord) -> TokenCounts:
    """Tokens of a cell."""
    metadata = record.metadata
    source = str(metadata.get("data_dir") or os.environ.get("LEVAL_DATA_DIR") or "")
    context = record.context_length or DEFAULT_CONTEXT
    once = record.model.backend in reading_once()
    prompt = new = 0.0
    for name in members(record.tasks):
        task = own_tasks().get(name)
        sizes = documents(task.file, source) if task and task.file else None
        if task and task.family == "perplexity":
            windows = read_metadata(PerplexitySettings, metadata)
            prompt += perplexity_tokens(sizes, windows, context)
        elif task and task.family == "effective_context":
            prompt += _reads_tokens(read_metadata(EffectiveContextSettings, metadata), context)
        elif sizes is None:
            return TokenCounts(None, None)
        else:
            sizes = chosen(sizes, read_metadata(ClosedSettings, metadata))
            questions = sum(each for _, each in sizes)
            used = min(questions, record.limit or questions)
            texts = (min(size / CHARACTERS_PER_TOKEN, context) for size, _ in sizes)
            tokens = sum(t * (1 if once else n) for t, (_, n) in zip(texts, sizes, strict=True))
            prompt += tokens * used / questions + QUESTION_TOKENS * used
            generation = {**record.gen_kwargs, **record.task_gen_kwargs.get(name, {})}
            new += used * generation_tokens(generation)
    return TokenCounts(round(prompt), round(new))


@cache
def documents(file: str, source: str) -> Sizes | None:
    """Sizes of the documents of a file; None if it is not on this machine or not as expected."""
    folder = SAMPLE if source == "sample" else user_path(source)
    paths = sorted(folder.rglob(file)) if source else []
    try:
        text = paths[0].read_text(encoding="utf-8") if paths else ""
        records = [parse_json(line, file) for _, line in json_lines(text)]
        sizes = [
            (len(each.get("input") or each.get("text") or ""), len(each.get("instructions") or "_"))
            for each in records
        ]
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return tuple(sizes) or None


def chosen(sizes: Sizes, settings: ClosedSettings) -> Sizes:
    """The documents that `num_docs` and `min_questions` leave."""
    wanted = settings.num_docs or len(sizes)
    while sum(n for _, n in sizes[:wanted]) < (settings.min_questions or 0) and wanted < len(sizes):
        wanted += 1
    return sizes[:wanted]


def perplexity_tokens(sizes: Sizes | None, settings: PerplexitySettings, context: int) -> float:
    """Tokens of the windows of a perplexity task; a document of unknown size is one context."""
    lengths = [size / CHARACTERS_PER_TOKEN for size, _ in sizes or ()][: settings.num_docs]
    lengths = lengths or [float(context)] * settings.num_docs
    if settings.mode != "sliding":
        return sum(min(length, context) for length in lengths)
    longest = settings.max_tokens or max(lengths)
    over = sum(max(0.0, min(length, longest) - context) for length in lengths)
    return (over / settings.stride + len(lengths)) * context


def _reads_tokens(settings: EffectiveContextSettings, context: int) -> float:
    """Tokens of the reads of some texts: windows read each token twice."""
    turns = itertools.cycle(settings.context_length or (context,))
    tokens = sum(itertools.islice(turns, settings.num_docs))
    return float(tokens * {"all": 3, "full": 1, "windows": 2}[settings.reads])


def dry_run(
    cells: list[PlannedCell], folder: Path, jobs: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows for `--dry-run`, and the sum over what is still to do (None where one is unknown).

    `wall_seconds` of the sum is the time until the last cell ends, with `jobs` cells at a time.
    """
    counts = {cell.id: estimate(cell.record) for cell in cells}
    finished = _finished(folder)
    every_model = [pair for pairs in finished.values() for pair in pairs]
    rows: list[dict[str, Any]] = []
    for cell in cells:
        count = counts[cell.id]
        speed = _speed(finished.get(cell.record.model.name, []))
        speed = speed or cell.tokens_per_second or _speed(every_model)
        rows.append(
            {
                "cell_id": None if cell.is_preview else cell.id,
                "title": cell.record.title,
                "prompt_tokens": count.prompt_tokens,
                "new_tokens": count.new_tokens,
                "seconds": round(count.work / speed) if count.work and speed else None,
                "done": why_not_done(folder / cell.id, cell.id) is None,
            }
        )
    to_do = [row for row in rows if not row["done"]]
    total: dict[str, Any] = {"cells": len(rows), "to_do": len(to_do)}
    for key in ("prompt_tokens", "new_tokens", "seconds"):
        values = [row[key] for row in to_do]
        total[key] = None if None in values else sum(values)
    seconds = [row["seconds"] for row in to_do]
    total["wall_seconds"] = None if None in seconds else round(wall_seconds(seconds, jobs))
    return rows, total


def wall_seconds(seconds: Iterable[float], jobs: int) -> float:
    """Time until the last of some cells ends; each starts in order as soon as a place is free."""
    ends = [0.0] * jobs
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def _finished(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Model -> work and seconds of each of its finished cells, whatever config they are of."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(folder.glob(f"*/{DONE}")):
        done, record = read_record(DoneRecord, path), read_record(CellRecord, path.parent / CELL)
        if done and done.seconds and record and (work := estimate(record).work):
            found.setdefault(record.model.name, []).append((work, done.seconds))
    return found


def _speed(finished: list[tuple[float, float]]) -> float | None:
    """Work a second of finished cells, each given as work and seconds."""
    return sum(w for w, _ in finished) / sum(s for _, s in finished) if finished else None
