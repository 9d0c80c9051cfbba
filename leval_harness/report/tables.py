"""Tables that people read: frames of texts with emphasis and notes.

Each comes from the compared frame; `leval_harness.report.formats` writes them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from leval_harness.report.best_settings import best_settings_tables
from leval_harness.report.compare import CANNOT_TELL, MOST_UNPARSED, SIGNIFICANT
from leval_harness.report.effective_context import TASK
from leval_harness.report.effective_summary import (
    EffectiveLength,
    MethodSummary,
    ModelSummary,
    bins_of,
    method_pairs,
    summary,
)
from leval_harness.report.labels import (
    BESIDE,
    CLOSED,
    POSGEN,
    is_across_models,
    length_label,
    model_and_method,
    task_label,
    task_titles,
)
from leval_harness.report.number_text import (
    IDENTICAL,
    NOTHING,
    Estimate,
    digits_of,
    number_text,
    range_of_tokens,
    tokens_text,
)
from leval_harness.report.retrieval import (
    is_at_length,
    is_needle_grid,
    needle_grids,
    retrievals,
)
from leval_harness.report.runs_table import runs_table
from leval_harness.report.score_sentences import questions_text
from leval_harness.report.selection import main_numbers
from leval_harness.report.table import BEST, NONE, QUIET, SECOND, Table
from leval_harness.report.verdict import (
    column_of_estimates,
    cost_heading,
    difference_heading,
    reference_text,
)
from leval_harness.results.layout import REFERENCE
from leval_tasks.common.metrics import FAMILY_OF, metric_of

PUBLISHED = Path(__file__).with_name("published.yaml")
SHARES = {"truncated": "Truncated, %", "unparsed": "Unparsed, %", "reached_limit": "Hit limit, %"}
LONGEST_REASON = 200
AVERAGE = "Avg."
CHANCE = "chance"
COUNTS = "n/documents"
ROWS = ["Model", "Method", "Ctx"]
"""What names a row of scores: the block, the method, and the context length of the run."""
LENGTH_COLUMNS: dict[str, Callable[[EffectiveLength], str]] = {
    "Effective context length": attrgetter("text"),
    "Native context length": attrgetter("native_text"),
    "Relative to native": attrgetter("relative_text"),
}
"""Heading -> text of an effective context length."""


def build_tables(compared: pd.DataFrame, published: bool = False) -> list[Table]:
    """Return every table that the results have rows for, the most important ones first.

    Args:
        compared: the compared frame.
        published: show the paper's rows beside the results.
    """
    main = compared[main_numbers(compared)]
    is_curve = main["task"].isin(list(FAMILY_OF)) & main["kind"].eq("loss")
    scores = main[~is_curve]
    tables = [*_model_tables(compared, main[is_curve])]
    tables += [*effective_tables(compared), *_retrieval_tables(scores)]
    tables += [*_needle_tables(compared), *best_settings_tables(compared)]
    tables += _score_tables(scores, published)
    tables += _perplexity_tables(main[is_curve])
    without_number = compared["status"].ne("done") & ~compared["method"].eq(REFERENCE)
    if without_number.any():
        tables.append(_table_of_failures(compared[without_number]))
    measured = runs_table(compared)
    if measured is not None:
        tables.append(measured)
    return tables


# ------------------------------------------------------------------ models beside each other


def _model_tables(compared: pd.DataFrame, losses: pd.DataFrame) -> Iterator[Table]:
    """Yield models beside each other: bits per byte of one text, and how far each of them reads.

    Args:
        compared: the compared frame.
        losses: its rows with perplexities and bits per byte.
    """
    if not is_across_models(compared):
        return
    bits = losses[losses["metric"] == "bits_per_byte"]
    for block, of_block in compared.groupby("block", sort=False):
        answer = summary(str(block), of_block[of_block["task"] == TASK])
        of_losses = bits[bits["block"] == block]
        if answer is not None and not of_losses.empty:
            names = model_and_method(of_block.assign(block="")).assign(label=of_block["label"])
            yield _models_table(str(block), answer, of_losses, names.drop_duplicates("label"))


def _models_table(
    block: str, answer: ModelSummary, bits: pd.DataFrame, names: pd.DataFrame
) -> Table:
    """Return the table of models and methods, with what was measured of each.

    Args:
        block: title of the settings that they share.
        answer: their effective context lengths.
        bits: their bits per byte, of one or more texts at one or more lengths.
        names: `Model`, `Method` and `label` of each.
    """
    length_of = {method.method: method.length for method in answer.methods}
    names = names[names["label"].isin({*bits["label"], *length_of})]
    labels = list(names["label"])
    index = pd.MultiIndex.from_frame(names[ROWS[:2]])

    heads = "Bits per byte ↓, " + task_titles(bits) + ", " + bits["length"].map(length_label)
    rows = bits.assign(head=heads, text=text_of(bits), css=_emphasis(bits))
    by_label = rows.groupby(["label", "head"])[["text", "css"]].last().unstack("head")
    cells = by_label["text"][list(heads.unique())].reindex(labels).fillna(NONE)
    css = by_label["css"].reindex(index=labels)

    lengths = [length_of.get(label) for label in labels]
    for head, text in LENGTH_COLUMNS.items():
        cells[head] = [NONE if length is None else text(length) for length in lengths]
    css = css.reindex(columns=cells.columns, fill_value="").fillna("").set_axis(index)
    cells = cells.set_axis(index)
    notes = [
        "Bits per byte: mean loss per byte of the same text. Effective context lengths are in each "
        "model's own tokens.",
        *_notes(bits, cells),
    ]
    title = f"Models, {block}" if block else "Models"
    return Table(title, cells, css, tuple(notes))


# ------------------------------------------------------------------ effective context length


def effective_tables(compared: pd.DataFrame) -> Iterator[Table]:
    """Yield the tables of effective context length for each model: methods down.

    The first has the lengths, losses and costs, the second the loss increase in each bin of
    positions, the third the differences between methods on the same tokens.
    """
    rows = compared[compared["task"] == TASK]
    for block, part in rows.groupby("block", sort=False):
        answer = summary(str(block), part)
        model = f", {block}" if block else ""
        pairs = method_pairs(part)
        if answer is not None:
            yield _lengths_table(answer, model)
            against_reference = part[part["baseline"] == REFERENCE]
            yield Table.plain(
                f"Loss increase over the reference by position{model}",
                _by_position(against_reference, against_reference["label"], "Method", NOTHING),
                f"Loss under the method minus loss of {reference_text(answer)}, in nats/token: "
                "positive is worse.",
                "In square brackets: 99.5% intervals, simultaneous over the positions of a method. "
                f"An increase below {answer.methods[0].margin:g} is treated as negligible. "
                f"{NOTHING}: no difference, the method is its own reference there.",
            )
        if not pairs.empty:
            yield Table.plain(
                f"Differences between methods by position{model}",
                _by_position(
                    pairs, pairs["label"] + " against " + pairs["baseline"], "Methods", IDENTICAL
                ),
                "Loss under the first method minus loss under the second on the same tokens, in "
                "nats/token: positive is worse. In square brackets: 99.5% intervals, simultaneous "
                "over the positions of a pair.",
            )


def _lengths_table(answer: ModelSummary, model: str) -> Table:
    """Return the table of the verdict with the absolute losses beside the differences."""
    methods = answer.methods
    lengths = [method.length for method in methods]
    length_columns = list(LENGTH_COLUMNS.items())
    if not answer.is_across and len({length.native for length in lengths}) == 1:
        length_columns = length_columns[:1]  # one native context length, which a heading names
    columns = {head: [text(length) for length in lengths] for head, text in length_columns}
    columns |= _loss_columns(answer)
    columns[_capitalized(cost_heading(answer))] = column_of_estimates([m.cost for m in methods])
    if any(method.documents > 1 for method in methods):
        columns["Cost of single documents"] = _cost_ranges(methods)
    if answer.baseline:
        differences = column_of_estimates([method.difference for method in methods], IDENTICAL)
        columns[_capitalized(difference_heading(answer))] = differences
    names = pd.Index([method.method for method in methods], name="Method")
    notes = [
        "Losses in nats/token. Cost: loss increase within the native context length over "
        f"{reference_text(answer)}; positive is worse. In square brackets: 99.5% intervals."
    ]
    if answer.is_across:
        notes.append(
            "Lengths and costs are in each model's own tokens, which are of different size. Models are "
            "compared by bits per byte."
        )
    return Table.plain(f"Effective context length{model}", pd.DataFrame(columns, names), *notes)


def _loss_columns(answer: ModelSummary) -> dict[str, list[str]]:
    """Return the absolute losses within and beyond the native context length.

    There are none across models: a loss per token is comparable among methods of one tokenizer.
    """
    columns: dict[str, list[str]] = {}
    if answer.is_across:
        return columns
    native = "the native context length"
    if answer.native is not None:
        native = tokens_text(answer.native)
    losses_within = [method.loss_within for method in answer.methods]
    losses_beyond = [method.loss_beyond for method in answer.methods]
    if any(loss is not None for loss in losses_within):
        columns[f"Loss within {native}"] = _losses(losses_within)
    if any(loss is not None for loss in losses_beyond):
        columns[f"Loss beyond {native}"] = _losses(losses_beyond)
    return columns


def _losses(values: Sequence[float | None]) -> list[str]:
    return [NOTHING if value is None else f"{value:.3f}" for value in values]


def _cost_ranges(methods: Sequence[MethodSummary]) -> list[str]:
    """Return the range of the documents' own costs, with the digits of the costs."""
    digits = digits_of(method.cost for method in methods)
    texts = []
    for method in methods:
        if method.cost_range is None or method.cost is None or method.cost.is_exactly_zero:
            texts.append(NOTHING)
        else:
            texts.append(" to ".join(number_text(cost, digits) for cost in method.cost_range))
    return texts


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _by_position(rows: pd.DataFrame, names: pd.Series, head: str, zero: str) -> pd.DataFrame:
    """Return the differences of each bin with their intervals: names down, positions across.

    Args:
        rows: differences of methods from one another, or from the reference.
        names: name of the row that each of them is in.
        head: heading of the names.
        zero: what is shown where a difference is exactly zero on every token.
    """
    bins = bins_of(rows).sort_values(["start", "end"], kind="stable")
    columns = {}
    for (start, end), part in bins.groupby(["start", "end"], sort=False):
        estimates = {names[index]: Estimate.of_row(row) for index, row in part.iterrows()}
        digits = digits_of(estimates.values())
        texts = {
            name: zero if estimate.is_exactly_zero else estimate.text(digits)
            for name, estimate in estimates.items()
        }
        columns[range_of_tokens(start, end)] = texts
    order = pd.Index(names.drop_duplicates(), name=head)
    return pd.DataFrame(columns).reindex(order).fillna(NOTHING)


# ------------------------------------------------------------------ retrieval


def _retrieval_tables(scores: pd.DataFrame) -> Iterator[Table]:
    """Yield how far each method retrieves in RULER's tasks, then their scores by length."""
    rows = retrievals(scores)
    for threshold, of_threshold in rows.groupby("threshold", sort=False):
        cells = model_and_method(of_threshold).assign(
            above=of_threshold["above"], Questions=of_threshold["questions"].map(questions_text)
        )
        cells = cells.rename(columns={"above": f"Above {threshold}"}).set_index(ROWS[:2])
        cells = cells.astype(str)
        css = pd.DataFrame("", cells.index, cells.columns)
        names = {task_label(task) for tasks in of_threshold["tasks"] for task in tasks}
        tasks = ", ".join(sorted(names))
        note = f"Mean over {tasks}; each statement at the 95% level."
        yield _with_model_in_title("Retrieval length", cells, css, [note])
    by_task = scores[_is_score_by_length(scores)].groupby(task_titles(scores), sort=False)
    for title, part in by_task:
        yield by_length(f"{title} by length, %", part)


def _needle_tables(compared: pd.DataFrame) -> Iterator[Table]:
    """Yield the accuracy of each method at each depth and length, with exact intervals."""
    for block, task, rows in needle_grids(compared):
        rows = rows.assign(text=text_of(rows), head=rows["length"].map(length_label))
        rows = rows.sort_values(["length", "depth"], kind="stable")
        heads = list(rows["head"].drop_duplicates())
        cells = rows.pivot_table(
            index=["label", "depth"], columns="head", values="text", aggfunc="last", sort=False
        )[heads]
        order = {label: at for at, label in enumerate(dict.fromkeys(compared["label"]))}
        cells = cells.sort_index(
            level="label", key=lambda level: level.map(order), sort_remaining=False
        )
        cells.index = pd.MultiIndex.from_tuples(
            [(label, f"{depth:g}") for label, depth in cells.index], names=["Method", "Depth, %"]
        )
        title = f"{task_label(task)} by depth and length, %"
        if block:
            title = f"{title}, {block}"
        yield Table.plain(
            title,
            cells.rename_axis(columns=None).fillna(NONE),
            "Share of the needles that were found; in brackets the exact 95% interval, where samples "
            "were logged.",
        )


def _is_score_by_length(scores: pd.DataFrame) -> pd.Series:
    """Return where a number is of one length of several: RULER's, and those of needle grids."""
    is_ruler = scores["name"].str.fullmatch(r"\d+").fillna(False).astype(bool)
    return is_ruler | is_at_length(scores)


# ------------------------------------------------------------------ scores


def _score_tables(scores: pd.DataFrame, published: bool) -> Iterator[Table]:
    """Yield a table each for L-Eval's closed-ended tasks, PosGen, and other tasks by their unit.

    Args:
        scores: rows of the compared frame that tables show.
        published: whether the paper's closed-ended scores are shown, too.
    """
    is_closed = scores["task"].isin([*CLOSED, *BESIDE])
    is_posgen = scores["task"].isin(list(POSGEN))
    if is_closed.any() or published:
        rows = None
        if published:
            rows = _published_rows()
        title = "L-Eval closed-ended, %"
        yield score_table(title, scores[is_closed], [*CLOSED, *BESIDE], rows)
    if is_posgen.any():
        title = "PosGen, out-of-distribution accuracy, %"
        yield score_table(title, scores[is_posgen], list(POSGEN))
    others = scores[~is_closed & ~is_posgen & ~_is_score_by_length(scores)]
    is_share = others["unit"].eq("share")
    if is_share.any():
        yield score_table("Other tasks, %", others[is_share], [])
    if (~is_share).any():
        yield score_table("Other tasks, in their own units", others[~is_share], [])


def score_table(
    title: str, scores: pd.DataFrame, order: Sequence[str], published: pd.DataFrame | None = None
) -> Table:
    """Return the table of scores: a row per method and context length, a column per task.

    Below them are rows of chance and of counts, then the published scores. The average of the closed
    tasks follows them where all of them were run; shares of unusual answers come last.

    Args:
        title: of the table.
        scores: rows of the compared frame.
        order: tasks in the order of their columns; others follow.
        published: rows of the paper with the columns `ROWS`, shown below and not ranked.
    """
    scores = scores.assign(text=text_of(scores), css=_emphasis(scores), head=_column_heads(scores))
    heads = _ordered_heads(scores, order)
    cells = _wide(scores, "text", "head")[heads]
    css = _wide(scores, "css", "head")[heads]
    if set(CLOSED) <= set(scores["task"]):
        average = _average(scores).reindex(cells.index)
        cells.insert(len(CLOSED), AVERAGE, average["text"].fillna(NONE))
        css.insert(len(CLOSED), AVERAGE, average["css"].fillna(""))
    for head, column in _share_columns(scores).items():
        cells[head] = column
        css[head] = ""
    for name, row in _rows_below(scores).items():
        cells.loc[("", name, ""), :] = row.reindex(cells.columns).fillna("")
        css.loc[("", name, ""), :] = QUIET
    notes = _notes(scores, cells)
    if published is not None:
        rows = published.set_index(ROWS).reindex(columns=cells.columns).astype(object).fillna(NONE)
        cells = pd.concat([cells, rows])
        css = pd.concat([css, rows.map(lambda _: QUIET)])
        notes.append("Published: arXiv 2403.00071v2, Table 2; not run here, not ranked.")
    return _with_model_in_title(title, cells, css.fillna(""), notes)


def by_length(title: str, part: pd.DataFrame) -> Table:
    """Return one number of each method at several lengths: methods down, lengths across."""
    part = part.assign(text=text_of(part), css=_emphasis(part)).sort_values("length", kind="stable")
    # The length is the column, so that runs of different context lengths share a row.
    part = part.assign(head=part["length"].map(length_label), context_length=0)
    heads = list(part["head"].drop_duplicates())
    cells = _wide(part, "text", "head")[heads].droplevel("Ctx")
    css = _wide(part, "css", "head")[heads].droplevel("Ctx")
    return _with_model_in_title(title, cells, css, _notes(part, cells))


def _perplexity_tables(losses: pd.DataFrame) -> Iterator[Table]:
    """Yield perplexities by length, one table for each task and metric."""
    by_token = losses[losses["metric"] == "token_perplexity"].set_index(["run", "task", "length"])
    for (task, metric), part in losses.groupby([task_titles(losses), "metric"], sort=False):
        if metric != "token_perplexity":
            keys = ["run", "task", "length"]
            beside = part.join(by_token["value"].rename("token_perplexity"), on=keys)
            # A paper perplexity that is the token perplexity everywhere needs no second table.
            if np.allclose(part["value"], beside["token_perplexity"], rtol=1e-9):
                continue
        name = str(metric).replace("_", " ")
        title = f"{task}: {name} by length, lower is better"
        yield by_length(title, part)


def _published_rows() -> pd.DataFrame:
    """Return the paper's Table 2 as texts, with the columns `ROWS`."""
    from resonance_vllm.common.yaml_files import read_yaml

    rows = []
    for model, methods in read_yaml(PUBLISHED)["table_2"].items():
        for method, (length, *values) in methods.items():
            scores = [f"{value:.2f}" for value in values]
            rows.append((f"{model} (published)", method, f"{length}K", *scores))
    return pd.DataFrame(rows, columns=[*ROWS, *CLOSED.values(), AVERAGE])


def _with_model_in_title(
    title: str, cells: pd.DataFrame, css: pd.DataFrame, notes: Iterable[str]
) -> Table:
    """Return a table whose model is in the title where there is only one."""
    models = set(cells.index.get_level_values("Model")) - {""}
    if len(models) == 1:
        cells = cells.droplevel("Model")
        css = css.droplevel("Model")
        title = f"{title}, {models.pop()}"
    return Table(title, cells, css, tuple(notes))


def _row_keys(scores: pd.DataFrame) -> list[pd.Series]:
    """Return the columns that name a row, see `ROWS`."""
    names = model_and_method(scores)
    length = scores["context_length"].map(length_label)
    return [names["Model"], names["Method"], length.rename("Ctx")]


def _wide(scores: pd.DataFrame, values: str, heads: str) -> pd.DataFrame:
    """Return `values` by row and by head: rows by model and context length, methods in order."""
    keys = _row_keys(scores)
    wide = scores.groupby([*keys, scores[heads]], sort=False)[values].last().unstack(heads)

    block = pd.Series(pd.factorize(scores["block"])[0], scores.index)
    positions = scores.assign(position=range(len(scores)), block_position=block)
    order_columns = ["block_position", "context_length", "position"]
    order = positions.groupby(keys, sort=False)[order_columns].min()
    rows = order.sort_values(order_columns).index
    empty = NONE if values == "text" else ""
    return wide.reindex(rows).fillna(empty).rename_axis(columns=None)


def _column_heads(scores: pd.DataFrame) -> pd.Series:
    """Return the column of each number: its task, with metric and filter where it has several."""
    head = task_titles(scores)
    for name in ("metric", "filter"):
        has_several = scores.groupby(head)[name].transform("nunique") > 1
        head = head.where(~has_several, head + " " + scores[name].fillna(""))
    return head.where(scores["higher_is_better"].ne(False), head + " ↓")


def _ordered_heads(scores: pd.DataFrame, order: Sequence[str]) -> list[str]:
    """Return the columns: first those of the tasks in `order`, then the others."""
    position = {task: at for at, task in enumerate(order)}
    positions = scores["task"].map(position).fillna(len(order))
    in_order = scores.assign(position=positions).sort_values("position", kind="stable")
    return list(in_order["head"].drop_duplicates())


def _share_columns(scores: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the shares of truncated, unparsed and cut answers over all questions of each row, %.

    A share that is zero everywhere gets no column, but for the unparsed ones, where zero is news.
    """
    columns = {}
    for share, head in SHARES.items():
        questions = scores["n"].astype(float).where(scores[share].notna())
        sums = pd.DataFrame({"share": scores[share] * questions, "questions": questions})
        of_row = sums.groupby(_row_keys(scores), sort=False).sum(min_count=1)
        percent = 100 * of_row["share"] / of_row["questions"]
        is_news = percent.gt(0).any()
        if share == "unparsed":
            is_news = percent.notna().any()
        if is_news:
            columns[head] = percent.map("{:.1f}".format).where(percent.notna(), NONE)
    return columns


def _rows_below(scores: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the rows below the scores, by column: the score of a guess, and counts.

    The counts are those of the row that was asked most questions.
    """
    rows = {}
    chance = scores.dropna(subset=["chance"]).drop_duplicates("head").set_index("head")["chance"]
    if len(chance):
        rows[CHANCE] = chance.mul(100).map("{:.1f}".format)
    most = scores.sort_values("n", ascending=False).drop_duplicates("head").set_index("head")
    questions = most["n"].astype(str)
    documents = most["clusters"].astype(str)
    counts = (questions + "/" + documents).str.replace("<NA>", NONE)
    if most["n"].notna().any() or most["clusters"].notna().any():
        rows[COUNTS] = counts
    return rows


def text_of(numbers: pd.DataFrame) -> pd.Series:
    """Return numbers with mark and standard error, shares in percent; else why there is none.

    The exact interval replaces the standard error in needle grids, and where all answers are right
    or all wrong.
    """
    if numbers.empty:
        return pd.Series(dtype=str)
    has_interval = _shows_interval(numbers)
    return numbers.assign(shows_interval=has_interval).apply(_number_text, axis=1)


def _shows_interval(numbers: pd.DataFrame) -> pd.Series:
    """Return where the exact interval of a number is shown instead of its standard error."""
    is_exact = numbers["interval"].eq("exact")
    return is_exact & (numbers["stderr"].isna() | is_needle_grid(numbers))


def _number_text(row: pd.Series) -> str:
    """Return the text of one number, `52.1* ± 1.3`; its status where it has no value."""
    if row["status"] != "done":
        return f"({row['status']})"
    scale = 1.0
    if row["unit"] == "share":
        scale = 100.0  # shown in percent
    digits = metric_of(str(row["name"]), row["task"]).decimals
    text = number_text(scale * row["value"], digits)
    if pd.notna(row["mark"]):
        text += row["mark"]
    if row["shows_interval"]:
        text += f" ({scale * row['low']:.{digits}f} to {scale * row['high']:.{digits}f})"
    elif pd.notna(row["stderr"]):
        text += f" ± {scale * row['stderr']:.{digits}f}"
    if pd.notna(row["unparsed"]) and row["unparsed"] > MOST_UNPARSED:
        text += f" [{100 * row['unparsed']:.0f}% unparsed]"
    return text


def _emphasis(numbers: pd.DataFrame) -> pd.Series:
    """Return the CSS of each number: best bold, second underlined; the sample ranks nobody."""
    ranked = numbers["rank"].where(numbers["sample"].ne(True))
    return ranked.map({1: BEST, 2: SECOND}).fillna("")


def _average(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the unweighted mean of the six tasks with its standard error, %.

    Returns:
        Columns `text` and `css`, a row for each row of the table that has all six tasks.
    """
    closed = scores[scores["task"].isin(list(CLOSED)) & scores["status"].eq("done")]
    rows = {}
    for key, part in closed.groupby(_row_keys(closed), sort=False):
        if part["task"].nunique() < len(CLOSED):
            continue
        unparsed = part["unparsed"].max()
        # A mean is not ranked where one of its tasks would not be.
        can_rank = not unparsed > MOST_UNPARSED and not part["sample"].any()
        mean = round(100 * part["value"].mean(), 10)
        text = f"{mean:.2f}"
        if part["stderr"].count() == len(CLOSED):
            # The tasks are independent: the variance of their mean is the mean variance over six.
            error = 100 * (part["stderr"] ** 2).sum() ** 0.5 / len(CLOSED)
            text += f" ± {error:.2f}"
        if unparsed > MOST_UNPARSED:
            text += f" [a task {unparsed:.0%} unparsed]"
        rows[key] = {
            "text": text,
            "ranked_mean": mean if can_rank else np.nan,
            "block": part["block"].iloc[0],
        }
    index = pd.MultiIndex.from_tuples(rows, names=ROWS)
    averages = pd.DataFrame(rows.values(), index, columns=["text", "ranked_mean", "block"])
    lengths = averages.index.get_level_values("Ctx")
    by_block = averages["ranked_mean"].astype(float).groupby([averages["block"], lengths])
    rank = by_block.rank("dense", ascending=False)
    rank = rank.where(by_block.transform("nunique") > 1)  # one mean alone is not the best
    return averages.assign(css=rank.map({1: BEST, 2: SECOND}).fillna(""))


def _notes(numbers: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """Return sentences that explain the marks, columns and rows which this table has."""
    notes = []
    marks = numbers["mark"].fillna("")
    has_interval = _shows_interval(numbers)
    if (numbers["stderr"].notna() & ~has_interval).any():
        notes.append("±: standard error, clustered by document.")
    if has_interval.any():
        notes.append("In brackets: the exact 95% interval.")
    if marks.eq(SIGNIFICANT).any():
        baselines = numbers["baseline"].dropna()
        names = ", ".join(dict.fromkeys(baselines[baselines.ne("")]))
        notes.append(f"*: significantly different from {names} on the same questions.")
    if marks.eq(CANNOT_TELL).any():
        notes.append("?: undecided, there are too few documents for a test.")
    if any("↓" in head for head in cells):
        notes.append("↓: lower is better.")
    if SHARES["unparsed"] in cells or numbers["unparsed"].gt(MOST_UNPARSED).any():
        notes.append("Unparsed: answers in which no answer to the question was found.")
    if SHARES["reached_limit"] in cells:
        notes.append("Hit limit: answers that ended at the limit of generated tokens.")
    if COUNTS in cells.index.get_level_values("Method"):
        notes.append(f"{COUNTS}: questions and the documents that they are about.")
    if numbers["sample"].eq(True).any():
        notes.append("Bundled sample: shows that everything runs, says nothing about a model.")
    return notes


def _table_of_failures(rows: pd.DataFrame) -> Table:
    """Return the runs that have no numbers, and why."""
    cells = pd.DataFrame(
        {
            **model_and_method(rows),
            "Ctx": rows["context_length"].map(length_label),
            "Task": task_titles(rows),
            "State": rows["status"],
            "Reason": rows["note"].fillna("").str[:LONGEST_REASON],
        }
    )
    return Table.plain("Without a number", cells.drop_duplicates().set_index(ROWS))
