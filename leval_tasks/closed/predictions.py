"""Prediction files in L-Eval's published format.

One JSON object a line, in document-then-question order, with the reference under `gt` and the
response under a key that contains `_pred`.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_tasks.closed.catalog import ENTRIES, ClosedTask
from leval_tasks.common.errors import DataError
from resonance_vllm.common.errors import SettingError, short_repr
from resonance_vllm.common.files import iter_json_lines, parse_json

SCORED = ("f1", "rouge", "exam")
"""Values of `evaluation` that the official scorer takes; a record without one is scored here."""

MOST_ODD = 0.1
"""Share of references from which on a file is that of another task."""

FIRST = 20
"""References by which a published file is known."""


@dataclass(frozen=True)
class Predictions:
    """A prediction file.

    Attributes:
        pairs: number of a record in the file, from 0 -> (response, reference).
        key: name of the field with the responses.
        dropped: lines that are not JSON, which the official scorer ignores.
        skipped: records that the official scorer does not score.
    """

    pairs: dict[int, tuple[str, str]]
    key: str
    dropped: int
    skipped: int


def read(path: Path) -> Predictions:
    """Read a prediction file.

    Raises:
        DataError: it cannot be read, holds nothing that is scored, or a record lacks response or
            reference.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}.") from error
    records: list[tuple[int, Any]] = []
    dropped = 0
    for number, line in iter_json_lines(text):
        try:
            records.append((number, parse_json(line, str(path), DataError)))
        except DataError:
            dropped += 1
    key = "…_pred"
    if records and isinstance(records[0][1], dict):
        first_record = records[0][1]
        key = next((name for name in first_record if "_pred" in name), key)
    pairs: dict[int, tuple[str, str]] = {}
    for at, (number, record) in enumerate(records):
        fields = record if isinstance(record, dict) else {}
        response = fields.get(key)
        gold = fields.get("gt")
        if not isinstance(response, str) or not isinstance(gold, str):
            raise DataError(
                f"{path}, line {number}: a record needs text under {key!r} and 'gt'; it is "
                f"{short_repr(record)}"
            )
        if fields.get("evaluation") in (None, *SCORED):
            pairs[at] = response, gold
    if not pairs:
        raise DataError(
            f"{path} holds nothing to score: {dropped} lines are not JSON, and 'evaluation' of "
            f"{len(records)} records is none of {', '.join(SCORED)}"
        )
    return Predictions(pairs, key, dropped, len(records) - len(pairs))


def refuse_other_task(task: ClosedTask, references: Sequence[str], field: str) -> None:
    """Refuse references of another task, by their form or because they are published ones.

    `references` are all of a file, in its order; `field` is how the user named the task.

    Raises:
        SettingError: names the task that they belong to, where it is known.
    """
    wrong = f"{field}: the file is not of {task.key}: "
    first = "\n".join(reference.strip() for reference in references[:FIRST])
    digest = hashlib.sha256(first.encode()).hexdigest()[:16]
    for other in ENTRIES:
        if other.first_references == digest and other is not task:
            raise SettingError(f"{wrong}its references are those of {other.key}")
    odd = _odd(task, references)
    if len(odd) >= MOST_ODD * len(references):
        fits = " or ".join(other.key for other in ENTRIES if not _odd(other, references))
        raise SettingError(
            f"{wrong}{len(odd)} of its {len(references)} references have another form, such as "
            f"{short_repr(odd[0])}" + (f"; they fit {fits}" if fits else "")
        )


def _odd(task: ClosedTask, references: Sequence[str]) -> list[str]:
    """Return the references that do not have the form of a task's."""
    return [gold for gold in references if not re.match(task.references, gold)]
