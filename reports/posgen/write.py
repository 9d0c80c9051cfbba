"""PosGen's small models: the tables and figures of docs/reports/posgen.md, from rows of models.

    python benchmarks/posgen_report.py collect SETTING RUNS
    python benchmarks/posgen_report.py write

It ran as benchmarks/posgen_report.py at commit bae8158, whose readers of results it uses.

`collect` reads a folder of `leval-harness posgen train` and keeps a row a model and test in
docs/reports/data/posgen/models.csv, in the place of earlier ones of SETTING; of some models
positions.csv keeps the accuracy at each position. The rows of controls.csv come from
posgen_controls.py. `write` makes everything from these files.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from generated import fill
from leval_harness.analysis.posgen import compare_by_seed
from leval_harness.old_figures import posgen as figures
from leval_harness.old_figures.style import write_figure
from leval_harness.old_results.posgen import (
    LEARNED,
    SUBTASKS,
    Experiment,
    PosGenResult,
    PosGenRun,
    read_experiment,
)
from leval_harness.old_tables import posgen as tables
from leval_harness.old_tables.formats import load_format
from leval_harness.old_tables.model import Table
from leval_harness.old_tables.published import published_of
from leval_tasks.statistics.paired import Difference, compare_scores, holm
from posgen_controls import OTHER_BASE, OWN, read_rows

from leval_tasks.posgen.encodings import ENCODINGS, Pair, parse_pair

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/reports/posgen.md"
PAPER = ROOT / "docs/reports/resonance.md"
DATA = ROOT / "docs/reports/data/posgen"
FIGURES = ROOT / "docs/figures"
SIZE = ("width", "layers", "train_length", "length", "base", "modulus")
CURVES = ("small", "recursive", "rope")
"""Setting, sub-task and training whose curves are kept, of models that learned the rule."""
FIELDS = ("setting", *SIZE, "subtask", "seed", "trained", "tested", "within", "past")
Rows = list[dict[str, str]]


def read(name: str) -> Rows:
    """Rows of a committed file; none where there is no file."""
    return read_rows(DATA / f"{name}.csv")


def keep(name: str, fields: Sequence[str], rows: Iterable[dict[str, str]]) -> None:
    """Write a committed file."""
    with (DATA / f"{name}.csv").open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def collect(setting: str, folder: Path) -> None:
    """Keep the rows of a folder."""
    from leval_harness.training.posgen_models import read_recipe

    recipe, found = read_recipe(folder), read_experiment(folder)
    data, shape = recipe.settings("recursive"), recipe.architecture
    sizes = (shape.hidden, shape.layers, data.train_length, data.length)
    about = dict(zip(SIZE, map(str, (*sizes, f"{recipe.base:g}", data.modulus)), strict=True))
    rows, curves = [], []
    learned = found.able("recursive", parse_pair("rope"))
    for each in found.runs:
        result = each.result
        row = {
            "subtask": result.subtask,
            "seed": str(result.seed),
            **result.pair._asdict(),
        }
        scores = {"within": result.test.id_accuracy, "past": result.test.ood_accuracy}
        printed = {name: f"{value:.3f}" for name, value in scores.items()}
        rows.append({"setting": setting, **about, **row, **printed})
        if (setting, result.subtask, result.encoding) == CURVES and result.seed in learned:
            shares = " ".join(f"{value:.4g}" for value in result.test.by_position)
            curves.append({**row, **printed, "by_position": shares})
    others = [row for row in read("models") if row["setting"] != setting]
    keep("models", FIELDS, [*others, *sorted(rows, key=_order)])
    if curves:
        keep("positions", (*FIELDS[7:], "by_position"), sorted(curves, key=_order))


def _order(row: dict[str, str]) -> tuple[str, list[int], int]:
    names = list(ENCODINGS)
    pair = [names.index(row[side]) for side in ("trained", "tested")]
    return row["subtask"], pair, int(row["seed"])


def experiment(name: str, rows: Iterable[dict[str, str]]) -> Experiment:
    """Rows as what `posgen table` reads from a folder."""
    return Experiment(name, {}, tuple(PosGenRun(Path(), _result(row)) for row in rows))


def _result(row: dict[str, str]) -> PosGenResult:
    shares = [float(share) / 100 for share in row.get("by_position", "").split()]
    test = {
        "id_accuracy": float(row["within"]) / 100,
        "ood_accuracy": float(row["past"]) / 100,
        "by_position": shares,
    }
    about = {"subtask": row["subtask"], "encoding": row["trained"], "tested_with": row["tested"]}
    return PosGenResult.model_validate(
        {"schema_version": 1, **about, "seed": int(row["seed"]), "test": test}
    )


def setting(name: str) -> Experiment:
    """The models of one setting."""
    return experiment(name, (row for row in read("models") if row["setting"] == name))


INTEGERS = {
    ("resonance", "rope"): "trained and tested with RoPE",
    ("resonance_yarn", "yarn"): "trained and tested with YaRN (text)",
    (
        "resonance:resonance_yarn_code",
        "rope:yarn_code",
    ): "trained unscaled, tested with YaRN (code)",
    ("rope:resonance_yarn_code", "rope:yarn_code"): "trained with RoPE, tested with YaRN (code)",
}
"""What is compared -> where integers take the place of the method's own wavelengths."""
PAIRS = [
    (parse_pair(method), parse_pair(baseline))
    for method, baseline in (
        *INTEGERS,
        ("prime_period", "rope"),
        ("prime_period_yarn", "yarn"),
        ("prime_period:prime_period_yarn_code", "rope:yarn_code"),
        ("rope:prime_period_yarn_code", "rope:yarn_code"),
        ("prime_period", "resonance"),
        ("prime_period_yarn", "resonance_yarn"),
        ("prime_period:prime_period_yarn_code", "resonance:resonance_yarn_code"),
        ("yarn", "rope"),
        ("rope:yarn_code", "rope"),
    )
]


def crossed() -> str:
    """Trained with x tested with, over all seeds."""
    return _markdown(tables.crossed_table(setting("small")))


def pairs() -> str:
    """Methods against baselines by seed."""
    return _markdown(tables.seed_table(*compare_by_seed(setting("small"), PAIRS)))


def width() -> str:
    """One model under several tables, at twice the width."""
    same_weights = [pair for pair in PAIRS if pair[0].trained == pair[1].trained]
    return _markdown(tables.seed_table(*compare_by_seed(setting("width128"), same_weights)))


def _markdown(table: Table) -> str:
    """A table without its title, which the section has."""
    return load_format("md").text([table]).partition("\n\n")[2]


def integers() -> str:
    """Nearest integers minus the method's own wavelengths, a column a sub-task."""
    compared, _ = compare_by_seed(setting("small"), PAIRS[: len(INTEGERS)])
    columns = [SUBTASKS[subtask] for subtask in compared]
    text = f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}\n"
    for title, row in zip(INTEGERS.values(), zip(*compared.values(), strict=True), strict=True):
        found = [(each.difference, each.seeds) for each in row]
        cells = [f"{d.difference:+.1f} ({d.low:+.1f} to {d.high:+.1f}), {n}" for d, n in found]
        text += f"| {title} | {' | '.join(cells)} |\n"
    return text


CONTROLS = {
    "integer": "nearest integers",
    "prime_period": "prime periods",
    "primes": "five other tables of prime periods",
    "rational": "nearest fraction with P ≤ L",
    "random": "eight random tables of like size",
    "mirrored": "prime periods, mirrored",
    "other_base": f"{OTHER_BASE} × the base",
}


def by_setting(rows: Rows) -> list[Rows]:
    """Rows of the controls that share size, lengths, base and encoding of the training."""
    groups = defaultdict(list)
    for row in rows:
        about = ("width", "train_length", "length", "base", "subtask", "trained")
        groups[tuple(row[name] for name in about)].append(row)
    return list(groups.values())


class Tested:
    """Models of one setting under the controls: tested table -> seed -> percent past L."""

    def __init__(self, rows: Rows) -> None:
        self.about = rows[0]
        self.past: dict[str, dict[str, float]] = defaultdict(dict)
        self.learned: set[str] = set()
        for row in rows:
            self.past[row["tested"]][row["seed"]] = float(row["past"])
            if row["tested"] == OWN and float(row["within"]) >= LEARNED:
                self.learned.add(row["seed"])

    def minus_yarn(self, control: str) -> np.ndarray:
        """Of each table of a control and each learned seed, `[tables, seeds]`, points."""
        names = [each for each in self.past if each == control or each.startswith(f"{control}_")]
        seeds = sorted(self.learned, key=int)
        yarn = np.array([self.past["yarn"][seed] for seed in seeds])
        return np.array([[self.past[each][seed] for seed in seeds] for each in names]) - yarn


def _half(found: Difference) -> str:
    """A difference with half the width of its interval, which is symmetrical."""
    return f"{found.difference:+.2f} ± {found.high - found.difference:.2f}"


def _compare(apart: np.ndarray) -> Difference:
    return compare_scores(apart, np.zeros_like(apart), np.arange(len(apart)))


def controls() -> str:
    """The stated controls: each minus YaRN."""
    tested = next(Tested(rows) for rows in by_setting(read("controls")))
    apart = {name: tested.minus_yarn(name) for name in CONTROLS}
    found = {name: _compare(each.mean(0)) for name, each in apart.items()}
    adjusted = holm([each.p for each in found.values()])
    text = (
        "| Fast wavelengths in the test | Minus YaRN, points | Median | By table | p (Holm) "
        "| Wins | Losses |\n| --- | --- | ---: | --- | ---: | ---: | ---: |\n"
    )
    for (name, each), p in zip(apart.items(), adjusted, strict=True):
        means, mean = each.mean(1), each.mean(0)
        span = f"{means.min():+.1f} to {means.max():+.1f}" if len(means) > 1 else ""
        cells = (CONTROLS[name], _half(found[name]), f"{np.median(mean):+.2f}", span, f"{p:.2g}")
        text += f"| {' | '.join(cells)} | {(mean > 0).sum()} | {(mean < 0).sum()} |\n"
    return text


def settings() -> str:
    """Every setting under every control: points minus YaRN, bold where they differ after Holm."""
    columns = ["Trained with", "L", "Base", "Width", "Learned", "YaRN %", *CONTROLS.values()]
    text = f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    for rows in by_setting(read("controls")):
        tested = Tested(rows)
        seeds = sorted(tested.learned, key=int)
        found = [_compare(tested.minus_yarn(name).mean(0)) for name in CONTROLS]
        adjusted = holm([each.p for each in found])
        about = tested.about
        yarn = np.mean([tested.past["yarn"][seed] for seed in seeds])
        cells = [_trained(about["trained"]), about["train_length"], f"{float(about['base']):,g}"]
        cells += [about["width"], f"{len(seeds)} of {len(tested.past['yarn'])}", f"{yarn:.1f}"]
        for each, p in zip(found, adjusted, strict=True):
            cells.append(f"**{_half(each)}**" if p < 0.05 else _half(each))
        text += f"| {' | '.join(cells)} |\n"
    return text


def _trained(name: str) -> str:
    return ENCODINGS[name].title if name in ENCODINGS else CONTROLS[name]


def trainings() -> str:
    """Trained with a control and tested with it under YaRN, minus RoPE and YaRN, by seed."""
    groups = [Tested(rows) for rows in by_setting(read("controls"))]
    base = groups[0]
    found = []
    for each in groups:
        trained = each.about["trained"]
        if trained != "rope":
            seeds = sorted(each.learned & base.learned, key=int)
            apart = np.array([each.past[trained][s] - base.past["yarn"][s] for s in seeds])
            found.append((each, trained, apart, _compare(apart)))
    text = (
        "| Trained with, and tested with under YaRN | Learned | Pairs | Minus RoPE and YaRN, "
        "points | p (Holm) | Wins | Losses |\n| --- | ---: | ---: | --- | ---: | ---: | ---: |\n"
    )
    for (each, trained, apart, row), p in zip(found, holm([f.p for *_, f in found]), strict=True):
        learned = f"{len(each.learned)} of {len(each.past[trained])}"
        cells = (CONTROLS[trained], learned, str(len(apart)), _half(row), f"{p:.2g}")
        text += f"| {' | '.join(cells)} | {(apart > 0).sum()} | {(apart < 0).sum()} |\n"
    return text


READINGS = {
    "small": "nothing (all seeds)",
    "cycled": "`--seed-policy cycled`: tests begin like training",
    "layers6": "`--layers 6`",
    "t5": "`--kind t5 --epochs 24`",
}
READ = tuple(
    map(parse_pair, ("rope", "rope:yarn_code", "resonance", "resonance:resonance_yarn_code"))
)


def readings() -> str:
    """One choice that the paper leaves open changed at a time."""
    titles = [ENCODINGS[pair.tested].title for pair in READ]
    text = (
        f"| Changed | Learned (RoPE, Resonance) | {' | '.join(titles)} |\n| --- |{' ---: |' * 5}\n"
    )
    for name, title in READINGS.items():
        places = setting(name).places
        found = [places.get(("recursive", pair)) for pair in READ]
        learned = [f"{each.learned} of {each.seeds}" for each in found[::2] if each]
        cells = [f"{each.ood_accuracy:.1f}" if each and each.learned else "–" for each in found]
        text += f"| {title} | {', '.join(learned)} | {' | '.join(cells)} |\n"
    cells = [f"*{published_of(pair, 'recursive'):.1f}*" for pair in READ]
    return f"{text}| *published* | *5* | {' | '.join(cells)} |\n"


def single(names: Sequence[str]) -> str:
    """Every model of some settings, a row each."""
    text = "| Setting | Trained with | Tested with | Seed | Within % | Past % |\n"
    text += f"| --- | --- | --- |{' ---: |' * 3}\n"
    for row in read("models"):
        if row["setting"] in names:
            titles = [ENCODINGS[row[side]].title for side in Pair._fields]
            scores = [f"{float(row[name]):.1f}" for name in ("within", "past")]
            text += f"| {' | '.join((row['setting'], *titles, row['seed'], *scores))} |\n"
    return text


TABLES: Mapping[str, Callable[[], str]] = {
    "crossed": crossed,
    "pairs": pairs,
    "controls": controls,
    "trainings": trainings,
    "settings": settings,
    "width": width,
    "readings": readings,
    "published sizes": partial(single, ("paper", "paper-t5")),
    "semi-recursive": partial(single, ("modulus 5", "modulus 7")),
}
"""Name of a table in the report -> what makes it."""


def draw(folder: Path) -> None:
    """Draw the figures; the same rows give the same files."""
    small, curves = setting("small"), experiment("small", read("positions"))
    write_figure(partial(figures.pairs_figure, small), folder / "posgen_crossed.svg")
    write_figure(partial(figures.position_figure, curves), folder / "posgen_small_position.svg")


def write() -> None:
    """Make the tables and draw the figures."""
    fill(REPORT, {name: make() for name, make in TABLES.items()})
    fill(PAPER, {"integers": integers()})
    draw(FIGURES)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["collect", name, folder]:
            collect(name, Path(folder))
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)
