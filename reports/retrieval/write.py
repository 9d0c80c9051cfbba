"""Write data and tables of this report from a finished sweep: `python write.py RESULTS`."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

import leval_harness as lh
from leval_harness.report.formats import markdown
from leval_harness.report.tables import build_tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from generated import fill  # noqa: E402

COLUMNS = ["model", "label", "task", "metric", "length", "value", "low", "high", "n", "seconds"]
TITLES = ("Retrieval length", "Needle")
"""What the titles of the tables of retrieval begin with."""


def sign_test(results: Any) -> str:
    """Return how many needles YaRN finds at fewer lengths than no scaling, and at more.

    It takes the lengths with the most needles, which are the same ones at each of them.
    """
    rows = results.samples[results.samples["metric"].str.startswith("accuracy@")]
    place = rows["document"].str.split("-", n=1, expand=True)  # length, then depth and number
    found = pd.DataFrame(
        {
            "method": rows["run"].map(results.runs.set_index("run")["method"]),
            "length": place[0].astype(int),
            "needle": place[1],
            "found": rows["num"],
        }
    ).pivot_table(index="needle", columns=["length", "method"], values="found")
    needles = found.count().groupby("length").min()
    lengths = needles.index[needles == needles.max()]
    by_method = found[lengths].T.groupby("method").sum().T
    difference = by_method["yarn"] - by_method["rope"]
    fewer, more = int((difference < 0).sum()), int((difference > 0).sum())
    p_value = binomtest(fewer, fewer + more).pvalue
    return (
        f"{len(difference)} needles at {', '.join(f'{length:,}' for length in lengths)} tokens: "
        f"{fewer} are found at fewer lengths with yarn than with rope, {more} at more "
        f"(sign test, p = {p_value:.3f})."
    )


def main() -> None:
    """Fill the tables, and write the scores of each length and depth as CSV."""
    (folder,) = sys.argv[1:]
    results = lh.load(folder)
    frame = results.to_pandas()
    columns = [column for column in COLUMNS if column in frame]
    frame[columns].to_csv(HERE / "data" / "gemma3.csv", index=False, float_format="%.5f")
    of_needles = [table for table in build_tables(frame) if table.title.startswith(TITLES)]
    tables = "\n".join(map(markdown, of_needles)).strip()
    text = f"\n```text\n{results.verdict().strip()}\n```\n\n{tables}\n\n{sign_test(results)}\n\n"
    measured = frame[["method", "length", "seconds"]].dropna().drop_duplicates()
    seconds = [
        f"{row.method} {row.length:,.0f}: {row.seconds:,.0f}" for row in measured.itertuples()
    ]
    fill(HERE / "README.md", {"gemma3": f"{text}Seconds of each run: {'; '.join(seconds)}.\n"})


if __name__ == "__main__":
    main()
