"""Collect what docs/reports/methods.md is made from, out of the results of a sweep.

    leval-harness sweep methods_smollm2 --set metadata.data_dir=DATA
    python benchmarks/methods_data.py results/methods_smollm2 16k

The second argument names a file of docs/reports/data/methods: sums over blocks of 512 tokens of a
text, nats of the full read, and gains over the windows of the unscaled model, clipped token by
token. A method of a fine-tuned checkpoint is named METHOD_tuned; its gains are over the windows of
the checkpoint that was fine-tuned without scaling. `needles` has a row for each question
of RULER and takes several folders.
"""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from leval_harness.layout import CELL, DONE, SHORT_WINDOWS

from leval_tasks.statistics.effective_context import block_sums, clipped_gain

DATA = Path(__file__).resolve().parents[1] / "docs/reports/data/methods"
COLUMNS = ("method", "corpus", "text", "start", "tokens", "full", "gain", "trained_gain")
NEEDLE_COLUMNS = ("method", "length", "question", "score")
UNSCALED = "rope"
TUNED = "_tuned"


def cells(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Finished cells of a sweep with their requests."""
    for done in sorted(folder.glob(f"*/{DONE}")):
        yield done.parent, json.loads((done.parent / CELL).read_text(encoding="utf-8"))


def losses(folder: Path, read: str) -> dict[str, np.ndarray[Any, Any]]:
    """Nats of each token past the first window, by text."""
    found = {}
    for file in folder.glob(f"losses_*_{read}.npy"):
        text = file.stem.removeprefix("losses_").removesuffix(f"_{read}")
        found[text] = np.load(file, allow_pickle=False).astype(np.float64)
    return found


def first_position(folder: Path) -> int:
    """Where scoring begins: the start of the first block in the samples."""
    samples = next(folder.glob("samples_*.jsonl"))
    row = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    return int(float(row["filtered_resps"][0][0][0]))


def suffix(cell: Mapping[str, Any]) -> str:
    """What the method of a fine-tuned checkpoint is called in addition."""
    return TUNED if str(cell["model"]["name"]).endswith("fine-tuned") else ""


def collect(folder: Path, target: Path) -> None:
    """Write the block sums of all methods of a sweep."""
    found = list(cells(folder))
    windows: dict[str, dict[str, dict[str, Any]]] = {}
    unscaled = {c["model"]["path"] for _, c in found if c["method"]["name"] == UNSCALED}
    for place, cell in found:
        if cell["method"]["name"] == SHORT_WINDOWS and cell["model"]["path"] in unscaled:
            of_model = windows.setdefault(suffix(cell), {"short": {}, "trained": {}})
            for read in of_model:
                of_model[read] |= losses(place, read)
    rows: list[tuple[Any, ...]] = []
    for place, cell in found:
        if cell["method"]["name"] == SHORT_WINDOWS:
            continue
        begin, kind = first_position(place), suffix(cell)
        for text, full in sorted(losses(place, "full").items()):
            rows += block_rows(cell["method"]["name"] + kind, text, begin, full, windows[kind])
    save(target, COLUMNS, rows)


def collect_needles(folders: Sequence[Path], target: Path) -> None:
    """Write the score of each of RULER's questions; its metric is named by the length."""
    rows = []
    for place, cell in (each for folder in folders for each in cells(folder)):
        length = str(cell["context_length"])
        for line in next(place.glob("samples_*.jsonl")).read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            method = cell["method"]["name"] + suffix(cell)
            rows.append((method, int(length), int(question["doc_id"]), question[length]))
    save(target, NEEDLE_COLUMNS, sorted(rows))


def save(target: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a CSV file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def block_rows(
    method: str, text: str, begin: int, full: np.ndarray[Any, Any], windows: Mapping[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """Rows of the CSV of one text."""
    short = windows["short"].get(text)
    if short is None or short.shape != full.shape:
        sys.exit(f"Error: {text}: no short windows of the same tokens")
    sums, tokens = block_sums(full)
    gain, _ = block_sums(clipped_gain(short, full))
    trained = windows["trained"].get(text)
    over = clipped_gain(trained, full) if trained is not None else np.full(full.shape, np.nan)
    trained_gain, _ = block_sums(over)
    corpus = text.removeprefix("effective_context_").split("_")[0]
    start = begin + np.cumsum(tokens) - tokens
    for values in zip(start, tokens, sums, gain, trained_gain, strict=True):
        at, size, *nats = values
        shown = ("" if np.isnan(each) else f"{each:.3f}" for each in nats)
        yield (method, corpus, text.rsplit("_", 1)[-1], int(at), int(size), *shown)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [*folders, "needles"] if folders:
            collect_needles([Path(each) for each in folders], DATA / "needles.csv")
        case [folder, name]:
            collect(Path(folder), DATA / f"{name}.csv")
        case _:
            sys.exit(__doc__)
