"""The verdict: what the results say of each model and method, in sentences.

How far does it read, at what cost, and which one would I take at length N? Every number in a
sentence is a row of the compared frame, in a table and in a figure. A difference is the loss of one
method minus that of another, nats/token; the sentences say `higher loss` or `lower loss`.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pandas as pd

from leval_harness.report.effective_context import (
    BROKEN,
    COST,
    DIFFERENCE,
    DIFFERS,
    HELD,
    NEAR,
    TASK,
    TASKS,
)
from leval_harness.report.labels import counted, length_label, task_label
from leval_harness.report.retrieval import retrievals
from leval_harness.results.layout import REFERENCE
from leval_tasks.common.metrics import FAMILY_OF
from leval_tasks.statistics.by_document import LEVEL
from leval_tasks.statistics.effective_context import ERROR_RATE, ERROR_RATE_OF_ONE_DOCUMENT
from leval_tasks.statistics.retrieval import LEVEL as RETRIEVED_LEVEL
from leval_tasks.statistics.retrieval import THRESHOLD

CANNOT_TELL = "?"
SWEEP = "leval-harness sweep "
MOST_NAMED = 3
"""Differences that a sentence gives in numbers; the others are counted."""

MOST_TIMES = 16
"""A method that needs more documents than so many times those read lies at the margin."""


def verdict(compared: pd.DataFrame) -> list[str]:
    """Sentences of the form `LABEL: …`; see `said`."""
    return [f"{label}: {text}" for label, text in said(compared)]


def said(compared: pd.DataFrame) -> list[tuple[str, str]]:
    """What each sentence is about, and the sentence, for each block and its methods.

    Args:
        compared: the compared frame, with the rows of `leval_harness.report.effective_context`.
    """
    found = [
        (str(block), label, text)
        for block, part in compared.groupby("block", sort=False)
        for label, text in (*_effective(part[part["task"] == TASK], part), *_others(part))
    ]
    several = len({block for block, _, _ in found}) > 1
    return [
        (", ".join(filter(None, (block * several, label))), text) for block, label, text in found
    ]


TERMS = {
    "reference": "the unmodified model, in windows of its native context length that move by half of it; "
    "the whole text where that is no longer",
    "native context length": "the longest length that the model was shipped for",
    "difference": "loss of one method minus loss of another or of the reference on the same "
    "tokens, nats/token; negative is better for the first",
    "interval": "holds the true difference in nominally 99.5% of samples of documents; six bins of "
    "position together",
    "margin": "a difference below it counts as none",
    "no degradation up to": "the end of the last bin whose interval lies below the margin",
    "degradation by": "the end of the first bin whose interval lies above the margin; it breaks "
    "near the place where the running sum of differences above the margin begins to grow",
    "cost": "the difference to the reference over the positions within the native context length",
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


Sentence = tuple[str, str]
"""What it is about, and the text."""


def _effective(rows: pd.DataFrame, part: pd.DataFrame) -> Iterator[Sentence]:
    """How far each method reads, what it costs, which one to take, what would decide the rest."""
    if rows.empty:
        return
    against, pairs = rows[rows["baseline"] == REFERENCE], rows[rows["baseline"] != REFERENCE]
    undecided = {}
    for label, of_label in against.groupby("label", sort=False):
        yield str(label), f"{'; '.join(_reads(of_label))}."
        if (times := _times_the_texts(of_label)) is not None:
            undecided[str(label)] = times
    ends = against[against["metric"].eq(BROKEN) & against["value"].notna()]
    broken = set(ends["label"])
    named = pairs[["label", "baseline"]].drop_duplicates().drop_duplicates("label", keep="last")
    for label, baseline in named.to_numpy():  # one with Resonance beside the same without it
        yield _pair(pairs[pairs["label"].eq(label) & pairs["baseline"].eq(baseline)], broken)
    yield from _to_take(pairs, set(against["label"]))
    if not against.empty:
        yield from _beyond(against)
    if undecided:
        yield _decided_by(undecided, part)
    if not against.empty:
        yield _reference(against)


def _to_take(pairs: pd.DataFrame, methods: set[str]) -> Iterator[Sentence]:
    """The method for each length: the baseline, unless others are shown to have a lower loss.

    Nothing where some method was not compared with the baseline on the same positions.
    """
    whole = pairs.groupby("baseline", sort=False).agg({"label": set, "start": "min", "end": "max"})
    whole = whole[[methods - {name} == found for name, found in whole["label"].items()]]
    if whole.empty:
        return
    baseline, (_, first, last) = str(whole.index[0]), whole.iloc[0]
    bins = pairs[pairs["start"].ne(first) | pairs["end"].ne(last)]
    edges = bins[["start", "end"]].drop_duplicates().sort_values("start")
    if edges["start"].iloc[1:].tolist() != edges["end"].iloc[:-1].tolist():
        return
    chosen: list[tuple[str, int, int]] = []
    for start, end in edges.to_numpy():
        names = _lowest(bins[bins["start"].eq(start)], baseline)
        begin = chosen.pop()[1] if chosen and chosen[-1][0] == names else start
        chosen.append((names, begin, end))
    places = ", ".join(
        f"{names} {'up' if begin == first else f'at {begin:,.0f}'} to {end:,.0f}"
        for names, begin, end in chosen
    )
    yield "to take", f"{places} ({baseline} unless another one is shown to have a lower loss)."


def _lowest(pairs: pd.DataFrame, baseline: str) -> str:
    """The methods of one bin that are shown to be below the baseline, and not above each other."""
    against = pairs[pairs["baseline"] == baseline]
    lower = [*against.loc[against["diff_high"] < 0, "label"]]
    among = pairs[pairs["baseline"].isin(lower) & pairs["label"].isin(lower)]
    higher = {*among.loc[among["diff_low"] > 0, "label"]}
    higher |= {*among.loc[among["diff_high"] < 0, "baseline"]}
    return " or ".join(each for each in lower if each not in higher) or baseline


def _row(rows: pd.DataFrame, metric: str) -> pd.Series:
    return rows[rows["metric"] == metric].iloc[0]


def _open(rows: pd.DataFrame) -> pd.Series | None:
    """The bin that leaves open how far a method reads; None where that is decided."""
    found = rows[rows["metric"] == DIFFERENCE]
    held, broken = (_row(rows, each)["value"] for each in (HELD, BROKEN))
    last = found.iloc[-1]
    return last if pd.isna(broken) and held != last["end"] else None


def _reads(rows: pd.DataFrame) -> Iterator[str]:
    """How far a method reads, where it breaks, and its cost within the native context length."""
    held, broken, near = (_row(rows, each)["value"] for each in (HELD, BROKEN, NEAR))
    last = rows[rows["metric"] == DIFFERENCE].iloc[-1]
    parts = [f"no degradation up to {held:,.0f}"] if pd.notna(held) else []
    if pd.notna(broken):
        parts.append(f"degradation by {broken:,.0f}")
    elif held == last["end"]:
        parts.append("the longest position measured")
    else:
        place = f"at {last['start']:,.0f} to {last['end']:,.0f}"
        parts.append(f"not decided{' beyond' if parts else ''}: {_loss(last)} {place}")
    yield ", ".join(parts)
    if pd.notna(broken):
        from_start = pd.isna(near)
        yield "from the first position on" if from_start else f"it breaks near {near:,.0f}"
    cost = rows[rows["metric"] == COST]
    if len(cost) and max(abs(cost["diff_low"].iloc[0]), abs(cost["diff_high"].iloc[0])) > 5e-4:
        yield _cost(cost.iloc[0])


def _cost(row: pd.Series) -> str:
    """`it costs 0.022 nats/token within the trained 8,192 (0.016 to 0.027; documents: …)`."""
    where = f"within the trained {row['trained']:,.0f}"
    if row["end"] < row["trained"]:
        where = f"up to {row['end']:,.0f}"
    if row["mark"] != DIFFERS:
        return (
            f"no cost is shown {where} ({_number(row, 'diff_low')} to {_number(row, 'diff_high')})"
        )
    gains = row["difference"] < 0
    word = "it saves" if gains else "it costs"
    documents = f"; documents: {_range(row, 'least', 'most', gains)}" if row["clusters"] > 1 else ""
    ends = _range(row, "diff_low", "diff_high", gains)
    return f"{word} {_number(row, 'difference', gains)} nats/token {where} ({ends}{documents})"


def _loss(row: pd.Series) -> str:
    """`0.169 lower loss (0.100 to 0.237)`; an interval that holds zero keeps its signs."""
    lower = row["difference"] < 0
    negated = lower and row["mark"] == DIFFERS
    size, ends = _number(row, "difference", lower), _range(row, "diff_low", "diff_high", negated)
    return f"{size} {'lower' if lower else 'higher'} loss ({ends})"


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


def _pair(pair: pd.DataFrame, broken: set[str]) -> Sentence:
    """A method against another one on the same tokens: over all, or where one breaks at the end.

    What scaling saves beyond the native context length, it costs within it: no mean of both tells which
    one to take.
    """
    whole, last = pair.iloc[0], pair.iloc[-1]
    row = last if broken & {whole["label"], whole["baseline"]} else whole
    place = "" if row is whole else f" at {row['start']:,.0f} to {row['end']:,.0f}"
    what = f"{row['label']} against {row['baseline']}{place}"
    if row["mark"] != DIFFERS:
        return what, f"no difference is shown ({_range(row, 'diff_low', 'diff_high', False)})."
    return what, f"{_loss(row)}."


def _beyond(rows: pd.DataFrame) -> Iterator[Sentence]:
    """Whether some method reads more than the reference's window past the native context length."""
    trained = rows["trained"].iloc[0]
    past = rows[(rows["metric"] == DIFFERENCE) & (rows["end"] > trained)]
    gained = past[past["diff_high"] < 0]
    window = f"the unscaled model has on the last {trained:,.0f} tokens"
    if past.empty:
        return
    if gained.empty:
        none = "no method is shown to have a lower loss on the whole text than"
        yield f"past {trained:,.0f}", f"{none} {window}."
    for label, part in gained.groupby("label", sort=False):
        places = ", ".join(
            f"{start:,.0f} to {end:,.0f}"
            for start, end in zip(part["start"], part["end"], strict=True)
        )
        yield f"{label} at {places}", f"a lower loss on the whole text than {window}."


def _reference(rows: pd.DataFrame) -> Sentence:
    """What the methods were compared with, on how many documents, and how often that errs."""
    first, longest = rows.iloc[0], rows["end"].max()
    documents = sorted({int(each) for each in rows["clusters"]})
    count = " to ".join(dict.fromkeys(f"{each}" for each in (documents[0], documents[-1])))
    trained = first["trained"]
    model = f"the unscaled model in windows of {trained:,.0f} tokens"
    if longest <= trained:
        model = (
            f"the unmodified model on the whole text (the {longest:,.0f} positions measured do not "
            f"exceed its trained {trained:,.0f})"
        )
    return "reference", (
        f"compared with {model}, {count} text{'s' * (documents[-1] > 1)}; losing less than "
        f"{first['margin']:g} nats/token counts as none; wrong in at most "
        f"{ERROR_RATE if documents[0] > 1 else ERROR_RATE_OF_ONE_DOCUMENT} of samples either way."
    )


def _times_the_texts(rows: pd.DataFrame) -> float | None:
    """How many times the documents would decide the bin that is open; None where none is.

    The half-width of an interval falls with the root of the number of documents.
    """
    row = _open(rows)
    if row is None:
        return None
    half, distance = row["diff_high"] - row["difference"], row["margin"] - row["difference"]
    return math.inf if not math.isfinite(half) or distance == 0 else (half / abs(distance)) ** 2


def _decided_by(undecided: Mapping[str, float], part: pd.DataFrame) -> Sentence:
    """The command that reads enough documents to decide, and its cost."""
    names, times = ", ".join(undecided), max(undecided.values())
    runs = part[part["task"].str.startswith(TASKS)].drop_duplicates(["run", "task"])
    read = runs.drop_duplicates("task").set_index("task")["num_docs"].fillna(1)
    if times > MOST_TIMES:
        return f"to decide {names}", "the difference lies at the margin; take another margin."
    documents = {task: math.ceil(n * max(times, 1.0001)) for task, n in read.items()}
    command = runs["command"].iloc[0]
    cost = max(1, round(_busy(runs) * max(documents[task] / n for task, n in read.items()) / 60))
    how = ", ".join(f"num_docs: {n} for {task}" for task, n in documents.items())
    if isinstance(command, str) and command.startswith(SWEEP):
        settings = (f"--set tasks.{task}.metadata.num_docs={n}" for task, n in documents.items())
        how = f"`{' '.join([command, *settings])}`"
    return f"to decide {names}", f"{how}, in about {counted(cost, 'minute')}."


def _busy(runs: pd.DataFrame) -> float:
    """Seconds in which at least one of the runs was computed; runs side by side count once."""
    total, until = 0.0, -math.inf
    known = runs.dropna(subset=["created", "seconds"]).drop_duplicates("run")
    for created, seconds in sorted(zip(known["created"], known["seconds"], strict=True)):
        start = datetime.fromisoformat(created).timestamp()
        total += max(start + seconds - max(start, until), 0.0)
        until = max(until, start + seconds)
    return total


def _others(part: pd.DataFrame) -> Iterator[Sentence]:
    """Retrieval, and how methods differ from the baseline on other tasks; not on the sample."""
    for found in retrievals(part).to_dict("records"):
        yield found["label"], f"{_retrieves(found)}."
    beside = part[main_numbers(part) & part["difference"].notna() & part["sample"].ne(True)]
    rivals = beside.groupby(["task", "name", "length"], dropna=False)["label"].transform("nunique")
    for (label, baseline), rows in beside.groupby(["label", "baseline"], sort=False):
        differs = _differs(rows, int(rivals[rows.index].max()))
        yield f"{label} against {baseline}", f"{differs}."


def _retrieves(found: Mapping[Hashable, Any]) -> str:
    """Up to where RULER's tasks are answered, of a row of `retrievals`."""
    above, threshold = found["above"], f"above {100 * THRESHOLD:.1f}%"
    asked = f"({', '.join(found['tasks'])}; {counted(found['questions'], 'question')})"
    if above == "cannot tell":
        least = math.ceil(math.log(RETRIEVED_LEVEL) / math.log(THRESHOLD))
        return f"retrieval {threshold} is not decided {asked}: it takes {least} questions a length"
    return f"retrieves {threshold} {above if above == 'nowhere' else f'up to {above}'} {asked}"


def _differs(rows: pd.DataFrame, rivals: int) -> str:
    """The differences that were found, the largest length first, and how many were not."""
    found = rows[rows["mark"] == DIFFERS].sort_values("length", ascending=False, kind="stable")
    said = [_difference(row) for _, row in found.head(MOST_NAMED).iterrows()]
    if len(found) > MOST_NAMED:
        said.append(counted(len(found) - MOST_NAMED, "further difference"))
    few = int((rows["mark"] == CANNOT_TELL).sum())
    if same := len(rows) - len(found) - few:
        said.append(f"no difference is shown in {counted(same, 'comparison')}")
    if few:  # sign flips over documents give no p below 2 / 2 ** documents
        least = math.ceil(1 + math.log2(rivals / LEVEL))
        said.append(f"not decided in {counted(few, 'comparison')}: it takes {least} documents")
    return "; ".join(said)


def higher(row: pd.Series) -> bool:
    """Whether higher is better; so where it is unknown."""
    known = row["higher_is_better"]
    return bool(pd.isna(known) or known)


def _difference(row: pd.Series) -> str:
    """`4.2 points worse on Coursera at 8K (−6.1 to −2.3)`; of losses nats/token."""
    is_loss = row["kind"] == "loss"
    times, digits, unit = (1.0, 3, "nats/token") if is_loss else (100.0, 1, "points")
    if not is_loss and row["unit"] != "share":
        times, digits, unit = 1.0, 3, str(row["metric"])
    better = (row["difference"] > 0) == (not is_loss and higher(row))
    sign = 1 if row["difference"] > 0 else -1
    ends = sorted(sign * times * row[end] for end in ("diff_low", "diff_high"))
    low, high = (f"{end:.{digits}f}".replace("-", "−") for end in ends)
    size = f"{times * abs(row['difference']):.{digits}f} {unit}"
    word = "better" if better else "worse"
    if is_loss:
        word = "lower loss" if better else "higher loss"
    where = f"on {task_label(row['task'])} at {length_label(row['length'])}"
    return f"{size} {word} {where} ({low} to {high})"
