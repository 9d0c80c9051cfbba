"""Prediction files in L-Eval's published format: read and score.

One JSON object a line, in document-then-question order, with the reference under `gt` and the
response under a key that contains `_pred`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from leval_tasks.closed import scoring
from leval_tasks.errors import PredictionError


@dataclass(frozen=True)
class Predictions:
    """A prediction file.

    Attributes:
        pairs: (response, reference) of each record, in file order.
        key: the key that held the responses.
        dropped: lines that are not JSON; they are left out, as the official scorer does.
    """

    pairs: tuple[tuple[str, str], ...]
    key: str
    dropped: int


def read(path: Path) -> Predictions:
    """Read a prediction file.

    Raises:
        PredictionError: it cannot be read, is empty, or a record lacks response or reference.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PredictionError(f"{path} is not UTF-8 text: {error}.") from error
    except OSError as error:
        raise PredictionError(f"{path} cannot be read: {error.strerror or error}.") from error
    pairs: list[tuple[str, str]] = []
    key, dropped = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            dropped += 1
            continue
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise PredictionError(f"{where}: a JSON object is needed, not {type(row).__name__}.")
        if not key:
            key = next((name for name in row if "_pred" in name), "")
            if not key:
                raise PredictionError(
                    f"{where}: no key contains '_pred', so there is no response; the record has "
                    f"{', '.join(sorted(row)) or 'no keys'}."
                )
        pairs.append((_text(row, key, where), _text(row, "gt", where)))
    if not pairs:
        lines = f"; {dropped} lines are not JSON" if dropped else ""
        raise PredictionError(f"{path} is empty: it holds no record{lines}.")
    return Predictions(tuple(pairs), key, dropped)


def _text(row: dict[str, object], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        found = "is missing" if key not in row else f"is {type(value).__name__}, not text"
        raise PredictionError(f"{where}: the field {key!r} {found}.")
    return value


def score(rule: str, predictions: Predictions) -> scoring.Summary:
    """Official score of a prediction file; fractions 0..1."""
    return scoring.summarise(
        rule, [scoring.judge(rule, response, gold) for response, gold in predictions.pairs]
    )
