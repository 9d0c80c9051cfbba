"""How many tokens a cell reads, good to a factor of two: for the time that is left."""

import os
from functools import cache

from leval_harness.backends import reading_once
from leval_harness.cell_record import CellRecord
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

CHARACTERS_PER_TOKEN = 4.0
NEW_TOKEN = 20.0
"""Tokens of a prompt that cost about as much as one new token."""
QUESTION_TOKENS = 150.0
DEFAULT_CONTEXT = 8192
SLIDING = 3.0
"""Times that sliding windows read a context length, of a document of unknown length."""


def tokens_of(record: CellRecord) -> float | None:
    """Prompt tokens that cost as much as a cell; None where nothing is known of its documents."""
    context = record.context_length or DEFAULT_CONTEXT
    total = 0.0
    for name in members(record.tasks):
        task = own_tasks().get(name)
        if task is None or task.file is None:
            return None
        if task.family == "closed":
            tokens = _closed(record, name, task.file, context)
            if tokens is None:
                return None
            total += tokens
        elif task.family == "perplexity":
            text = read_metadata(PerplexitySettings, record.metadata)
            longest = max(text.context_length or (context,))
            total += text.num_docs * longest * (SLIDING if text.mode == "sliding" else 1)
        else:
            reads = read_metadata(EffectiveContextSettings, record.metadata)
            lengths = reads.context_length or (context,)
            each = sum(lengths) / len(lengths) * reads.num_docs
            total += each * (1.0 if reads.reads == "full" else 2.0)
    return total


def _closed(record: CellRecord, task: str, file: str, context: int) -> float | None:
    """Each document once a question, or once where the backend shares it, and the answers."""
    settings = read_metadata(ClosedSettings, record.metadata)
    source = str(settings.data_dir or os.environ.get("LEVAL_DATA_DIR") or "")
    sizes = _documents(file, source)[: settings.num_docs]
    if not sizes:
        return None
    once = record.model.backend in reading_once()
    asked = sum(questions for _, questions in sizes)
    used = min(asked, record.limit or asked)
    read = sum(
        min(characters / CHARACTERS_PER_TOKEN, context) * (1 if once else questions)
        for characters, questions in sizes
    )
    new = generation_tokens({**record.gen_kwargs, **record.task_gen_kwargs.get(task, {})})
    return read * used / asked + used * (QUESTION_TOKENS + NEW_TOKEN * new)


@cache
def _documents(file: str, source: str) -> tuple[tuple[int, int], ...]:
    """Characters and questions of each document of a file; empty if it is not on this machine."""
    folder = SAMPLE if source == "sample" else user_path(source)
    paths = sorted(folder.rglob(file)) if source else []
    try:
        text = paths[0].read_text(encoding="utf-8") if paths else ""
        records = [parse_json(line, file) for _, line in json_lines(text)]
        return tuple((len(each["input"]), len(each["instructions"])) for each in records)
    except (OSError, ValueError, LookupError, TypeError):
        return ()
