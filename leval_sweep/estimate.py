"""What a cell will cost, reckoned without a model: stated, simple, good to a factor of two."""

import json
import os
from dataclasses import dataclass
from functools import cache

from leval_backends import reading_once
from leval_border.files import json_lines, user_path
from leval_leaderboard.cell_record import CellRecord
from leval_sweep import own_tasks
from leval_tasks.data import SAMPLE
from leval_tasks.metadata import ClosedSettings, PerplexitySettings, read_metadata

Sizes = tuple[tuple[int, int], ...]
"""Characters and questions of every document of a file."""

CHARACTERS_PER_TOKEN = 4.0
# One generated token costs about as much as this many tokens of a prompt.
GENERATED_TOKEN_COST = 20.0
DEFAULT_NEW_TOKENS = 512
DEFAULT_CONTEXT = 8192
QUESTION_TOKENS = 150.0
_READ_ONCE = " and ".join(", ".join(reading_once()).rsplit(", ", 1))
METHOD = (
    "Estimated from the documents' characters / 4, cut at the context length, counted once a "
    f"document on {_READ_ONCE} and once a question elsewhere, plus 150 tokens a "
    "question; a new token costs as much as 20 of a prompt; time at the speed of finished cells of "
    "the same model, else at the tokens_per_second of its config, else at that of other models."
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
def documents(file: str, source: str) -> Sizes | None:
    """What is known of a file's documents; None if it is not at hand."""
    folder = SAMPLE if source == "sample" else user_path(source)
    paths = sorted(folder.rglob(file)) if source else []
    if not paths:
        return None
    try:
        text = paths[0].read_text(encoding="utf-8")
        records = [json.loads(line) for _, line in json_lines(text)]
    except (OSError, ValueError):
        return None
    sizes = []
    for record in records:
        if not isinstance(record, dict):
            return None
        text = str(record.get("input") or record.get("text") or "")
        sizes.append((len(text), max(1, len(record.get("instructions") or ()))))
    return tuple(sizes) or None


def estimate(record: CellRecord) -> Estimate:
    """Tokens of a cell."""
    metadata = record.metadata
    source = str(metadata.get("data_dir") or os.environ.get("LEVAL_DATA_DIR") or "")
    context = record.context_length or DEFAULT_CONTEXT
    once = record.model.backend in reading_once()
    prompt = new = 0.0
    for name in own_tasks.members(record.tasks):
        task = own_tasks.own_tasks().get(name)
        sizes = documents(task.file, source) if task and task.file else None
        if task and task.family == "perplexity":
            asked_for = read_metadata(PerplexitySettings, metadata)
            prompt += perplexity_tokens(sizes, asked_for, context)
            continue
        if sizes is None:
            return Estimate(prompt_tokens=None, new_tokens=None)
        sizes = chosen(sizes, read_metadata(ClosedSettings, metadata))
        questions = sum(each for _, each in sizes)
        asked = min(questions, record.limit or questions)
        tokens = sum(
            min(size / CHARACTERS_PER_TOKEN, context) * (1 if once else n) for size, n in sizes
        )
        prompt += tokens * asked / questions + QUESTION_TOKENS * asked
        settings = {**record.gen_kwargs, **record.task_gen_kwargs.get(name, {})}
        new += asked * float(settings.get("max_gen_toks", DEFAULT_NEW_TOKENS))
    return Estimate(prompt_tokens=round(prompt), new_tokens=round(new))


def perplexity_tokens(sizes: Sizes | None, settings: PerplexitySettings, context: int) -> float:
    """Tokens of the windows of a perplexity task; a document of unknown size is one context."""
    lengths = [size / CHARACTERS_PER_TOKEN for size, _ in sizes or ()][: settings.num_docs]
    lengths = lengths or [float(context)] * settings.num_docs
    if settings.mode != "sliding":
        return sum(min(length, context) for length in lengths)
    longest = settings.max_tokens or max(lengths)
    over = sum(max(0.0, min(length, longest) - context) for length in lengths)
    return (over / settings.stride + len(lengths)) * context


def chosen(sizes: Sizes, settings: ClosedSettings) -> Sizes:
    """The documents that `num_docs` and `min_questions` leave."""
    wanted = settings.num_docs or len(sizes)
    while sum(n for _, n in sizes[:wanted]) < (settings.min_questions or 0) and wanted < len(sizes):
        wanted += 1
    return sizes[:wanted]
