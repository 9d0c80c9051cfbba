"""The samples that lm-eval logs: the numbers of each question, without its document."""

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from leval_harness.results.token_blocks import ReadDocument, document_of_sample
from leval_tasks.closed.catalog import marks_in
from leval_tasks.common.metrics import FAMILY_OF, length_of

NOTES = ("unparsed", "thinking_unfinished", "reached_limit", "truncated", "kept_tokens",
         "document_tokens")  # fmt: skip
"""Metrics that say how a question was asked and answered, which are not scores."""

DESCRIBING = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
    "doc_hash", "prompt_hash", "target_hash",
}  # fmt: skip
"""Fields of a logged sample beside its metrics."""

ASKED = ("run", "task", "filter", "question", "prompt", "document")
MEASURED = ("metric", "num", "den")
"""Columns of the frame `samples`: of a question, and of each of its numbers."""

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:.\d]*$")

Question = tuple[tuple[Any, ...], list[tuple[str, float, float]]]
"""A question as `ASKED`, and its numbers as `MEASURED`."""


@dataclass
class TaskRead:
    """Rows of one task of a run.

    Attributes:
        scores: rows of the frame `scores`.
        samples: questions with their numbers.
        documents: documents of effective-context tasks.
        excluded: name, value and reason of each entry that has no row.
    """

    scores: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Question] = field(default_factory=list)
    documents: list[ReadDocument] = field(default_factory=list)
    excluded: list[tuple[str, Any, str]] = field(default_factory=list)


def number(value: Any) -> float | None:
    """Return a number, also one written as text (as lm-eval writes those of numpy); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def object_of(value: Any) -> dict[str, Any]:
    """Return a mapping as it is; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> float | None:
    """Return `number` where it is finite; else None."""
    as_float = value if type(value) is float else number(value)
    if as_float is None or not math.isfinite(as_float):
        return None
    return as_float


def samples_file(results: Path, task: str) -> Path | None:
    """Return the file with a task's samples of the same evaluation; None if there is none."""
    stamp = STAMP.search(results.stem)
    end = stamp[0] if stamp else results.stem.removeprefix("results_")
    path = results.with_name(f"samples_{task.replace('/', '_')}_{end}.jsonl")
    return path if path.is_file() else None


def sample_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a file, in its order.

    Raises:
        OSError, ValueError: the file cannot be read, or a line is not a JSON object.
    """
    with path.open("rb", buffering=2**20) as lines:
        for at, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _parsed(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {at} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {at} is not a JSON object")
            yield row


def _parsed(line: bytes) -> Any:
    """Return the value of a line; pydantic's parser takes a third of the time for long prompts."""
    try:
        return from_json(line)
    except ValueError:  # half of a surrogate pair, which Python writes and reads
        return json.loads(line)


def read_samples(path: Path, run: int, task: str, known: dict[str, Any], read: TaskRead) -> None:
    """Read the numbers of each question of a task.

    Scores become `malformed` where the file cannot be read, or holds another number of samples.

    Args:
        path: the file with the samples.
        run: number of the run.
        task: name of the task.
        known: the run's row of `runs`.
        read: its scores; samples, documents and excluded entries are added to it.
    """
    filters = list(dict.fromkeys(row["filter"] for row in read.scores))
    only_filter = filters[0] if len(filters) == 1 else None
    samples: list[Question] = []
    is_invalid: dict[str, list[bool]] = defaultdict(list)
    times_seen: Counter[tuple[str, str]] = Counter()
    has_unnamed_filter = False
    try:
        for line in sample_lines(path):
            filter_name = line.get("filter", only_filter)
            has_unnamed_filter |= filter_name is None
            names = _metrics(line)
            if filter_name and names:
                question, prompt, document = _question_of(line)
                times_seen[filter_name, question] += 1
                times = times_seen[filter_name, question]
                if times > 1:  # two documents of one hash
                    question = f"{question} #{times}"
                key = (run, task, filter_name, question, prompt, document)
                samples.append((key, _numbers(line, names)))
                # what lm-eval's filters write where they find no answer
                is_invalid[filter_name].append(line.get("filtered_resps") == ["[invalid]"])
            if FAMILY_OF.get(task) == "effective_context":
                read_document = document_of_sample(line, run, task, known["folder"])
                if read_document is not None:
                    read.documents.append(read_document)
    except (OSError, ValueError) as error:
        for row in read.scores:
            row |= {"status": "malformed", "note": f"{error}"}
        return
    _check_counts(read, logged=max(map(len, is_invalid.values()), default=0))
    if has_unnamed_filter:
        reason = "the samples do not say which filter they are of"
        read.excluded.append((path.name, None, reason))
    _add_unparsed(samples, is_invalid)
    read.samples = samples


def _check_counts(read: TaskRead, logged: int) -> None:
    """Mark scores that were computed from another number of samples than are logged."""
    if not logged:
        return
    for row in read.scores:
        if row["asked"] not in (None, logged):
            note = f"{row['asked']} samples were scored, {logged} are logged"
            row |= {"status": "malformed", "note": note}


def _add_unparsed(samples: list[Question], is_invalid: Mapping[str, list[bool]]) -> None:
    """Add the note `unparsed` to the samples of each filter that found no answer somewhere.

    Of other filters it is not known what they write where they find none.

    Args:
        samples: questions with their numbers.
        is_invalid: filter -> whether the answer of each of its samples is invalid.
    """
    for filter_name, flags in is_invalid.items():
        if not any(flags):
            continue
        of_filter = [numbers for key, numbers in samples if key[2] == filter_name]
        for numbers, flag in zip(of_filter, flags, strict=True):
            numbers.append(("unparsed", float(flag), 1.0))


def _metrics(line: dict[str, Any]) -> list[str]:
    """Return the names of the metrics that a sample logs."""
    if "metrics" not in line:
        return [name for name in line if name not in DESCRIBING]
    names = line["metrics"]
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _question_of(line: dict[str, Any]) -> tuple[str, str, str]:
    """Return question, hash of the prompt and document of a sample.

    A question of this package's tasks is named by document and number, another one by the hash of
    its document, which is the same for all models; the expected answer is part of both. Another
    task's sample is its own document.
    """
    target = line.get("target_hash")
    if not isinstance(target, str):
        target = hash_of(line.get("target"))
    prompt = line.get("prompt_hash")
    if not isinstance(prompt, str):
        prompt = hash_of(line.get("arguments"))
    doc = object_of(line.get("doc"))
    document, cluster, number = map(doc.get, ("document_id", "cluster", "question_id"))
    if cluster is not None and isinstance(document, str | int):
        name = f"{document}" if number is None else f"{document}#{number}"
    else:
        doc_hash = line.get("doc_hash")
        name = doc_hash[:16] if isinstance(doc_hash, str) else hash_of(line.get("doc"))
        keys = (line.get(key) for key in ("doc_id", "doc_hash", "prompt_hash"))
        cluster = next((key for key in keys if key is not None), name)
    return f"{name} {target[:8]}", prompt[:16], f"{cluster}"


def hash_of(value: Any) -> str:
    """Return the SHA-256 of a value's JSON, in hex digits."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _numbers(line: dict[str, Any], names: list[str]) -> list[tuple[str, float, float]]:
    """Return each score, loss and note of a sample, as `MEASURED`."""
    numbers = []
    for name in names:
        if name in NOTES or name.endswith("_stderr"):
            continue
        value = line.get(name)
        denominator = 1.0
        if isinstance(value, list) and len(value) == 2:  # a loss, and what it is divided by
            denominator = finite(value[1]) or 0.0
            value = value[0]
        numerator = finite(value)
        if numerator is None or denominator <= 0:
            continue
        if numerator < 0 and length_of(name) is not None:
            continue  # RULER's sign for a question of another length
        if name in LOG_LIKELIHOODS:
            numerator = abs(numerator)
        numbers.append((name, numerator, denominator))
    return numbers + [(name, value, 1.0) for name, value in notes_of(line).items()]


def notes_of(line: dict[str, Any]) -> dict[str, float]:
    """Return how a question was asked and answered, as far as a sample says: tokens, and 0 or 1.

    A closed-ended task of this package describes its prompt in the document and its answer in
    `filtered_resps`. Fields that a sweep wrote into the sample come before both.
    """
    prompt = object_of(object_of(line.get("doc")).get("prompt"))
    fields = {**prompt, **marks_in(line.get("filtered_resps")), **line}
    head = prompt.get("kept_head")
    tail = prompt.get("kept_tail")
    if isinstance(head, int) and isinstance(tail, int):
        fields["kept_tokens"] = head + tail
    notes = {}
    for name in NOTES:
        value = fields.get(name)
        if isinstance(value, int | float):
            notes[name] = float(value)
    return notes


LOG_LIKELIHOODS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
"""Metrics whose samples hold log-likelihoods in lm-eval's tasks, and nats in this package's."""
