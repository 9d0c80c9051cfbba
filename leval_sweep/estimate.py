"""What a cell will cost, reckoned without a model: stated, simple, good to a factor of two."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leval_backends import reading_once
from leval_border.files import read_object
from leval_leaderboard.layout import DONE
from leval_sweep import own_tasks
from leval_sweep.cell_files import why_not_done
from leval_sweep.cells import Cell
from leval_sweep.data_identity import PERPLEXITY_PREFIX, task_file

CHARACTERS_PER_TOKEN = 4.0
# One generated token costs about as much as this many tokens of a prompt.
GENERATED_TOKEN_COST = 20.0
DEFAULT_NEW_TOKENS = 512
DEFAULT_CONTEXT = 8192
QUESTION_TOKENS = 150.0
PERPLEXITY_DOCUMENTS = 50
_READ_ONCE = " and ".join(", ".join(reading_once()).rsplit(", ", 1))
METHOD = (
    "Estimated from the documents' characters / 4, cut at the context length, counted once a "
    f"document on {_READ_ONCE} and once a question elsewhere, plus 150 tokens a "
    "question; a new token costs as much as 20 of a prompt; time at the speed of finished cells of "
    "the same model, else at the tokens_per_second of its config."
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Tokens of one cell; None where nothing is known of the documents."""

    prompt_tokens: float | None
    new_tokens: float | None

    @property
    def work(self) -> float | None:
        """Prompt-token equivalents."""
        if self.prompt_tokens is None:
            return None
        return self.prompt_tokens + GENERATED_TOKEN_COST * (self.new_tokens or 0.0)


@cache
def documents(file: str, source: str) -> tuple[tuple[int, int], ...] | None:
    """(characters, questions) of every document of a file; None if it is not at hand."""
    if source == "sample":
        from leval_tasks import sample

        records: Iterable[Any] = sample.documents(file) if file in sample.FILES else []
    else:
        found = sorted(Path(source).expanduser().rglob(file)) if source else []
        if not found:
            return None
        try:
            with found[0].open(encoding="utf-8") as handle:
                records = [json.loads(line) for line in handle if line.strip()]
        except (OSError, ValueError):
            return None
    sizes = []
    for record in records:
        if not isinstance(record, dict):
            return None
        text = str(record.get("input") or record.get("text") or "")
        sizes.append((len(text), max(1, len(record.get("instructions") or ()))))
    return tuple(sizes) or None


def estimate(record: Mapping[str, Any]) -> Estimate:
    """Tokens of the cell that `record` (its `cell.json`) describes."""
    metadata = record["metadata"]
    source = str(metadata.get("data_dir") or os.environ.get("LEVAL_DATA_DIR") or "")
    context = record["context_length"] or DEFAULT_CONTEXT
    once = record["model"]["backend"] in reading_once()
    prompt = new = 0.0
    for task in own_tasks.members(record["tasks"]):
        file = task_file(task)
        sizes = documents(file, source) if file else None
        if task.startswith(PERPLEXITY_PREFIX):
            prompt += perplexity_tokens(sizes, metadata, context)
            continue
        if sizes is None:
            return Estimate(prompt_tokens=None, new_tokens=None)
        sizes = chosen(sizes, metadata)
        questions = sum(each for _, each in sizes)
        asked = min(questions, record["limit"] or questions)
        tokens = sum(
            min(size / CHARACTERS_PER_TOKEN, context) * (1 if once else n) for size, n in sizes
        )
        prompt += tokens * asked / questions + QUESTION_TOKENS * asked
        settings = {**record["gen_kwargs"], **record["task_gen_kwargs"].get(task, {})}
        new += asked * float(settings.get("max_gen_toks", DEFAULT_NEW_TOKENS))
    return Estimate(prompt_tokens=round(prompt), new_tokens=round(new))


def perplexity_tokens(
    sizes: tuple[tuple[int, int], ...] | None, metadata: Mapping[str, Any], context: int
) -> float:
    """Tokens of the windows of a perplexity task; a document of unknown size is one context."""
    count = int(metadata.get("num_docs", PERPLEXITY_DOCUMENTS))
    lengths = [size / CHARACTERS_PER_TOKEN for size, _ in sizes or ()][:count]
    lengths = lengths or [float(context)] * count
    if metadata.get("mode") != "sliding":
        return sum(min(length, context) for length in lengths)
    longest = float(metadata.get("max_tokens") or max(lengths))
    stride = int(metadata.get("stride", 256))
    windows = sum(max(0.0, min(length, longest) - context) / stride + 1 for length in lengths)
    return windows * context


def chosen(
    sizes: tuple[tuple[int, int], ...], metadata: Mapping[str, Any]
) -> tuple[tuple[int, int], ...]:
    """The documents that `num_docs` and `min_questions` leave."""
    wanted = metadata.get("num_docs") or len(sizes)
    while wanted < len(sizes) and sum(n for _, n in sizes[:wanted]) < (
        metadata.get("min_questions") or 0
    ):
        wanted += 1
    return sizes[:wanted]


def work(cells: Iterable[Cell]) -> dict[str, float]:
    """Cell id -> prompt-token equivalents; the mean of the others where nothing is known."""
    guessed = {cell.id: estimate(cell.record).work for cell in cells}
    known = [each for each in guessed.values() if each]
    mean = sum(known) / len(known) if known else 1.0
    return {ident: each or mean for ident, each in guessed.items()}


def measured_speeds(cells: Iterable[Cell], folder: Path) -> dict[str, float]:
    """Model -> prompt-token equivalents a second, over its finished cells."""
    done_work: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for cell in cells:
        marker = read_object(folder / cell.id / DONE) or {}
        took, amount = marker.get("seconds"), estimate(cell.record).work
        if isinstance(took, int | float) and took > 0 and amount:
            done_work[cell.record["model"]["name"]] += amount
            seconds[cell.record["model"]["name"]] += took
    return {name: done_work[name] / seconds[name] for name in done_work}


def dry_run(cells: list[Cell], folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows for `--dry-run`, and the sum over what is still to do (None where one is unknown)."""
    speeds = measured_speeds(cells, folder)
    rows = []
    for cell in cells:
        guess = estimate(cell.record)
        speed = speeds.get(cell.record["model"]["name"], cell.tokens_per_second)
        rows.append(
            {
                "cell_id": cell.id,
                "title": cell.title,
                "prompt_tokens": guess.prompt_tokens,
                "new_tokens": guess.new_tokens,
                "seconds": round(guess.work / speed) if guess.work and speed else None,
                "done": why_not_done(folder / cell.id, cell.id) is None,
            }
        )
    to_do = [row for row in rows if not row["done"]]
    total: dict[str, Any] = {"cells": len(rows), "to_do": len(to_do)}
    for key in ("prompt_tokens", "new_tokens", "seconds"):
        values = [row[key] for row in to_do]
        total[key] = None if None in values else sum(values)
    return rows, total
