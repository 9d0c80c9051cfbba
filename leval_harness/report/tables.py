"""Tables that people read: frames of cells with marks and notes, and their formats.

Each comes from the compared frame; `leval_harness.report.formats` writes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from leval_harness.report import effective_context as effective
from leval_harness.report.compare import MOST_UNPARSED
from leval_harness.report.labels import BESIDE, CLOSED, POSGEN, length_label, task_label
from leval_harness.report.retrieval import retrievals
from leval_harness.report.verdict import main_numbers
from leval_harness.results.layout import REFERENCE
from leval_harness.results.token_blocks import REFERENCES
from leval_tasks.common.metrics import FAMILY_OF, metric_of

BEST, SECOND, QUIET = "font-weight: bold", "text-decoration: underline", "font-style: italic"
ROWS = ["Model", "Method", "Ctx"]
NONE = "–"
PUBLISHED = Path(__file__).with_name("published.yaml")
READ_MORE = "How to read this: https://OWNER.github.io/leval-harness/reference/leaderboards"
SHARES = {"truncated": "Truncated, %", "unparsed": "Unparsed, %", "reached_limit": "Hit limit, %"}
LONGEST_REASON = 200


@dataclass(frozen=True)
class Table:
    """A title, cells whose index names the rows, CSS of each run, and at most three notes."""

    title: str
    cells: pd.DataFrame
    css: pd.DataFrame
    notes: tuple[str, ...] = ()

    @classmethod
    def plain(cls, title: str, cells: pd.DataFrame, *notes: str) -> "Table":
        """A table without emphasis."""
        return cls(title, cells, pd.DataFrame("", cells.index, cells.columns), notes)


def build_tables(compared: pd.DataFrame, published: bool = False) -> list[Table]:
    """Every table that the results have rows for, the one to look at first first.

    Args:
        compared: the compared frame.
        published: show the paper's rows beside ours.
    """
    main = compared[main_numbers(compared)]
    curves = main["task"].isin(list(FAMILY_OF)) & main["kind"].eq("loss")
    scores, losses = main[~curves], main[curves]
    is_closed = scores["task"].isin([*CLOSED, *BESIDE])
    is_posgen = scores["task"].isin(list(POSGEN))
    tables = [*_effective_tables(compared), *_retrieval(scores)]
    if is_closed.any() or published:
        title, rows = "L-Eval closed-ended, %", _published() if published else None
        tables.append(score_table(title, scores[is_closed], [*CLOSED, *BESIDE], rows))
    if is_posgen.any():
        title = "PosGen, out-of-distribution accuracy, %"
        tables.append(score_table(title, scores[is_posgen], list(POSGEN)))
    others = scores[~is_closed & ~is_posgen & ~_is_length(scores)]
    for is_share, title in ((True, "Other tasks, %"), (False, "Other tasks, in their own units")):
        if len(part := others[others["unit"].eq("share") == is_share]):
            tables.append(score_table(title, part, []))
    for (task, metric), part in _curves(losses):
        title = f"{task_label(task)}: {metric.replace('_', ' ')} by length, lower is better"
        tables.append(by_length(title, part))
    stopped = compared[compared["status"].ne("done") & ~compared["method"].isin(REFERENCES)]
    return [*tables, *([_stopped(stopped)] if len(stopped) else [])]


def _curves(losses: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Perplexities by task; a paper perplexity that is everywhere the token perplexity is none."""
    by_token = losses[losses["metric"] == "token_perplexity"].set_index(["run", "task", "length"])
    for (task, metric), part in losses.groupby(["task", "metric"], sort=False):
        same = part.join(by_token["value"].rename("token"), on=["run", "task", "length"])["token"]
        if metric == "token_perplexity" or not np.allclose(part["value"], same, rtol=1e-9):
            yield (str(task), str(metric)), part


def _effective_tables(compared: pd.DataFrame) -> Iterator[Table]:
    """The intervals that the verdict is read off, and those of methods on the same tokens."""
    rows = compared[compared["task"] == effective.TASK]
    for block, part in rows.groupby("block", sort=False):
        of_block = f", {block}" if block else ""
        against = part[part["baseline"] == REFERENCE]
        if len(against):
            title = f"Effective context length{of_block}"
            first = against.iloc[0]
            notes = (
                f"Loss minus the reference's (the unmodified model, windows of "
                f"{first['trained']:,.0f} tokens), nats/token: higher is worse; below "
                f"{first['margin']:g} counts as none. In brackets: 99.5% intervals, by position "
                "together. *: the interval holds no zero",
                READ_MORE,
            )
            yield Table.plain(title, _by_position(against, against["label"]), *notes)
        pairs = part[part["baseline"] != REFERENCE]
        if len(pairs):
            names = pairs["label"] + " against " + pairs["baseline"]
            note = "Loss minus that of the other method, nats/token: negative is better"
            yield Table.plain(f"Same tokens{of_block}", _by_position(pairs, names), note)


def _by_position(rows: pd.DataFrame, names: pd.Series) -> pd.DataFrame:
    """Lengths, cost and bins of position down; methods or pairs across."""
    lengths = {
        effective.HELD: "No degradation up to",
        effective.BROKEN: "Degradation by",
        effective.NEAR: "Breaks near",
    }
    whole = rows["start"].min(), rows["end"].max()
    heads, documents = [], []
    for _, row in rows.iterrows():
        place = f"{row['start']:,.0f}–{row['end']:,.0f}"
        if row["metric"] in lengths:
            heads.append(lengths[row["metric"]])
            documents.append(NONE if pd.isna(row["value"]) else f"{row['value']:,.0f}")
            continue
        is_cost, is_all = row["metric"] == effective.COST, (row["start"], row["end"]) == whole
        heads.append(f"Cost, {place}" if is_cost else f"All, {place}" if is_all else place)
        names_of = ("difference", "diff_low", "diff_high")
        mean, low, high = (signed(row[name], row["difference"]) for name in names_of)
        documents.append(f"{mean}{row['mark']} ({low} to {high})")
    found = pd.DataFrame({"Position": heads, "name": names.to_numpy(), "text": documents})
    wide = found.pivot_table(index="Position", columns="name", values="text", aggfunc="first")
    order = list(dict.fromkeys(heads)), list(dict.fromkeys(names))
    wide = wide.reindex(index=order[0], columns=order[1]).fillna(NONE).rename_axis(columns=None)
    return wide[(wide != NONE).any(axis=1)]


def signed(number: float, size: float) -> str:
    """A number of a row whose difference is `size`: with a digit more where that is below 0.01."""
    digits = 3 if abs(size) >= 0.0095 or size == 0 else 4
    return f"{number:+.{digits}f}" if np.isfinite(number) else "?"


def _retrieval(scores: pd.DataFrame) -> Iterator[Table]:
    """RULER's tasks, whose metrics are lengths: how far each method retrieves, then the scores."""
    found = retrievals(scores)
    if len(found):
        heads = {"block": "Model", "label": "Method", "above": "Above 85.6%",
                 "questions": "Questions"}  # fmt: skip
        cells = found[list(heads)].rename(columns=heads).set_index(ROWS[:2]).astype(str)
        tasks = ", ".join(sorted({task for each in found["tasks"] for task in each}))
        yield Table.plain("Retrieval length", cells, f"Over {tasks}; at 95%. {READ_MORE}")
    for task, part in scores[_is_length(scores)].groupby("task", sort=False):
        yield by_length(f"{task_label(str(task))} by length, %", part)


def _is_length(scores: pd.DataFrame) -> pd.Series:
    return scores["name"].str.fullmatch(r"\d+").fillna(False).astype(bool)


def _published() -> pd.DataFrame:
    """The paper's Table 2 as cells."""
    from resonance_vllm.common.yaml_files import read_yaml

    rows = [
        (f"{model} (published)", method, f"{length}K", *(f"{each:.2f}" for each in values))
        for model, methods in read_yaml(PUBLISHED)["table_2"].items()
        for method, (length, *values) in methods.items()
    ]
    return pd.DataFrame(rows, columns=[*ROWS, *CLOSED.values(), "Avg."])


def score_table(
    title: str, scores: pd.DataFrame, order: Sequence[str], published: pd.DataFrame | None = None
) -> Table:
    """Methods and lengths down, tasks across, those of `order` first; then chance and counts."""
    scores = scores.assign(
        text=text_of(scores),
        css=_emphasis(scores),
        head=_heads(scores),
        place=scores["task"].map({task: at for at, task in enumerate(order)}).fillna(len(order)),
    )
    heads = scores.sort_values("place", kind="stable")["head"].drop_duplicates()
    cells, css = (_wide(scores, name, "head")[list(heads)] for name in ("text", "css"))
    if set(CLOSED) <= set(scores["task"]):
        average = _average(scores)
        for frame, name in ((cells, "text"), (css, "css")):
            empty = NONE if name == "text" else ""
            frame.insert(len(CLOSED), "Avg.", average[name].reindex(frame.index).fillna(empty))
    for share, head in SHARES.items():
        asked = scores["n"].astype(float).where(scores[share].notna())  # a share of the questions
        sums = pd.DataFrame({"share": scores[share] * asked, "n": asked})
        sums = sums.groupby(_rows(scores), sort=False).sum(min_count=1)
        by_row = (sums["share"] / sums["n"]).mul(100)
        if by_row.gt(0).any() or (share == "unparsed" and by_row.notna().any()):
            cells[head] = by_row.map("{:.1f}".format).replace("nan", NONE)
            css[head] = ""
    chance = scores.dropna(subset=["chance"]).drop_duplicates("head").set_index("head")["chance"]
    n = scores.sort_values("n", ascending=False).drop_duplicates("head").set_index("head")
    below = {"chance": chance.mul(100).map("{:.1f}".format),
             "n/documents": n["n"].astype(str) + "/" + n["clusters"].astype(str)}  # fmt: skip
    for head, row in below.items():
        if row.ne("<NA>/<NA>").any():
            at = ("", head, "")
            cells.loc[at, :] = row.reindex(cells.columns).fillna("").str.replace("<NA>", NONE)
            css.loc[at, :] = QUIET
    notes = _notes(scores, cells)
    if published is not None:
        rows = published.set_index(ROWS).reindex(columns=cells.columns).astype(object).fillna(NONE)
        cells = pd.concat([cells, rows])
        css = pd.concat([css, rows.map(lambda _: QUIET)])
        notes = (*notes[:2], "Published: arXiv 2403.00071v2, Table 2; not run here, not ranked")
    return _placed(title, cells, css.fillna(""), notes)


def by_length(title: str, part: pd.DataFrame) -> Table:
    """Methods down, context lengths across."""
    part = part.assign(text=text_of(part), css=_emphasis(part)).sort_values("length", kind="stable")
    part = part.assign(head=part["length"].map(length_label), context_length=0)
    heads = list(part["head"].drop_duplicates())
    cells, css = (_wide(part, name, "head")[heads].droplevel("Ctx") for name in ("text", "css"))
    return _placed(title, cells, css, _notes(part))


def _placed(title: str, cells: pd.DataFrame, css: pd.DataFrame, notes: Sequence[str]) -> Table:
    """A table; the model stands in its title where there is only one."""
    models = set(cells.index.get_level_values("Model")) - {""}
    if len(models) == 1:
        cells, css = (each.droplevel("Model") for each in (cells, css))
        title = f"{title}, {models.pop()}"
    return Table(title, cells, css, tuple(notes))


def _rows(scores: pd.DataFrame) -> list[pd.Series]:
    """What names a row: the block, the method, and the context length of the run."""
    length = scores["context_length"].map(length_label)
    return [scores["block"].rename("Model"), scores["label"].rename("Method"), length.rename("Ctx")]


def _wide(scores: pd.DataFrame, values: str, heads: str) -> pd.DataFrame:
    """Rows by model and context length, methods in their order."""
    rows = _rows(scores)
    grouped = scores.groupby([*rows, scores[heads]], sort=False)[values].last()
    wide = grouped.unstack(heads)
    order = scores.assign(at=range(len(scores))).groupby(rows, sort=False)
    first = order[["context_length", "at"]].min()
    blocks = {block: at for at, block in enumerate(dict.fromkeys(scores["block"]))}
    first["block"] = [blocks[key[0]] for key in first.index]
    placed = first.sort_values(["block", "context_length", "at"]).index
    return wide.reindex(placed).fillna(NONE if values == "text" else "").rename_axis(columns=None)


def _heads(scores: pd.DataFrame) -> pd.Series:
    """The column of each number: the task, with metric and filter where it has several."""
    label = scores["task"].map(task_label)
    for name in ("metric", "filter"):
        several = scores.groupby("task")[name].transform("nunique") > 1
        label = label.where(~several, label + " " + scores[name].fillna(""))
    return label.where(scores["higher_is_better"].ne(False), label + " ↓")


def text_of(numbers: pd.DataFrame) -> pd.Series:
    """A number with its mark and standard error, shares in percent; else why there is none.

    Where all answers are right, or all wrong, the exact interval stands in for the error.
    """
    return numbers.apply(_text, axis=1) if len(numbers) else pd.Series(dtype=str)


def _text(row: pd.Series) -> str:
    if row["status"] != "done":
        return f"({row['status']})"
    times = 100.0 if row["unit"] == "share" else 1.0
    digits = metric_of(str(row["name"]), row["task"]).decimals
    text = f"{times * row['value']:.{digits}f}{row['mark'] if pd.notna(row['mark']) else ''}"
    if pd.notna(row["stderr"]):
        text += f" ± {times * row['stderr']:.{digits}f}"
    elif row["interval"] == "exact":
        text += f" ({times * row['low']:.1f} to {times * row['high']:.1f})"
    if pd.notna(row["unparsed"]) and row["unparsed"] > MOST_UNPARSED:
        text += f" [{100 * row['unparsed']:.0f}% unparsed]"
    return text


def _emphasis(numbers: pd.DataFrame) -> pd.Series:
    """Best bold and second underlined; the bundled sample ranks nobody."""
    ranked = numbers["rank"].where(numbers["sample"].ne(True))
    return ranked.map({1: BEST, 2: SECOND}).fillna("")


def _average(scores: pd.DataFrame) -> pd.DataFrame:
    """Unweighted mean of the six tasks with its standard error, %, of rows that have all."""
    closed = scores[scores["task"].isin(list(CLOSED)) & scores["status"].eq("done")]
    grouped = closed.groupby(_rows(closed), sort=False)
    found = pd.DataFrame({"mean": grouped["value"].mean().mul(100).round(10)})
    found = found[grouped["task"].nunique() == len(CLOSED)]
    error = grouped["stderr"].agg(lambda each: 100 * (each**2).sum() ** 0.5 / len(CLOSED))
    error = error.where(grouped["stderr"].count() == len(CLOSED)).reindex(found.index)
    unparsed = grouped["unparsed"].max().reindex(found.index)
    few = unparsed > MOST_UNPARSED
    unsure = few | grouped["sample"].any().reindex(found.index)
    ranks = found["mean"].mask(unsure).groupby(level=["Model", "Ctx"], sort=False)
    place = ranks.rank("dense", ascending=False).where(ranks.transform("nunique") > 1)
    shown = error.map(" ± {:.2f}".format).where(error.notna(), "")
    said = unparsed.map(" [a task {:.0%} unparsed]".format).where(few, "")
    return found.assign(
        text=found["mean"].map("{:.2f}".format) + shown + said,
        css=place.map({1: BEST, 2: SECOND}).fillna(""),
    )


def _notes(numbers: pd.DataFrame, heads: Iterable[str] = ()) -> tuple[str, ...]:
    """What the marks of these numbers mean, in at most three lines."""
    marks = numbers["mark"].fillna("")
    base = ", ".join(dict.fromkeys(numbers["baseline"][numbers["baseline"].ne("")].dropna()))
    meanings = {
        "±: standard error, clustered by document": numbers["stderr"].notna().any(),
        f"*: differs from {base} on the same questions": marks.eq(effective.DIFFERS).any(),
        "?: too few documents to tell": marks.eq("?").any(),
        "↓: lower is better": any("↓" in head for head in heads),
    }
    notes = ["; ".join(text for text, holds in meanings.items() if holds)]
    if numbers["sample"].eq(True).any():
        notes.append("Bundled sample: shows that everything runs, says nothing about a model")
    return (*filter(None, notes), READ_MORE)


def _stopped(stopped: pd.DataFrame) -> Table:
    """Runs that have no numbers, and why."""
    cells = pd.DataFrame({
        "Model": stopped["block"], "Method": stopped["label"],
        "Ctx": stopped["context_length"].map(length_label), "Task": stopped["task"].map(task_label),
        "State": stopped["status"], "Reason": stopped["note"].fillna("").str[:LONGEST_REASON],
    }).drop_duplicates()  # fmt: skip
    return Table.plain("Without a number", cells.set_index(ROWS))
