"""The numbers the paper printed, as facts with their source (arXiv 2403.00071v2).

They come from other prompts, another scorer version and fine-tuned checkpoints: they stand beside
ours, marked, and are never ranked or tested against them.
"""

import re
from collections.abc import Iterable, Sequence

from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table, emphasis_of

SOURCE = "published: printed in arXiv 2403.00071v2, {}; not run here, not ranked against our rows"

TABLE_1 = {
    "RoPE": ((65.29, 0.43), (69.56, 0.33), (17.96, 0.03)),
    "Resonance RoPE": ((62.64, 0.15), (75.25, 0.10), (29.78, 0.07)),
    "YaRN (s=4)": ((95.93, 0.04), (98.71, 0.00), (33.70, 0.04)),
    "Resonance YaRN (s=4)": ((98.30, 0.00), (99.58, 0.00), (48.46, 0.03)),
}
"""PosGen out-of-distribution accuracy, %: mean and variance over 5 seeds."""

TABLE_2 = {
    "LLaMA2-Chat 7B": {
        "Dynamic NTK-Aware (no FT)": (32, 31.98, 32.00, 34.65, 59.11, 1.11, 36.72, 32.59),
        "NTK-Aware (s=8, no FT)": (32, 36.77, 3.00, 26.73, 34.2, 1.11, 50.78, 25.43),
        "YaRN (s=8, FT@32K, 50)": (32, 36.05, 19.00, 33.17, 50.56, 4.44, 56.25, 33.24),
        "Resonance YaRN (s=8, FT@32K, 50)": (32, 36.48, 22.00, 34.16, 55.76, 0.00, 57.03, 34.24),
        "YaRN (s=8, FT@4K, 400)": (32, 35.03, 24.00, 37.62, 57.62, 4.44, 60.94, 36.61),
        "Resonance YaRN (s=8, FT@4K, 400)": (32, 36.34, 27.00, 40.59, 56.51, 3.33, 61.72, 37.58),
    },
    "LLaMA2-Chat 13B": {
        "Dynamic NTK-Aware (no FT)": (16, 29.22, 39.00, 40.59, 63.94, 1.11, 39.84, 35.62),
        "NTK-Aware (s=4, no FT)": (16, 40.26, 21.00, 38.12, 65.43, 1.11, 46.88, 35.47),
        "YaRN (s=4, FT@16K, 100)": (16, 38.08, 39.00, 43.07, 65.43, 0.00, 63.28, 41.48),
        "Resonance YaRN (s=4, FT@16K, 100)": (16, 38.66, 39.00, 43.56, 65.06, 1.11, 62.50, 41.65),
        "YaRN (s=4, FT@4K, 400)": (16, 41.72, 34.00, 41.09, 66.91, 2.22, 48.44, 39.06),
        "Resonance YaRN (s=4, FT@4K, 400)": (16, 41.86, 35.00, 42.57, 65.80, 5.56, 48.44, 39.87),
    },
}
"""L-Eval closed-ended, %: context in K, the six tasks, and the average as printed."""

TASKS = ("Coursera", "GSM", "QuALITY", "TOEFL", "CodeU", "SFiction", "Avg.")


def size_of(model: str) -> str | None:
    """The paper's name for a LLaMA 2 chat model, whichever way it is written."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    if "llama2" not in name:
        return None
    return next((f"LLaMA2-Chat {s}" for s in ("13B", "7B") if s.lower() in name), None)


def published_tables(
    models: Iterable[str], tasks: Iterable[str], wanted: bool | None
) -> list[Table]:
    """The paper's tables that belong beside the results.

    Args:
        models: names of the models run.
        tasks: names of the tasks run.
        wanted: True for both tables, False for none, None for those that match.
    """
    if wanted is False:
        return []
    sizes = set(TABLE_2) if wanted else sizes_of(models)
    tables = [_table_2(sorted(sizes, key=list(TABLE_2).index))] if sizes else []
    if wanted or any(task.startswith("posgen_") for task in tasks):
        tables.append(_table_1())
    return tables


def sizes_of(models: Iterable[str]) -> set[str]:
    """The paper's models among some models."""
    return {size for model in models if (size := size_of(model))}


def _ranked(value: float, values: Iterable[float], spread: str = "") -> Cell:
    """A published number, ranked among its column: 1 is the highest."""
    rank = sorted(set(values), reverse=True).index(value) + 1
    return Cell(f"{value:.2f}", value, spread, "", emphasis_of(rank), rank=rank)


def published_block(model: str, columns: Sequence[Column]) -> Block:
    """The paper's rows of a model, for a table of such columns; what it has not is empty.

    Args:
        model: a key of `TABLE_2`.
        columns: of the table; those of the six tasks and of their average are filled.
    """
    rows = []
    for method, (length, *values) in TABLE_2[model].items():
        cells = []
        for column in columns:
            if column.kind == "name":
                cells.append(Cell(method, mark=" †"))
            elif column.kind == "length":
                cells.append(Cell(f"{length}K"))
            elif column.label in TASKS:
                at = TASKS.index(column.label)
                column_values = [row[1 + at] for row in TABLE_2[model].values()]
                cells.append(_ranked(values[at], column_values))
            else:
                cells.append(Cell("–"))
        rows.append(Row(tuple(cells), "published", method, length * 1024))
    return Block(f"{model} (published)", tuple(rows), published=True)


def _table_2(models: list[str]) -> Table:
    columns = [Column("Method", numeric=False, kind="name"), Column("Ctx", kind="length")]
    columns += [Column(task, kind="average" if task == "Avg." else "task") for task in TASKS]
    return Table(
        "Published: L-Eval closed-ended, % (the paper's Table 2)",
        tuple(columns),
        tuple(published_block(model, columns) for model in models),
        ("† " + SOURCE.format("Table 2"), "Printed without standard errors; the sets are small, so "
         "most of these differences are within noise"),
    )  # fmt: skip


def _table_1() -> Table:
    rows = tuple(
        Row(
            (
                Cell(method, mark=" †"),
                *(
                    _ranked(mean, [row[at][0] for row in TABLE_1.values()], f"{variance:.2f}")
                    for at, (mean, variance) in enumerate(numbers)
                ),
            ),
            "published",
            method,
        )
        for method, numbers in TABLE_1.items()
    )
    heads = (
        Column("Method", numeric=False),
        Column("Recursive"),
        Column("CoT"),
        Column("Semi-recursive"),
    )
    return Table(
        "Published: PosGen out-of-distribution accuracy, % (the paper's Table 1)", heads,
        (Block("2-layer Transformer, 64 to 256 (published)", rows, published=True),),
        ("† " + SOURCE.format("Table 1"), "±: variance over 5 seeds, as printed"),
    )  # fmt: skip
