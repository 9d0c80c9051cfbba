"""The verdict: what the results say of each model and method, in sentences.

How far does it read, at what price, and which one would I take at length N? Every number in a
sentence is a row of the compared frame, in a table and in a figure. A difference is the loss of one
method minus that of another, nats a token; the sentences say `better` or `worse` for its sign.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime

import pandas as pd

from leval_harness.effective import BROKEN, DIFFERENCE, DIFFERS, HELD, NEAR, PRICE, TASK, TASKS
from leval_harness.layout import YARDSTICK
from leval_harness.names import counted, length_label, task_label
from leval_tasks.metrics import FAMILY_OF

CANNOT_TELL = "?"
SWEEP = "leval-harness sweep "
MOST_NAMED = 3
"""Differences that a sentence gives in numbers; the others are counted."""

MOST_TIMES = 16
"""A method that needs more texts than so many times those read lies at the margin."""


def verdict(compared: pd.DataFrame) -> list[str]:
    """Sentences of the form `LABEL: …`; see `said`."""
    return [f"{label}: {text}" for label, text in said(compared)]


def said(compared: pd.DataFrame) -> list[tuple[str, str]]:
    """What each sentence is about, and the sentence, for each block and its methods.

    Args:
        compared: the compared frame, with the rows of `leval_harness.effective`.
    """
    found = {
        str(block): [*_effective(part[part["task"] == TASK], part), *_others(part)]
        for block, part in compared.groupby("block", sort=False)
    }
    found = {block: sentences for block, sentences in found.items() if sentences}
    parts = [
        (block if len(found) > 1 else "", *each.split(": ", 1))
        for block, sentences in found.items()
        for each in sentences
    ]
    return [(", ".join(filter(None, (block, label))), text) for block, label, text in parts]


TERMS = {
    "yardstick": "the model as shipped, in windows of its trained length that move by half of it; "
    "the whole text where that is no longer",
    "trained length": "the longest length that the model was shipped for",
    "difference": "loss of one method minus loss of another or of the yardstick on the same "
    "tokens, nats a token; negative is better for the first",
    "interval": "holds the true difference in nominally 99.5% of samples of texts; six bins of "
    "position together",
    "margin": "a difference below it counts as none",
    "no degradation up to": "the end of the last bin whose interval lies below the margin",
    "degradation by": "the end of the first bin whose interval lies above the margin; it breaks "
    "near the place where the running sum of differences above the margin begins to grow",
    "price": "the difference to the yardstick over the positions within the trained length",
}
"""The words of a verdict, each defined once."""

PRIMARY = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1")
"""Metrics of which the first that one of our tasks has is its main number."""

CURVES = ("token_perplexity", "paper_perplexity")


def main_numbers(compared: pd.DataFrame) -> pd.Series:
    """Whether each number stands in tables: of our tasks the main one, of others all.

    Of several models bits per byte stand beside token perplexities, which cannot be compared.
    """
    ours = compared["task"].isin(list(FAMILY_OF))
    place = compared["metric"].map({name: at for at, name in enumerate(PRIMARY)})
    first = place.groupby([compared["run"], compared["task"]]).transform("min")
    curves = (*CURVES, *(("bits_per_byte",) if compared["block"].eq("").any() else ()))
    chosen = (place.notna() & place.eq(first)) | compared["metric"].isin(curves)
    of_group = compared["group"].eq(True).fillna(False).astype(bool)
    effective = compared["task"].str.startswith(TASK)
    is_one = compared["name"].notna() & ~effective & (~ours | (chosen & ~of_group))
    return is_one.fillna(False).astype(bool)


def lines(sentences: list[str]) -> str:
    """The verdict as it is printed: a sentence a line."""
    return "".join(f"- {each}\n" for each in sentences)


def _effective(rows: pd.DataFrame, part: pd.DataFrame) -> Iterator[str]:
    """How far each method reads, what it costs, how methods differ, what would decide the rest."""
    if rows.empty:
        return
    against = rows[rows["baseline"] == YARDSTICK]
    undecided = {}
    for label, of_label in against.groupby("label", sort=False):
        yield f"{label}: {'; '.join(_reads(of_label))}."
        if (times := _times_the_texts(of_label)) is not None:
            undecided[str(label)] = times
    ends = against[against["metric"].eq(BROKEN) & against["value"].notna()]
    broken = set(ends["label"])
    for _, pair in rows[rows["baseline"] != YARDSTICK].groupby(["label", "baseline"], sort=False):
        yield _pair(pair, broken)
    if not against.empty:
        yield from _beyond(against)
    if undecided:
        yield _decided_by(undecided, part)
    if not against.empty:
        yield _yardstick(against)


def _row(rows: pd.DataFrame, metric: str) -> pd.Series:
    return rows[rows["metric"] == metric].iloc[0]


def _open(rows: pd.DataFrame) -> pd.Series | None:
    """The bin that leaves open how far a method reads; None where that is decided."""
    found = rows[rows["metric"] == DIFFERENCE]
    held, broken = (_row(rows, each)["value"] for each in (HELD, BROKEN))
    last = found.iloc[-1]
    return last if pd.isna(broken) and held != last["end"] else None


def _reads(rows: pd.DataFrame) -> Iterator[str]:
    """How far a method reads, where it breaks, and its price within the trained length."""
    held, broken, near = (_row(rows, each)["value"] for each in (HELD, BROKEN, NEAR))
    last = rows[rows["metric"] == DIFFERENCE].iloc[-1]
    parts = [f"no degradation up to {held:,.0f}"] if pd.notna(held) else []
    if pd.notna(broken):
        parts.append(f"degradation by {broken:,.0f}")
    elif held == last["end"]:
        parts.append("the longest position measured")
    else:
        open_one = f"{last['start']:,.0f} to {last['end']:,.0f} {_loses(last)}"
        parts.append(f"not decided{' beyond' if parts else ''}: {open_one}")
    yield ", ".join(parts)
    if pd.notna(broken):
        from_start = pd.isna(near)
        yield "from the first position on" if from_start else f"it breaks near {near:,.0f}"
    price = rows[rows["metric"] == PRICE]
    if len(price) and max(abs(price["diff_low"].iloc[0]), abs(price["diff_high"].iloc[0])) > 5e-4:
        yield _price(price.iloc[0])


def _price(row: pd.Series) -> str:
    """`it costs 0.022 nats a token within the trained 8,192 (0.016 to 0.027; texts: …)`."""
    where = f"within the trained {row['trained']:,.0f}"
    if row["end"] < row["trained"]:
        where = f"up to {row['end']:,.0f}"
    if row["mark"] != DIFFERS:
        return (
            f"no price is shown {where} ({_number(row, 'diff_low')} to {_number(row, 'diff_high')})"
        )
    gains = row["difference"] < 0
    word = "it saves" if gains else "it costs"
    texts = f"; texts: {_range(row, 'least', 'most', gains)}" if row["clusters"] > 1 else ""
    ends = _range(row, "diff_low", "diff_high", gains)
    return f"{word} {_number(row, 'difference', gains)} nats a token {where} ({ends}{texts})"


def _loses(row: pd.Series) -> str:
    """`loses 0.018 (−0.015 to 0.051)`."""
    ends = f"{_number(row, 'diff_low')} to {_number(row, 'diff_high')}"
    return f"loses {_number(row, 'difference')} ({ends})"


def _number(row: pd.Series, name: str, negated: bool = False) -> str:
    """One number of a row, with a digit more where its difference is below 0.01."""
    if not math.isfinite(row[name]):
        return "unknown"
    digits = 3 if abs(row["difference"]) >= 0.0095 else 4
    text = f"{-row[name] if negated else row[name]:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def _range(row: pd.Series, low: str, high: str, negated: bool) -> str:
    """Two numbers of a row from the lower to the higher one."""
    first, second = (high, low) if negated else (low, high)
    return f"{_number(row, first, negated)} to {_number(row, second, negated)}"


def _pair(pair: pd.DataFrame, broken: set[str]) -> str:
    """A method against another one on the same tokens: over all, or where one breaks at the end.

    What scaling saves beyond the trained length, it costs within it: no mean of both tells which
    one to take.
    """
    whole, last = pair.iloc[0], pair.iloc[-1]
    row = last if broken & {whole["label"], whole["baseline"]} else whole
    place = "" if row is whole else f" at {row['start']:,.0f} to {row['end']:,.0f}"
    what = f"{row['label']} against {row['baseline']}{place}, same tokens"
    if row["mark"] != DIFFERS:
        ends = f"{_number(row, 'diff_low')} to {_number(row, 'diff_high')}"
        return f"{what}: no difference is shown ({ends})."
    better = row["difference"] < 0
    size, ends = _number(row, "difference", better), _range(row, "diff_low", "diff_high", better)
    return f"{what}: {'better' if better else 'worse'} by {size} ({ends})."


def _beyond(rows: pd.DataFrame) -> Iterator[str]:
    """Whether some method reads more than the yardstick's window past the trained length."""
    trained = rows["trained"].iloc[0]
    past = rows[(rows["metric"] == DIFFERENCE) & (rows["end"] > trained)]
    gained = past[past["diff_high"] < 0]
    window = f"its last {trained:,.0f} tokens by the unscaled model"
    if past.empty:
        return
    if gained.empty:
        yield (
            f"all methods: nowhere past {trained:,.0f} is the whole text shown to be read better "
            f"than {window}."
        )
    for label, part in gained.groupby("label", sort=False):
        places = ", ".join(
            f"{start:,.0f} to {end:,.0f}"
            for start, end in zip(part["start"], part["end"], strict=True)
        )
        yield f"{label}: at {places} the whole text is read better than {window}."


def _yardstick(rows: pd.DataFrame) -> str:
    """What the methods were compared with, on how many texts, and how often that errs."""
    first, longest = rows.iloc[0], rows["end"].max()
    texts = sorted({int(each) for each in rows["clusters"]})
    count = " to ".join(dict.fromkeys(f"{each}" for each in (texts[0], texts[-1])))
    trained = first["trained"]
    model = f"the unscaled model in windows of {trained:,.0f} tokens"
    if longest <= trained:
        model = (
            f"the model as shipped on the whole text (the {longest:,.0f} positions measured do not "
            f"exceed its trained {trained:,.0f})"
        )
    return (
        f"yardstick: compared with {model}, {count} text{'s' * (texts[-1] > 1)}; losing less than "
        f"{first['margin']:g} nats a token counts as none; wrong in at most 2.5% of samples either "
        "way."
    )


def _times_the_texts(rows: pd.DataFrame) -> float | None:
    """How many times the texts would decide the bin that is open; None where none is.

    The half-width of an interval falls with the root of the number of texts.
    """
    row = _open(rows)
    if row is None:
        return None
    half, distance = row["diff_high"] - row["difference"], row["margin"] - row["difference"]
    return math.inf if not math.isfinite(half) or distance == 0 else (half / abs(distance)) ** 2


def _decided_by(undecided: Mapping[str, float], part: pd.DataFrame) -> str:
    """The command that reads enough texts to decide, and its cost."""
    names, times = ", ".join(undecided), max(undecided.values())
    runs = part[part["task"].str.startswith(TASKS)].drop_duplicates(["run", "task"])
    read = runs.drop_duplicates("task").set_index("task")["num_docs"].fillna(1)
    if times > MOST_TIMES:
        return f"to decide {names}: the difference lies at the margin; take another margin."
    texts = {task: math.ceil(n * max(times, 1.0001)) for task, n in read.items()}
    command = runs["command"].iloc[0]
    cost = max(1, round(_busy(runs) * max(texts[task] / n for task, n in read.items()) / 60))
    how = ", ".join(f"num_docs: {n} for {task}" for task, n in texts.items())
    if isinstance(command, str) and command.startswith(SWEEP):
        settings = (f"--set tasks.{task}.metadata.num_docs={n}" for task, n in texts.items())
        how = f"`{' '.join([command, *settings])}`"
    return f"to decide {names}: {how}, in about {counted(cost, 'minute')}."


def _busy(runs: pd.DataFrame) -> float:
    """Seconds in which at least one of the runs was computed; runs side by side count once."""
    total, until = 0.0, -math.inf
    known = runs.dropna(subset=["created", "seconds"]).drop_duplicates("run")
    for created, seconds in sorted(zip(known["created"], known["seconds"], strict=True)):
        start = datetime.fromisoformat(created).timestamp()
        total += max(start + seconds - max(start, until), 0.0)
        until = max(until, start + seconds)
    return total


def _others(part: pd.DataFrame) -> Iterator[str]:
    """How methods differ from the baseline on other tasks; the bundled sample decides nothing."""
    beside = part[main_numbers(part) & part["difference"].notna() & part["sample"].ne(True)]
    for (label, baseline), rows in beside.groupby(["label", "baseline"], sort=False):
        yield f"{label} against {baseline}: {_differs(rows)}."


def _differs(rows: pd.DataFrame) -> str:
    """The differences that were found, the largest length first, and how many were not."""
    found = rows[rows["mark"] == DIFFERS].sort_values("length", ascending=False, kind="stable")
    said = [_difference(row) for _, row in found.head(MOST_NAMED).iterrows()]
    if len(found) > MOST_NAMED:
        said.append(counted(len(found) - MOST_NAMED, "further difference"))
    few = int((rows["mark"] == CANNOT_TELL).sum())
    if same := len(rows) - len(found) - few:
        said.append(f"no difference is shown in {counted(same, 'comparison')}")
    if few:
        said.append(f"too few documents in {counted(few, 'comparison')}")
    return "; ".join(said)


def higher(row: pd.Series) -> bool:
    """Whether higher is better; so where it is unknown."""
    known = row["higher_is_better"]
    return bool(pd.isna(known) or known)


def _difference(row: pd.Series) -> str:
    """`4.2 points worse on Coursera at 8K (−6.1 to −2.3)`; of losses nats a token."""
    is_loss = row["kind"] == "loss"
    times, digits, unit = (1.0, 3, "nats a token") if is_loss else (100.0, 1, "points")
    if not is_loss and row["unit"] != "share":
        times, digits, unit = 1.0, 3, str(row["metric"])
    better = (row["difference"] > 0) == (not is_loss and higher(row))
    sign = 1 if row["difference"] > 0 else -1
    ends = sorted(sign * times * row[end] for end in ("diff_low", "diff_high"))
    low, high = (f"{end:.{digits}f}".replace("-", "−") for end in ends)
    size = f"{times * abs(row['difference']):.{digits}f} {unit}"
    where = f"on {task_label(row['task'])} at {length_label(row['length'])}"
    return f"{size} {'better' if better else 'worse'} {where} ({low} to {high})"
