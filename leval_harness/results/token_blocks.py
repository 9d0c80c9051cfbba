"""Losses of the documents that effective-context tasks read, over blocks of 64 tokens.

A text is read in full under a method, and by the reference: the unmodified model, in windows of
its native context length. A sweep keeps the losses of tokens beside its results, and the reference has a
run of its own; lm-eval alone has both reads in one run, and sums over blocks in its samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from leval_harness.results.layout import LOSSES_OF, SHORT_WINDOWS
from leval_tasks.statistics.effective_context import block_sums, clipped_difference

Floats = npt.NDArray[np.float64]

REFERENCES = ("reference", SHORT_WINDOWS)
"""Methods of the run that reads windows for all methods of a model, and its name before."""

WINDOWS = ("reference", "trained")
"""The read in windows of the native context length, and its name before."""

COLUMNS = {
    5: ("start", "tokens", "full", "reference", "difference"),
    6: ("start", "tokens", "full", "short", "short_gain", "gain"),
}
"""Number of columns in the rows of a sample -> their names; six in the layout before."""


@dataclass(frozen=True, eq=False)
class ReadText:
    """One text that a run read.

    `rows` are the sums of its sample by the names of `COLUMNS`, `[B]` each, NaN where a read is
    missing. `losses` are the files with nats of each token from the first row's start on.
    """

    run: int
    task: str
    text: str
    digest: str
    rows: dict[str, Floats]
    losses: dict[str, Path]

    @classmethod
    def of_sample(cls, line: dict[str, Any], run: int, task: str, folder: Path) -> "list[ReadText]":
        """The text of a sample; none where the sample has no rows.

        Raises:
            ValueError: the rows are no numbers.
        """
        doc, described = line.get("doc"), line.get("filtered_resps")
        rows: Any = described[0] if isinstance(described, list) and described else None
        if not isinstance(doc, dict) or not isinstance(rows, list) or not rows:
            return []
        # lm-eval logs numbers as text, a missing one as None
        numbers = [[np.nan if str(n) == "None" else float(str(n)) for n in row] for row in rows]
        table = np.array(numbers)
        if table.ndim != 2 or table.shape[1] not in COLUMNS:
            raise ValueError(f"{task}: rows of {table.shape[1:]} numbers are no blocks of a text")
        names = COLUMNS[table.shape[1]]
        text, digest = str(doc.get("document_id")), str(doc.get("tokens_sha256"))
        files = {
            read: folder / LOSSES_OF.format(task=task, document=text, read=read)
            for read in ("full", *WINDOWS)
        }
        kept = {read: file for read, file in files.items() if file.is_file()}
        return [cls(run, task, text, digest, dict(zip(names, table.T, strict=True)), kept)]

    def tokens_of(self, read: str) -> Floats | None:
        """Losses of its tokens in a read, nats `[T]`; None where they were not kept.

        Raises:
            ValueError: the file is damaged, or of another length than the text.
        """
        path = self.losses.get(read)
        if path is None:
            return None
        losses = np.load(path, allow_pickle=False)
        if losses.shape != (int(self.rows["tokens"].sum()),):
            raise ValueError(f"{path}: shape {losses.shape} is not that of the text")
        return losses.astype(np.float64)


def blocks_of(runs: pd.DataFrame, documents: Iterable[ReadText]) -> list[dict[str, Any]]:
    """Rows of the frame `blocks`: every full read beside the reference's read of the same tokens.

    The reference of a text is in its own run, else in the reference run of the same model and
    sweep, else it is the model's full read unmodified (where no window was needed).
    """
    about = {row.run: row for row in runs.itertuples()}
    same: dict[tuple[Any, ...], list[tuple[ReadText, Any]]] = {}
    for text in documents:
        run = about[text.run]
        key = (run.sweep, run.model, text.task, text.text, text.digest)
        same.setdefault(key, []).append((text, run))
    rows: list[dict[str, Any]] = []
    for reads in same.values():
        reference = _reference(reads)
        for text, run in reads:
            if run.method not in REFERENCES:
                rows += _rows(text, reference)
    return rows


def _reference(reads: Sequence[tuple[ReadText, Any]]) -> Floats | None:
    """Losses of a text's tokens by its reference `[T]`; None where they were not kept.

    Up to the end of the first window both reads are the same; before schema 2 only the full one
    was kept there.
    """
    own = [text for text, run in reads if run.method in REFERENCES]
    shipped = [
        text for text, run in reads if not isinstance(run.rope, str) or '"default"' in run.rope
    ]
    windows = next((text.tokens_of(n) for text in own for n in WINDOWS if n in text.losses), None)
    full = next(
        (text.tokens_of("full") for text in (*own, *shipped) if "full" in text.losses), None
    )
    if windows is None or full is None or full.shape != windows.shape:
        return full if windows is None else windows
    return np.where(np.isnan(windows), full, windows)


def _rows(text: ReadText, reference: Floats | None) -> Iterator[dict[str, Any]]:
    """Blocks of one text that a method read in full; its own read in windows comes first."""
    full = text.tokens_of("full")
    own = next((text.tokens_of(name) for name in WINDOWS if name in text.losses), None)
    reference = reference if own is None else own
    start = int(text.rows["start"][0])
    columns: dict[str, npt.NDArray[Any]]
    if full is None:  # only sums were kept
        columns = {name: text.rows[name] for name in ("start", "tokens", "full")}
        columns["reference"] = text.rows.get("reference", np.full(len(columns["full"]), np.nan))
        columns["difference"] = (
            text.rows["difference"] if "difference" in text.rows else -text.rows["gain"]
        )
    else:
        same = reference is not None and reference.shape == full.shape
        compared = reference if same and reference is not None else np.full(full.shape, np.nan)
        full_sums, tokens = block_sums(full)
        columns = {
            "start": start + np.cumsum(tokens) - tokens,
            "tokens": tokens,
            "full": full_sums,
            "reference": block_sums(compared)[0],
            "difference": block_sums(clipped_difference(full, compared))[0],
        }
    names = {"run": text.run, "task": text.task, "document": text.text, "digest": text.digest}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if not np.isnan(row["full"]):
            yield {**names, **row, "start": int(row["start"]), "tokens": int(row["tokens"])}
