"""Rows of a samples file: the object of each line is one question under one filter.

Anything may be missing in a row, or of another type.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_border.errors import SettingError
from leval_border.json_texts import parse_json
from leval_harness.results.fields import ResultsError, finite, open_regular, short_name
from leval_tasks.closed.definition import MARKS, marks_in

Row = Mapping[str, Any]

DESCRIBING = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
    "doc_hash", "prompt_hash", "target_hash",
}  # fmt: skip
"""What lm-eval logs of a sample beside its metrics."""

LONGEST_LINE = 64 * 2**20

NOTES = (
    *MARKS, "reached_limit", "truncated", "prompt_tokens", "document_tokens", "kept_tokens",
)  # fmt: skip
"""How a question was asked and answered, which is no score."""

DEPTHS = 10
"""Parts of a prompt that the picture of depth distinguishes."""


def parsed_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSONL file, None for a line that is none; blank lines are skipped.

    Raises:
        ResultsError: the file cannot be read.
    """
    with open_regular(path) as handle:
        try:
            while line := handle.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise ResultsError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB")
                if line.strip():
                    yield _parsed(line)
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line, "a sample")
    except SettingError:
        return None
    return row if isinstance(row, dict) else None


def rows_of_first_filter(lines: Iterable[dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """The objects among parsed lines; where several filters were logged, the first one's."""
    chosen: object = None
    for row in lines:
        if row:
            chosen = row.get("filter") if chosen is None else chosen
            if row.get("filter") == chosen:
                yield row


def document_of(row: Row) -> dict[str, Any]:
    """What a sample holds of its document and question."""
    doc = row.get("doc")
    return doc if isinstance(doc, dict) else {}


def question_key(row: Row) -> tuple[str, str, str]:
    """`(question, document, cluster)` of a sample; a plain lm-eval sample is its own document."""
    doc = document_of(row)
    document = doc.get("document_id")
    if "cluster" not in doc or not isinstance(document, str | int) or isinstance(document, bool):
        names = (row.get(name) for name in ("doc_id", "doc_hash", "prompt_hash"))
        number = short_name(f"{next((name for name in names if name is not None), None)}")
        return number, number, number
    question = doc.get("question_id")
    key = f"{document}" if question is None else f"{document}#{question}"
    return short_name(key), short_name(f"{document}"), short_name(f"{doc['cluster']}")


def question_hash(row: Row) -> str:
    """Hash of what was asked: lm-eval's own of prompt and target, else one of all that is logged.

    The question's name is part of it where a sample has one, else the document's hash.
    """
    prompt, target = row.get("prompt_hash"), row.get("target_hash")
    if isinstance(prompt, str) and isinstance(target, str):
        key, document, _ = question_key(row)
        own = key if document != f"{row.get('doc_id')}" else f"{row.get('doc_hash')}"
        return short_name(f"{own} {prompt} {target}")
    parts = [row.get(name) for name in ("doc", "target", "arguments")]
    try:
        text = json.dumps(parts, sort_keys=True)
    except (RecursionError, ValueError):
        text = f"{row.get('doc_id')}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def gold_of(row: Row) -> str | None:
    """The gold answer of a sample of ours."""
    gold = document_of(row).get("gold")
    return gold if isinstance(gold, str) else None


def responses_of(row: Row) -> list[str]:
    """The model's texts, one for each request: `resps` is a list of lists (repeats)."""
    texts = []
    requests = row.get("resps")
    for repeats in requests if isinstance(requests, list) else ():
        first = repeats[0] if isinstance(repeats, list) and repeats else repeats
        if isinstance(first, list) and first:  # a likelihood with its greedy flag
            first = first[0]
        if not isinstance(first, str):
            return []
        texts.append(first)
    return texts


def answers_of(row: Row) -> list[Any]:
    """What was read from each response; of closed-ended tasks of ours without the marks."""
    read = row.get("filtered_resps")
    items = read if isinstance(read, list) else [read]
    if marks_in(read):
        items = [each[0] if isinstance(each, list) and each else None for each in items]
    return items


def notes_of(row: Row) -> dict[str, float]:
    """Those of `NOTES` that are known of a sample.

    A closed-ended task of ours describes its prompt in the document and its answer in
    `filtered_resps`. What a sweep wrote into the sample itself comes before both.
    """
    prompt = document_of(row).get("prompt")
    found = dict(prompt) if isinstance(prompt, dict) else {}
    kept = [finite(found.get(name)) for name in ("kept_head", "kept_tail")]
    if None not in kept:
        found["kept_tokens"] = sum(each for each in kept if each)
    if isinstance(found.get("truncated"), bool):
        found["truncated"] = float(found["truncated"])
    found |= marks_in(row.get("filtered_resps")) | {n: row[n] for n in NOTES if n in row}
    numbers = {name: finite(found.get(name)) for name in NOTES}
    return {name: number for name, number in numbers.items() if number is not None}


def logged_metrics(row: Row) -> list[str]:
    """Names of the metrics that a sample logs."""
    names = row.get("metrics", [name for name in row if name not in DESCRIBING])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


@dataclass(frozen=True, slots=True)
class Needle:
    """One needle of one question: its depth in the prompt, from 0 to 1; whether it was found."""

    depth: float
    found: bool

    @property
    def part(self) -> int:
        """The part of the prompt that it lies in, the first being 0 of `DEPTHS`."""
        return min(int(self.depth * DEPTHS), DEPTHS - 1)


def needles_of(path: Path) -> Iterator[Needle]:
    """The needles of a samples file of RULER's `niah_*` tasks.

    Raises:
        ResultsError: the file cannot be read.
    """
    for row in rows_of_first_filter(parsed_lines(path)):
        yield from needles_in(row)


def needles_in(row: Row) -> Iterator[Needle]:
    """The needles of one sample of RULER's; nothing where it holds no prompt.

    A needle is an expected answer, at the place where the prompt has it. It is found where a
    response holds it, as RULER scores.
    """
    doc = document_of(row)
    prompt, wanted = doc.get("input"), doc.get("outputs")
    if not isinstance(prompt, str) or not isinstance(wanted, list):
        return
    response = " ".join(responses_of(row)).lower()
    for needle in wanted:
        place = prompt.find(needle) if isinstance(needle, str) and needle else -1
        if place >= 0:
            yield Needle(place / len(prompt), needle.lower() in response)
