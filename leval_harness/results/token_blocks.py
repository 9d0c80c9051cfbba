"""Losses of the documents that effective-context tasks read, in blocks of tokens.

A document is read in full under a method, and by the reference: the unmodified model, in sliding
windows of its native context length. A sweep keeps the losses of tokens beside its results, and the
reference is a run of its own. lm-eval alone makes both reads in one run, both under the method of
that run, and keeps sums over blocks in its samples: the windows of a run of the unmodified model are
then the reference of the runs under a method. `leval_tasks.statistics.effective_context` divides
losses into blocks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from leval_harness.results.layout import LOSSES_OF, REFERENCE
from leval_tasks.statistics.effective_context import block_sums, clipped_difference

Floats = npt.NDArray[np.float64]

FULL = "full"
"""The read of a whole document in one pass."""

BLOCK_COLUMNS = ("start", "tokens", FULL, REFERENCE, "difference")
"""Names of the numbers in each block of a sample, in the order in which tasks write them."""


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """One document that a run read.

    Attributes:
        run: number of the run in the frame `runs`.
        task: name of the task.
        document: name of the document within the task.
        digest: hash of the document's tokens.
        blocks: sums over the blocks of its sample by the names of `BLOCK_COLUMNS`, nats, `[B]`
            each; NaN where the run did not make that read.
        losses: read -> file with the loss of each token from the first block's start on.
    """

    run: int
    task: str
    document: str
    digest: str
    blocks: dict[str, Floats]
    losses: dict[str, Path]

    @property
    def last_position(self) -> int:
        """Return the number of tokens up to the end of the last block, BOS counted."""
        return int(self.blocks["start"][0] + self.blocks["tokens"].sum())

    def token_losses(self, read: str) -> Floats | None:
        """Return the losses of the document's tokens in one read.

        Args:
            read: `full` or `reference`.

        Returns:
            nats, float64, `[T]`; None where the losses of tokens were not kept.

        Raises:
            ValueError: the file is damaged, or holds another number of tokens than the document.
        """
        path = self.losses.get(read)
        if path is None:
            return None
        losses = np.load(path, allow_pickle=False)
        tokens = int(self.blocks["tokens"].sum())
        if losses.shape != (tokens,):
            raise ValueError(f"{path}: shape {losses.shape}, but the document has {tokens} tokens")
        return losses.astype(np.float64)


def document_of_sample(
    line: Mapping[str, Any], run: int, task: str, folder: Path
) -> ReadDocument | None:
    """Return the document of a sample of an effective-context task.

    Args:
        line: the sample as lm-eval logged it.
        run: number of the run in the frame `runs`.
        task: name of the task.
        folder: where the files with the losses of tokens are looked for.

    Returns:
        the document; None where the sample holds no blocks.

    Raises:
        ValueError: the blocks of the sample are not rows of five numbers.
    """
    doc = line.get("doc")
    filtered = line.get("filtered_resps")
    rows: Any = filtered[0] if isinstance(filtered, list) and filtered else None
    if not isinstance(doc, dict) or not isinstance(rows, list) or not rows:
        return None
    table = np.array([[_number(entry) for entry in row] for row in rows])
    if table.ndim != 2 or table.shape[1] != len(BLOCK_COLUMNS):
        raise ValueError(
            f"{task}: a block of a sample has the numbers {', '.join(BLOCK_COLUMNS)}, "
            f"not an array of shape {table.shape[1:]}; evaluate the task again with this version"
        )
    document = str(doc.get("document_id"))
    files = {
        read: folder / LOSSES_OF.format(task=task, document=document, read=read)
        for read in (FULL, REFERENCE)
    }
    return ReadDocument(
        run=run,
        task=task,
        document=document,
        digest=str(doc.get("tokens_sha256")),
        blocks=dict(zip(BLOCK_COLUMNS, table.T, strict=True)),
        losses={read: file for read, file in files.items() if file.is_file()},
    )


def _number(logged: Any) -> float:
    """Return a number of a sample; lm-eval logs numbers as text, and a missing one as `None`."""
    text = str(logged)
    return np.nan if text == "None" else float(text)


def blocks_of(
    runs: pd.DataFrame,
    documents: Iterable[ReadDocument],
    native_lengths: Mapping[tuple[int, str], float],
) -> list[dict[str, Any]]:
    """Return the rows of the frame `blocks`: each full read beside the reference's read.

    The reference of a document is in its own run if that has the unmodified model, else in the
    reference run of the same model and sweep. Where neither kept any, it is the unmodified model's
    full read of a document that is not longer than the native context length, since one window then
    holds it. A run of lm-eval alone under a method takes the reference from one of the unmodified
    model. The reference of other documents is missing.

    Args:
        runs: the frame `runs`.
        documents: what all runs read.
        native_lengths: run and task -> native context length in tokens, where it is known.

    Raises:
        ValueError: a file with losses is damaged.
    """
    run_of_number = {run.run: run for run in runs.itertuples()}
    reads_of_document: dict[tuple[Any, ...], list[tuple[ReadDocument, Any]]] = {}
    for document in documents:
        run = run_of_number[document.run]
        key = (run.sweep, run.model, document.task, document.document, document.digest)
        reads_of_document.setdefault(key, []).append((document, run))
    shared = _shared_references(reads_of_document, native_lengths)
    rows: list[dict[str, Any]] = []
    for (_, *document_key), reads in reads_of_document.items():
        reference = _reference_losses(reads, native_lengths)
        sums = shared.get(tuple(document_key))
        for document, run in reads:
            if run.method != REFERENCE:
                rows += _block_rows(document, reference, sums, is_unmodified=_is_unmodified(run))
    return rows


def _shared_references(
    reads_of_document: Mapping[tuple[Any, ...], Sequence[tuple[ReadDocument, Any]]],
    native_lengths: Mapping[tuple[int, str], float],
) -> dict[tuple[Any, ...], Floats]:
    """Return model, task, document and digest -> sums of the reference by an unmodified model.

    Args:
        reads_of_document: sweep, model, task, document and digest -> its reads.
        native_lengths: run and task -> native context length in tokens, where it is known.

    Returns:
        nats in each block, `[B]`.
    """
    shared: dict[tuple[Any, ...], Floats] = {}
    for (_, *document_key), reads in reads_of_document.items():
        for document, run in reads:
            if not _is_unmodified(run):
                continue
            sums = document.blocks[REFERENCE]
            native_length = native_lengths.get((document.run, document.task), 0)
            if document.last_position <= native_length:
                sums = document.blocks[FULL]  # one window holds the document
            if not np.isnan(sums).any():
                shared.setdefault(tuple(document_key), sums)
    return shared


def _reference_losses(
    reads: Sequence[tuple[ReadDocument, Any]], native_lengths: Mapping[tuple[int, str], float]
) -> Floats | None:
    """Return the losses of a document's tokens in the reference's windows.

    They come from the reference run, if there is one. Else an unmodified model's full read serves,
    where the document fits into one window: the reference would compute the same.

    Args:
        reads: all reads of the document in one sweep, each with its row of `runs`.
        native_lengths: run and task -> native context length in tokens, where it is known.

    Returns:
        nats, `[T]`; None if no read can be the reference.
    """
    for document, run in reads:
        if run.method == REFERENCE:
            losses = document.token_losses(REFERENCE)
            if losses is None:
                # One window holds a document of up to the native length: the run then reads it in full.
                losses = document.token_losses(FULL)
            return losses
    for document, run in reads:
        native_length = native_lengths.get((document.run, document.task), 0)
        fits_in_window = document.last_position <= native_length
        if fits_in_window and FULL in document.losses and _is_unmodified(run):
            return document.token_losses(FULL)
    return None


def _is_unmodified(run: Any) -> bool:
    """Return whether a row of `runs` used RoPE as the checkpoint ships it."""
    if isinstance(run.replaced, str):
        return False
    if not isinstance(run.rope, str):
        return True
    rope = json.loads(run.rope)
    return bool(rope.get("rope_type") == "default")


def _block_rows(
    document: ReadDocument,
    reference: Floats | None,
    shared: Floats | None,
    *,
    is_unmodified: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a document that a method read in full.

    Args:
        document: the document under the method.
        reference: losses by the reference run, `[T]`; the unmodified model's own come first.
        shared: sums of an unmodified model's reference in another run, `[B]`.
        is_unmodified: whether the run has the unmodified model, whose windows are the reference.
    """
    full = document.token_losses(FULL)
    own_reference = document.token_losses(REFERENCE)
    if own_reference is not None and is_unmodified:
        reference = own_reference
    columns = document.blocks
    if full is not None:
        columns = _sums_of_tokens(int(document.blocks["start"][0]), full, reference)
    elif not is_unmodified:
        columns = _with_reference(columns, shared)
    for values in zip(*(columns[name] for name in BLOCK_COLUMNS), strict=True):
        start, tokens, *sums = map(float, values)
        if np.isnan(sums[0]):  # the run did not read this document in full
            continue
        yield {
            "run": document.run,
            "task": document.task,
            "document": document.document,
            "digest": document.digest,
            "start": int(start),
            "tokens": int(tokens),
            **dict(zip(BLOCK_COLUMNS[2:], sums, strict=True)),
        }


def _with_reference(columns: dict[str, Floats], reference: Floats | None) -> dict[str, Floats]:
    """Return sums over blocks with the reference of another run, and the difference from it.

    Losses of tokens are not there, so that this difference is clipped in none of them.
    """
    full = columns[FULL]
    if reference is None or reference.shape != full.shape:
        reference = np.full(full.shape, np.nan)
    return {**columns, REFERENCE: reference, "difference": full - reference}


def _sums_of_tokens(start: int, full: Floats, reference: Floats | None) -> dict[str, Floats]:
    """Return the sums over blocks by the names of `BLOCK_COLUMNS`, from the losses of tokens."""
    if reference is None or reference.shape != full.shape:
        reference = np.full(full.shape, np.nan)
    full_sums, tokens = block_sums(full)
    reference_sums, _ = block_sums(reference)
    difference_sums, _ = block_sums(clipped_difference(full, reference))
    return {
        "start": start + np.cumsum(tokens) - tokens,
        "tokens": tokens,
        FULL: full_sums,
        REFERENCE: reference_sums,
        "difference": difference_sums,
    }
