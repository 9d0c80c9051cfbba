"""The samples that lm-eval logs: the numbers of each question; documents stay in the file."""

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from leval_harness.results.token_blocks import ReadDocument, document_of_sample
from leval_tasks.closed.catalog import marks_in
from leval_tasks.common.metrics import FAMILY_OF, length_of

NOTES = ("unparsed", "thinking_unfinished", "reached_limit", "truncated", "kept_tokens",
         "document_tokens")  # fmt: skip
"""How a question was asked and answered, which is no score."""

DESCRIBING = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
    "doc_hash", "prompt_hash", "target_hash",
}  # fmt: skip
"""What lm-eval logs of a sample beside its metrics."""

ASKED = ("run", "task", "filter", "question", "prompt", "document")
MEASURED = ("metric", "num", "den")
"""Columns of the frame `samples`: of a question, and of each of its numbers."""

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:.\d]*$")

Question = tuple[tuple[Any, ...], list[tuple[str, float, float]]]
"""A question as `ASKED`, and its numbers as `MEASURED`."""


@dataclass
class TaskRead:
    """What was read of one task of a run; `excluded` has `(name, value, reason)` of the rest."""

    scores: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Question] = field(default_factory=list)
    documents: list[ReadDocument] = field(default_factory=list)
    excluded: list[tuple[str, Any, str]] = field(default_factory=list)


def number(value: Any) -> float | None:
    """A number, also one that was written as text (as lm-eval writes those of numpy)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def object_of(value: Any) -> dict[str, Any]:
    """A mapping as it is; empty for anything else."""
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> float | None:
    """`number`, where it is finite."""
    found = value if type(value) is float else number(value)
    return found if found is not None and math.isfinite(found) else None


def samples_file(results: Path, task: str) -> Path | None:
    """The file with a task's samples that was written together with a results file."""
    stamp = STAMP.search(results.stem)
    end = stamp[0] if stamp else results.stem.removeprefix("results_")
    path = results.with_name(f"samples_{task.replace('/', '_')}_{end}.jsonl")
    return path if path.is_file() else None


def sample_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of a file, in its order.

    Raises:
        OSError, ValueError: the file cannot be read, or a line is no JSON object.
    """
    with path.open("rb", buffering=2**20) as lines:
        for at, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _parsed(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {at} is no JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {at} is no JSON object")
            yield row


def _parsed(line: bytes) -> Any:
    """What a line stands for; pydantic's reader takes a third of the time for long prompts."""
    try:
        return from_json(line)
    except ValueError:  # half of a surrogate pair, which Python writes and reads
        return json.loads(line)


def read_samples(path: Path, run: int, task: str, known: dict[str, Any], read: TaskRead) -> None:
    """The numbers of each question, into `read`; documents stay in the file."""
    filters = list(dict.fromkeys(row["filter"] for row in read.scores))
    samples: list[Question] = []
    invalid: dict[str, list[bool]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    unnamed = 0
    try:
        for line in sample_lines(path):
            chosen = line.get("filter", filters[0] if len(filters) == 1 else None)
            unnamed += chosen is None
            if chosen and (names := _metrics(line)):
                question, prompt, document = _asked(line)
                times = seen[chosen, question] = seen[chosen, question] + 1
                question = question if times == 1 else f"{question} #{times}"
                asked = (run, task, chosen, question, prompt, document)
                samples.append((asked, _numbers(line, names)))
                # what lm-eval's filters write where they find no answer
                invalid[chosen].append(line.get("filtered_resps") == ["[invalid]"])
            if FAMILY_OF.get(task) == "effective_context":
                read_document = document_of_sample(line, run, task, known["folder"])
                if read_document is not None:
                    read.documents.append(read_document)
    except (OSError, ValueError) as error:
        for row in read.scores:
            row |= {"status": "malformed", "note": f"{error}"}
        return
    logged = max(map(len, invalid.values()), default=0)
    for row in read.scores if logged else ():
        if row["asked"] not in (None, logged):
            said = f"{row['asked']} samples were scored, {logged} are logged"
            row |= {"status": "malformed", "note": said}
    if unnamed:
        reason = "the samples do not say which filter they are of"
        read.excluded.append((path.name, None, reason))
    for chosen, found in invalid.items():
        of_filter = (numbers for asked, numbers in samples if asked[2] == chosen)
        if any(found):  # of other filters it is not known what they do not find
            for numbers, is_invalid in zip(of_filter, found, strict=True):
                numbers.append(("unparsed", float(is_invalid), 1.0))
    read.samples = samples


def _metrics(line: dict[str, Any]) -> list[str]:
    """Names of the metrics that a sample logs."""
    if "metrics" not in line:
        return [name for name in line if name not in DESCRIBING]
    names = line["metrics"]
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _asked(line: dict[str, Any]) -> tuple[str, str, str]:
    """Question, hash of the prompt and document of a sample.

    A question of our tasks is named by document and number, another one by the hash of its
    document, which is the same for all models; the expected answer is part of both. A plain sample
    is its own document.
    """
    doc = object_of(line.get("doc"))
    document, cluster, number = map(doc.get, ("document_id", "cluster", "question_id"))
    target, prompt = line.get("target_hash"), line.get("prompt_hash")
    target = target if isinstance(target, str) else hash_of(line.get("target"))
    prompt = prompt if isinstance(prompt, str) else hash_of(line.get("arguments"))
    if cluster is not None and isinstance(document, str | int):
        name = f"{document}" if number is None else f"{document}#{number}"
    else:
        known = line.get("doc_hash")
        name = known[:16] if isinstance(known, str) else hash_of(line.get("doc"))
        keys = (line.get(key) for key in ("doc_id", "doc_hash", "prompt_hash"))
        cluster = next((key for key in keys if key is not None), name)
    return f"{name} {target[:8]}", prompt[:16], f"{cluster}"


def hash_of(value: Any) -> str:
    """Hex digits that distinguish a value from others."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _numbers(line: dict[str, Any], names: list[str]) -> list[tuple[str, float, float]]:
    """Each score, loss and note of a sample, as `MEASURED`."""
    found = []
    for name in names:
        if name in NOTES or name.endswith("_stderr"):
            continue
        value, bottom = line.get(name), 1.0
        if isinstance(value, list) and len(value) == 2:
            value, bottom = value[0], finite(value[1]) or 0.0
        top = finite(value)
        if top is None or bottom <= 0:
            continue
        if top < 0 and length_of(name) is not None:  # RULER's sign of another length
            continue
        found.append((name, abs(top) if name in LOG_LIKELIHOODS else top, bottom))
    return found + [(name, value, 1.0) for name, value in notes_of(line).items()]


def notes_of(line: dict[str, Any]) -> dict[str, float]:
    """How a question was asked and answered, as far as a sample says: tokens, and 0 or 1.

    A closed-ended task of ours describes its prompt in the document and its answer in
    `filtered_resps`. What a sweep wrote into the sample itself comes before both.
    """
    prompt = object_of(object_of(line.get("doc")).get("prompt"))
    found = {**prompt, **marks_in(line.get("filtered_resps")), **line}
    head, tail = prompt.get("kept_head"), prompt.get("kept_tail")
    if isinstance(head, int) and isinstance(tail, int):
        found["kept_tokens"] = head + tail
    known = [(name, found[name]) for name in NOTES if name in found]
    return {name: float(each) for name, each in known if isinstance(each, (int, float))}


LOG_LIKELIHOODS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
"""Metrics whose samples hold log-likelihoods in lm-eval's tasks, and nats in ours."""
