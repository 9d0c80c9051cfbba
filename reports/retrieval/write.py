"""Write data and tables of this report from a finished sweep: `python write.py RESULTS`."""

import sys
from pathlib import Path

import leval_harness as lh
from leval_harness.report.formats import markdown
from leval_harness.report.tables import build_tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from generated import fill  # noqa: E402

COLUMNS = ["model", "label", "task", "metric", "length", "value", "low", "high", "n", "seconds"]
TITLES = ("Retrieval length", "Needle")
"""What the titles of the tables of retrieval begin with."""


def main() -> None:
    """Fill the tables, and write the scores of each length and depth as CSV."""
    (folder,) = sys.argv[1:]
    results = lh.load(folder)
    frame = results.to_pandas()
    columns = [column for column in COLUMNS if column in frame]
    frame[columns].to_csv(HERE / "data" / "gemma3.csv", index=False, float_format="%.5f")
    of_needles = [table for table in build_tables(frame) if table.title.startswith(TITLES)]
    tables = "\n".join(map(markdown, of_needles)).strip()
    text = f"\n```text\n{results.verdict().strip()}\n```\n\n{tables}\n\n"
    measured = frame[["method", "length", "seconds"]].dropna().drop_duplicates()
    seconds = [
        f"{row.method} {row.length:,.0f}: {row.seconds:,.0f}" for row in measured.itertuples()
    ]
    fill(HERE / "README.md", {"gemma3": f"{text}Seconds of each run: {'; '.join(seconds)}.\n"})


if __name__ == "__main__":
    main()
