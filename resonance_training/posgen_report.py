"""Table 1 and Figure 3 of the paper from the results of our runs, beside the published numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_tasks.posgen.sequences import SUBTASKS
from resonance_training.posgen_settings import ENCODINGS, TrainingError

LEARNED = 0.95
TITLES = {
    "recursive": "Recursive",
    "cot": "CoT",
    "semi_recursive": "Semi-recursive",
    "rope": "RoPE",
    "resonance": "Resonance RoPE",
    "yarn": "YaRN",
    "resonance_yarn": "Resonance YaRN",
}
# arXiv 2403.00071v2, Table 1: OOD accuracy in %, mean over five seeds.
PUBLISHED = {
    "rope": (65.29, 69.56, 17.96),
    "resonance": (62.64, 75.25, 29.78),
    "yarn": (95.93, 98.71, 33.70),
    "resonance_yarn": (98.30, 99.58, 48.46),
}
HEADER = ("Encoding", "Sub-task", "Seeds", "ID %", "OOD %", "± (s.d.)", "Published OOD %", "Note")


@dataclass(frozen=True)
class Row:
    """One cell of Table 1: an encoding on a sub-task, over its seeds.

    Attributes:
        id_accuracy: percent, mean over seeds, on the test set.
        ood_accuracy: percent, mean over seeds.
        deviation: standard deviation of the OOD accuracy over seeds, None with one seed.
        published: the paper's OOD accuracy in percent.
    """

    subtask: str
    encoding: str
    seeds: int
    id_accuracy: float
    ood_accuracy: float
    deviation: float | None
    published: float

    @property
    def learned(self) -> bool:
        """Whether the in-distribution accuracy lets the row be compared at all."""
        return self.id_accuracy >= 100 * LEARNED

    def cells(self, best: bool) -> list[str]:
        """The row as text, in the order of `HEADER`."""
        note = "best learned" if best else "" if self.learned else "not learned"
        spread = "–" if self.deviation is None else f"{self.deviation:.2f}"
        return [
            TITLES[self.encoding],
            TITLES[self.subtask],
            str(self.seeds),
            f"{self.id_accuracy:.2f}",
            f"{self.ood_accuracy:.2f}",
            spread,
            f"{self.published:.2f}",
            note,
        ]


def read_results(folder: Path) -> list[dict[str, Any]]:
    """All `result.json` below a folder.

    Raises:
        TrainingError: there is none, or one has a newer schema.
    """
    results = []
    for file in sorted(folder.glob("*/*/seed-*/result.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record.get("schema_version") != 1:
            raise TrainingError(
                f"{file}: schema_version {record.get('schema_version')}; allowed: 1"
            )
        results.append(record)
    if not results:
        raise TrainingError(f"{folder}: no finished PosGen run; start one with `posgen train`")
    return results


def rows(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Mean over seeds for each sub-task and encoding, in the paper's order."""
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = defaultdict(list)
    for result in results:
        groups[result["subtask"], result["encoding"]].append(result["test"])
    table = []
    for column, subtask in enumerate(SUBTASKS):
        for encoding in ENCODINGS:
            tests = groups.get((subtask, encoding), [])
            if tests:
                ood = [100 * test["ood_accuracy"] for test in tests]
                table.append(
                    Row(
                        subtask,
                        encoding,
                        len(tests),
                        statistics.mean(100 * test["id_accuracy"] for test in tests),
                        statistics.mean(ood),
                        statistics.stdev(ood) if len(ood) > 1 else None,
                        PUBLISHED[encoding][column],
                    )
                )
    return table


def cells(table: Sequence[Row]) -> list[list[str]]:
    """The table as text; in each sub-task the best row among those that learned is marked."""
    best: dict[str, float] = {}
    for row in table:
        if row.learned:
            best[row.subtask] = max(best.get(row.subtask, -math.inf), row.ood_accuracy)
    return [row.cells(row.learned and row.ood_accuracy == best[row.subtask]) for row in table]


def render(table: Sequence[Row], style: str) -> str:
    """The table as `md`, `csv` or `tex`."""
    lines = cells(table)
    if style == "csv":
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([HEADER, *lines])
        return buffer.getvalue()
    if style == "tex":
        body = [" & ".join(_tex(cell) for cell in line) + r" \\" for line in (HEADER, *lines)]
        body.insert(1, r"\midrule")
        spec = "llrrrrrl"
        return "\n".join(
            [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
        )
    ruler = ["---"] * len(HEADER)
    return "\n".join("| " + " | ".join(line) + " |" for line in (list(HEADER), ruler, *lines))


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("±", r"$\pm$").replace("–", "--")


def figure(folder: Path, target: Path) -> None:
    """Validation loss against epoch, one panel a sub-task, one line an encoding (mean of seeds)."""
    from matplotlib.figure import Figure

    results = read_results(folder)
    panels = [s for s in SUBTASKS if any(r["subtask"] == s for r in results)]
    drawing = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, subtask in zip(
        drawing.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for encoding in ENCODINGS:
            curve = _mean_curve(sorted(folder.glob(f"{subtask}/{encoding}/seed-*/metrics.csv")))
            if curve:
                axes.plot(list(curve), list(curve.values()), label=TITLES[encoding])
        axes.set(title=TITLES[subtask], xlabel="epoch", ylabel="validation loss (nats)")
    drawing.axes[0].legend(fontsize="small")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target)


def _mean_curve(files: Sequence[Path]) -> dict[float, float]:
    losses: dict[float, list[float]] = defaultdict(list)
    for file in files:
        with file.open(newline="") as stream:
            for row in csv.DictReader(stream):
                losses[float(row["epoch"])].append(float(row["validation_loss"]))
    return {epoch: statistics.mean(values) for epoch, values in sorted(losses.items())}
