"""Write data and tables of this report from finished sweeps: `python write.py NAME=RESULTS ...`.

NAME is that of the markers in README.md and of the file in `data`; RESULTS is a results folder.
"""

import sys
from pathlib import Path

import pandas as pd

import leval_harness as lh
from leval_harness.report.formats import markdown
from leval_harness.report.tables import effective_tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from generated import fill  # noqa: E402

COLUMNS = [
    "model", "label", "baseline", "task", "metric", "start", "end", "value", "low", "high", "n",
    "native_length", "least", "most", "seconds",
]  # fmt: skip


def times(frame: pd.DataFrame) -> str:
    """Return the run time of each method, in seconds."""
    measured = frame[["method", "seconds"]].dropna().drop_duplicates()
    return ", ".join(f"{row.method} {row.seconds:,.0f}" for row in measured.itertuples())


def main() -> None:
    """Fill the tables, and write the compared frame of each sweep as CSV."""
    for argument in sys.argv[1:]:
        name, folder = argument.split("=", 1)
        results = lh.load(folder)
        frame = results.to_pandas()
        columns = [column for column in COLUMNS if column in frame]
        data = HERE / "data" / f"{name}.csv"
        frame[columns].to_csv(data, index=False, float_format="%.5f")
        tables = "\n".join(markdown(table) for table in effective_tables(frame))
        text = f"\n```text\n{results.verdict().strip()}\n```\n\n{tables.strip()}\n\n"
        fill(HERE / "README.md", {name: f"{text}Seconds per run: {times(frame)}.\n"})


if __name__ == "__main__":
    main()
