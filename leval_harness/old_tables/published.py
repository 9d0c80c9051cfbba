"""The numbers that the paper printed, from `published.yaml`.

They come from other prompts, another scorer version and fine-tuned checkpoints. They stand beside
our numbers, marked, and are never ranked or tested against them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from leval_harness.analysis.posgen import ceiling
from leval_harness.old_results.posgen import SUBTASKS
from leval_harness.old_tables.model import (
    METHOD,
    Block,
    Cell,
    Column,
    Row,
    Table,
    number_cell,
    ranked,
)
from leval_harness.yaml_files import read_yaml
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import PUBLISHED, Name, Pair, Reading, published_pairs

SOURCE = "published: printed in arXiv 2403.00071v2, {}; not run here, not ranked against our rows"

_PRINTED = read_yaml(Path(__file__).parents[1] / "published.yaml")
TABLE_1: Mapping[str, Sequence[tuple[float, float]]] = _PRINTED["table_1"]
"""PosGen out-of-distribution accuracy, %: mean and variance over 5 seeds."""
PUBLISHED_MODULUS = 17
TABLE_2: Mapping[str, Mapping[str, tuple[int, *tuple[float, ...]]]] = _PRINTED["table_2"]
"""L-Eval closed-ended, %, by model: context in K, the six tasks, and the average as printed."""
TASKS = ("Coursera", "GSM", "QuALITY", "TOEFL", "CodeU", "SFiction", "Avg.")
CEILING = f"{ceiling(PUBLISHED_MODULUS):.1f}%"
"""Semi-recursive accuracy without the far token, under the paper's modulus."""
BELOW_CEILING = (
    f"Semi-recursive: a model that never uses the far token reaches {CEILING}; all four values lie "
    "below"
)


def published_accuracy(encoding: Name, subtask: Subtask) -> float:
    """The paper's out-of-distribution accuracy, %, of one of its four encodings."""
    row = dict(zip(PUBLISHED, TABLE_1.values(), strict=True))[encoding]
    return dict(zip(SUBTASKS, row, strict=True))[subtask][0]


def published_of(pair: Pair, subtask: Subtask) -> float | None:
    """The paper's number for a pair in one of the two readings, %; None if it is in neither."""
    for reading in get_args(Reading):
        for name, each in published_pairs(reading).items():
            if each == pair:
                return published_accuracy(name, subtask)
    return None


def published_tables(
    models: Iterable[str], tasks: Iterable[str], wanted: bool | None
) -> list[Table]:
    """The paper's tables that belong beside runs of some models and tasks.

    `wanted` is True for both tables, False for none, None for those that match.
    """
    if wanted is False:
        return []
    sizes = list(TABLE_2) if wanted else sizes_of(models)
    tables = [_table_2(sizes)] if sizes else []
    if wanted or any(task.startswith("posgen_") for task in tasks):
        tables.append(_table_1())
    return tables


def sizes_of(models: Iterable[str]) -> list[str]:
    """The paper's models among some models, however LLaMA 2 chat is spelt."""
    sizes = set()
    for model in models:
        name = re.sub(r"[^a-z0-9]", "", model.lower())
        if "llama2" in name and (size := re.search("13b", name) or re.search("7b", name)):
            sizes.add(f"LLaMA2-Chat {size[0].upper()}")
    return [size for size in TABLE_2 if size in sizes]


def _table_1() -> Table:
    columns = [
        ranked([number_cell(mean, stderr=variance) for mean, variance in column])
        for column in zip(*TABLE_1.values(), strict=True)
    ]
    rows = tuple(
        Row((Cell(method, mark=" †"), *cells), "published", method)
        for method, *cells in zip(TABLE_1, *columns, strict=True)
    )
    return Table(
        "Published: PosGen out-of-distribution accuracy, % (the paper's Table 1)",
        (Column("Method", numeric=False), *map(Column, SUBTASKS.values())),
        (Block("2-layer Transformer, 64 to 256 (published)", rows),),
        (f"† {SOURCE.format('Table 1')}", "±: variance over 5 seeds, as printed", BELOW_CEILING),
    )


def _table_2(models: Iterable[str]) -> Table:
    columns = [METHOD, Column("Ctx", kind="length")]
    columns += [Column(task, kind="average" if task == "Avg." else "task") for task in TASKS]
    noise = "Printed without standard errors; the sets are small, so most of these differences are "
    return Table(
        "Published: L-Eval closed-ended, % (the paper's Table 2)",
        tuple(columns),
        tuple(published_block(model, columns) for model in models),
        (f"† {SOURCE.format('Table 2')}", noise + "within noise"),
    )


def published_block(model: str, columns: Sequence[Column]) -> Block:
    """The paper's rows of a model of `TABLE_2` below such columns, with a dash for other tasks."""
    lengths, *scores = zip(*TABLE_2[model].values(), strict=True)
    cells = {
        task: ranked([number_cell(score) for score in column])
        for task, column in zip(TASKS, scores, strict=True)
    }
    rows = []
    for at, (method, length) in enumerate(zip(TABLE_2[model], lengths, strict=True)):
        numbers = (cells[c.label][at] if c.label in cells else Cell("–") for c in columns[2:])
        row = (Cell(method, mark=" †"), Cell(f"{length}K"), *numbers)
        rows.append(Row(row, "published", method, length * 1024))
    return Block(f"{model} (published)", tuple(rows))
