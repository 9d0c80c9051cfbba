"""Scores with intervals, ranks and paired differences: the one frame that is shown everywhere."""

from typing import Literal

import numpy as np
import pandas as pd
from scipy import special  # its stdtrit is the quantile of Student's t; stats imports slowly

from leval_harness.report.labels import blocks, labels
from leval_harness.results.load import RUNS, SCORES, Results, column
from leval_tasks.common.metrics import metric_of
from leval_tasks.statistics.by_document import (
    LEVEL,
    clopper_pearson,
    holm,
    logit_interval,
    ratios,
    sign_flip_p,
    smallest_p,
)
from resonance_vllm.common.errors import check_choice

SIGNIFICANT, CANNOT_TELL = "*", "?"

NUMBER = ["run", "task", "name", "filter"]
"""What names a number of `scores`."""

RIVALS = ["block", "task", "name", "filter", "rival_length"]
"""What must agree before two numbers are ranked or compared; questions do too."""

SHARES = ("unparsed", "truncated", "reached_limit", "thinking_unfinished")
"""Notes of samples whose shares stand beside a number."""

MOST_UNPARSED = 0.5
"""A score of which a larger share of the answers was not parsed is not ranked."""

CUT_ELSEWHERE = "documents were cut at different places, each model at its own"
OTHER_QUESTIONS = "not ranked: other questions than those of the other rows"
REPETITION = "not ranked: a later run of the same repeats it"
UNKNOWN_DIRECTION = "not ranked: it is unknown whether higher is better"
TOKENS_DIFFER = "not ranked: tokens of two models are not the same; compare bits per byte"

COMPARED = {
    **dict.fromkeys(("block", "label", "kind", "unit"), "text"),
    **dict.fromkeys(("n", "clusters"), "Int64"),
    **dict.fromkeys(SHARES, "float64"),
    **dict.fromkeys(("low", "high"), "float64"),
    "interval": "text",
    "rank": "Int64",
    "baseline": "text",
    **dict.fromkeys(("difference", "diff_low", "diff_high"), "float64"),
    **dict.fromkeys(("p", "p_holm", "smallest_p"), "float64"),
    **dict.fromkeys(("wins", "ties", "losses"), "Int64"),
    "mark": "text",
}
"""Columns that `compare` adds to `scores` and to what `runs` says of each run, and their types.

block: title of the rows that may be ranked against each other; label: the row. kind: `score` or
`loss`. unit: `share` (from 0 to 1), `percent`, `perplexity`, `nats`, `bits` or empty. n: questions
that the samples hold, clusters: documents. unparsed, truncated, reached_limit, thinking_unfinished:
shares of the answers. stderr: clustered by document, else lm-eval's own. low, high: 95% interval.
interval: `clustered`, `exact` (binomial), `reported` (lm-eval's standard error, no ends) or `none`.
rank: 1 is best; missing where numbers cannot be ranked. baseline: label of the row that the
block is compared with. difference: to it, on the questions that both answered: fractions of scores,
nats for losses (negative is better), with the ends of its interval at 5% over the number of rows
compared. p, p_holm: of the sign-flip test over documents (McNemar's where each question is its
own document), and corrected over these rows. smallest_p: that so many documents can give. wins,
ties, losses: questions, of losses documents. mark: `*` where p_holm is below 0.05 and the interval
of the difference holds no zero; `?` where the documents are too few to tell.
"""


def compare(
    results: Results,
    baseline: str | None = None,
    across: Literal["methods", "models"] = "methods",
) -> pd.DataFrame:
    """Every number, checked against its samples, with its interval, ranked and compared.

    Args:
        results: from `load_results`.
        baseline: label to compare with in each block that has it; else the one that a sweep names,
            else the method `rope`, `none` or `default`; without any of these nothing is compared.
        across: `methods` compares the methods of each model; `models` all models that were asked
            the same questions.

    Returns:
        the columns of `scores`, of `runs` and of `COMPARED`, a row for each of `scores`.

    Raises:
        SettingError: no row has the label `baseline`, or `across` is something else.
    """
    check_choice("across", across, ("methods", "models"))
    runs = results.runs.drop(columns=["status", "note", "tasks"])
    scores = results.scores.merge(runs, on="run", how="left", validate="many_to_one")
    known = [metric_of(*each) for each in zip(*_named(scores), strict=True)]
    scores = scores.assign(
        block=blocks(scores, across),
        kind=pd.Series([each.kind for each in known], scores.index, dtype=object),
        unit=pd.Series([each.unit for each in known], scores.index, dtype=object),
    )
    scores = scores.join(labels(scores, across))
    scores["rival_length"] = scores["context_length"].where(
        scores["name"].str.contains("@", regex=False).eq(True), scores["length"]
    )
    scores = _in_one_unit(_with_shares(scores, results.samples))
    cut = _cut_elsewhere(results.samples) if across == "models" else set()
    places = zip(scores["run"], scores["task"], strict=True)
    scores["cut_elsewhere"] = [place in cut for place in places]
    answers = _answers(scores, results.samples, across)
    scores = _estimated(_checked(scores, answers, results.samples))
    scores = _ranked(scores, answers, across)
    scores = _compared(scores, answers, baseline, across)
    order = [*results.scores, *runs.columns.drop("run"), *COMPARED]
    return _declared(scores[list(dict.fromkeys(order))])


def _declared(compared: pd.DataFrame) -> pd.DataFrame:
    """With the declared types, which joins lose."""
    types = {**SCORES, **RUNS, **COMPARED}
    return compared.assign(
        **{name: column(compared[name], types[name]) for name in compared if name in COMPARED}
    )


def _named(scores: pd.DataFrame) -> list[pd.Series]:
    return [scores["name"].fillna(""), scores["task"]]


def _in_one_unit(scores: pd.DataFrame) -> pd.DataFrame:
    """Take no metric for a share that has a number outside of 0 to 1 anywhere."""
    outside = ~scores["value"].fillna(0).between(-1e-9, 1 + 1e-9) & (scores["unit"] == "share")
    raw = outside.groupby([scores[name] for name in NUMBER[1:]], dropna=False).transform("any")
    return scores.assign(unit=scores["unit"].mask(raw, ""))


def _with_shares(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """With the share of each of `SHARES` among the answers of a task and filter."""
    found = samples[samples["metric"].isin(SHARES)]
    means = found.groupby(["run", "task", "filter", "metric"])["num"].mean()
    wide = means.unstack("metric").reindex(columns=list(SHARES))
    return scores.join(wide, on=["run", "task", "filter"])


def _cut_elsewhere(samples: pd.DataFrame) -> set[tuple[int, str]]:
    """Runs and tasks of which another run cut the same document at another place."""
    names = ["truncated", "kept_tokens", "document_tokens"]
    kept = samples[samples["metric"].isin(names)]
    keys = ["run", "task", "question"]
    wide = kept.drop_duplicates([*keys, "metric"]).set_index([*keys, "metric"])["num"]
    wide = wide.unstack("metric").reindex(columns=names)
    of_question = wide.groupby(["task", "question"])
    differ = of_question[names[1:]].transform("nunique").gt(1).any(axis=1)
    differ &= of_question["truncated"].transform("max").gt(0)
    return {key[:2] for key in wide.index[differ]}


def _answers(scores: pd.DataFrame, samples: pd.DataFrame, across: str) -> pd.DataFrame:
    """The samples of numbers: `number` is the place in `scores`; questions and documents are codes.

    Within a model the prompt is part of a question.
    """
    places = scores[NUMBER].assign(number=scores.index).dropna(subset=["name"])
    names = samples.rename(columns={"metric": "name"})
    found = names.merge(places, on=NUMBER, how="inner", validate="many_to_one")
    of_question = ["question", "prompt"] if across == "methods" else ["question"]
    asked = [pd.factorize(found[name])[0].astype(np.int64) for name in of_question]
    keys = asked[0] if len(asked) == 1 else asked[0] * (1 + asked[1].max(initial=0)) + asked[1]
    codes = pd.factorize(keys)[0]
    documents = pd.factorize(found["document"])[0]
    return found[["number", "num", "den"]].assign(question=codes, document=documents)


def _checked(scores: pd.DataFrame, answers: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """With what the samples give; a number that they contradict is `malformed`, and has no value.

    A task's own aggregation is nobody else's: where it gives another number, the samples are left
    aside.
    """
    scores = scores.join(_by_number(answers))
    ratio, how = scores["ratio"], scores["aggregation"]
    # a metric of any name that lm-eval aggregates as a loss holds log-likelihoods
    ratio = ratio.mask(how.isin(("perplexity", "bits")) & (scores["kind"] != "loss"), -ratio)
    with np.errstate(over="ignore"):
        again = ratio.mask(how == "perplexity", np.exp(ratio))
    again = again.mask(how == "bits", ratio / np.log(2))
    agrees = np.isclose(scores["value"], again, rtol=1e-6, atol=1e-9)
    wrong = scores["status"].eq("done") & again.notna() & ~agrees & (how != "own")
    note = "the samples give " + again.map("{:.8g}".format)
    documents = samples.groupby(["run", "task"])["document"].nunique().rename("documents")
    documents = scores[["run", "task"]].join(documents, on=["run", "task"])["documents"]
    trusted = agrees & ~wrong
    own = ("ratio", "error", "df", "least", "most")
    return scores.assign(
        status=scores["status"].mask(wrong, "malformed"),
        note=scores["note"].mask(wrong, note),
        value=scores["value"].mask(wrong | scores["status"].ne("done")),
        **{name: scores[name].where(trusted) for name in own},
        n=scores["n"].fillna(scores["asked"].astype("float64")),
        clusters=scores["clusters"].fillna(documents),
        binary=scores["binary"].eq(True) & trusted,
        trusted=trusted,
    )


def _by_number(answers: pd.DataFrame) -> pd.DataFrame:
    """`ratios` of each number, and its questions: how many, least and most, whether 0 or 1."""
    binary = answers["num"].isin((0.0, 1.0)) & (answers["den"] == 1)
    of_number = answers.assign(binary=binary).groupby("number")
    about = of_number.agg(
        n=("num", "size"), least=("num", "min"), most=("num", "max"), binary=("binary", "all")
    )
    return ratios(_by_document(answers), ["number"]).join(about)


def _by_document(answers: pd.DataFrame) -> pd.DataFrame:
    """Sums of numerators and denominators of each number in each document."""
    return answers.groupby(["number", "document"], sort=False)[["num", "den"]].sum().reset_index()


def _estimated(scores: pd.DataFrame) -> pd.DataFrame:
    """With standard error and 95% interval from the samples, else lm-eval's own standard error.

    Where each document is one question of 0 or 1, and where all scores are 0 or all 1, the interval
    is the exact binomial one; scores within 0..1 get Student's t on the logit scale; a loss needs
    three documents.
    """
    mean, groups = scores["ratio"], scores["clusters"]
    loss, of_loss = scores["kind"] == "loss", scores["unit"]
    error = scores["error"].where(~loss | (groups >= 3))
    half = pd.Series(special.stdtrit(scores["df"], 1 - LEVEL / 2), scores.index) * error
    low, high = mean - half, mean + half
    inside = ~loss & (scores["least"] >= 0) & (scores["most"] <= 1) & mean.between(0, 1, "neither")
    ends = logit_interval(mean.where(inside), half)
    low, high = low.mask(inside, ends[0]), high.mask(inside, ends[1])
    with np.errstate(over="ignore"):
        ppl = of_loss == "perplexity"
        low, high = low.mask(ppl, np.exp(low)), high.mask(ppl, np.exp(high))
        error = error.mask(ppl, error * np.exp(mean))
    low, high, error = (
        each.mask(of_loss == "bits", each / np.log(2)) for each in (low, high, error)
    )
    certain = mean.isin((0, 1))
    exact = ~loss & scores["binary"] & ((groups == scores["n"]) | certain)
    # without samples, where all answers are right or all wrong
    alone = (
        mean.isna() & (scores["unit"] == "share") & scores["value"].isin((0, 1)) & (scores["n"] > 0)
    )
    reported = mean.isna() & (scores["stderr"] > 1e-12 + 1e-9 * scores["value"].abs())
    alone &= ~reported
    tried = groups.where(exact, scores["n"].astype("float64"))
    right = (mean.where(exact, scores["value"]) * tried).round()
    bounds = clopper_pearson(right.where(exact | alone), tried.where(exact | alone))
    kinds = [exact | alone, error.notna(), reported]
    return scores.assign(
        low=low.mask(exact | alone, bounds[0]),
        high=high.mask(exact | alone, bounds[1]),
        interval=np.select(kinds, ["exact", "clustered", "reported"], "none"),
        stderr=error.mask(certain).where(mean.notna(), scores["stderr"].where(reported)),
    ).drop(columns=["ratio", "error", "df", "least", "most"])


def _ranked(scores: pd.DataFrame, answers: pd.DataFrame, across: str) -> pd.DataFrame:
    """Dense rank among rivals, 1 is best; none where all are equal. A note says why there is none.

    Rivals were asked the same questions: of several sets the one that most rows have.
    """
    done = scores["status"] == "done"
    asked = _questions(scores, answers)
    groups = [scores[name] for name in RIVALS]
    size = asked.where(done).groupby([*groups, asked], dropna=False).transform("size")
    most = size.where(done).groupby(groups, dropna=False).transform("max")
    first = asked.where(done & (size == most)).groupby(groups, dropna=False).transform("first")
    directions = scores["higher_is_better"].where(done).astype("object")
    mixed = directions.groupby(groups, dropna=False).transform("nunique") > 1
    higher = scores["higher_is_better"].astype("object")
    alone = done.groupby(groups, dropna=False).transform("sum") < 2
    unparsed = scores["unparsed"] > MOST_UNPARSED
    foreign = (across == "models") & (scores["kind"] == "loss") & (scores["unit"] != "bits")
    why = np.select(
        [~done | alone, foreign, higher.isna() | mixed, asked != first, scores["older"]],
        ["", TOKENS_DIFFER, UNKNOWN_DIRECTION, OTHER_QUESTIONS, REPETITION],
        "",
    )
    why = pd.Series(why, scores.index)
    can = done & why.eq("") & ~unparsed
    told = [
        why,
        scores["unparsed"].map("{:.0%} of the answers could not be parsed".format).where(unparsed),
        pd.Series(CUT_ELSEWHERE, scores.index).where(scores["cut_elsewhere"]),
    ]
    notes = [
        "; ".join(each for each in documents if isinstance(each, str) and each)
        for documents in zip(*told, strict=True)
    ]
    note = pd.Series(notes, scores.index).where(done, scores["note"])
    rounded = scores["value"].round(12)
    better = rounded.where(higher.ne(False), -rounded).where(can)
    ranked = better.groupby(groups, dropna=False)
    rank = ranked.rank(method="dense", ascending=False).where(ranked.transform("nunique") > 1)
    return scores.assign(rank=rank.astype("Int64"), note=note, questions=asked)


def _questions(scores: pd.DataFrame, answers: pd.DataFrame) -> pd.Series:
    """A text that is the same for numbers of the same questions.

    What a loss is divided by (bytes of the same text) is part of a question. Without samples it is
    the number of questions, and that of a run that left some out is its own.
    """
    parts = answers[["question", "den"]].assign(question=answers["question"].astype("uint64"))
    hashes = pd.util.hash_pandas_object(parts, index=False)
    known = hashes.groupby(answers["number"]).sum().astype(str).reindex(scores.index)
    own = scores["asked"].astype(str) + " questions"
    partial = scores["partial"].fillna(False).astype(bool)
    own = own.mask(partial, own + " of run " + scores["run"].astype(str))
    same = known.groupby([*(scores[name] for name in RIVALS), scores["asked"]], dropna=False)
    only = same.transform("first").where(same.transform("nunique") == 1)
    return known.fillna(only.mask(partial)).fillna(own)


def _compared(
    scores: pd.DataFrame, answers: pd.DataFrame, wanted: str | None, across: str
) -> pd.DataFrame:
    """With the paired difference of each number to its block's baseline, on common questions."""
    scores = scores.assign(baseline=_baselines(scores, wanted))
    is_base = (scores["stem"] == scores["baseline"]) | (scores["label"] == scores["baseline"])
    usable = scores["status"].eq("done") & scores["trusted"] & ~scores["older"]
    usable &= scores["higher_is_better"].notna()
    if across == "models":
        usable &= (scores["kind"] == "score") | (scores["unit"] == "bits")
    base = scores[usable & is_base][RIVALS].drop_duplicates(keep=False)
    base = base.assign(base=base.index)
    pairs = scores[usable & ~is_base].reset_index(names="number")
    pairs = pairs.merge(base, on=RIVALS, validate="many_to_one").set_index("number")
    found = _tested(_paired(pairs["base"], answers), pairs)
    scores = scores.join(found)
    families = scores.groupby(RIVALS, dropna=False)["p"]
    threshold = LEVEL / families.transform("count")
    scores["p_holm"] = holm(scores["p"], families.ngroup())
    enough = scores["error"].where((scores["kind"] != "loss") | (scores["documents"] >= 3))
    half = special.stdtrit(scores["df"], 1 - threshold / 2) * enough
    low, high = scores["difference"] - half, scores["difference"] + half
    shown = (scores["p_holm"] < LEVEL) & ((low > 0) | (high < 0))
    marks = [scores["smallest_p"] > threshold, shown]
    mark = np.select(marks, [CANNOT_TELL, SIGNIFICANT], "")
    return scores.assign(diff_low=low, diff_high=high, mark=mark)


def _baselines(scores: pd.DataFrame, wanted: str | None) -> pd.Series:
    """The baseline of each row's block; empty where the block has none."""
    names = ["stem", "label"]
    if wanted is not None:
        check_choice("baseline", wanted, sorted({*scores["stem"], *scores["label"]}))
    found = {}
    for block, part in scores.groupby("block"):
        there = {each for name in names for each in part[name]}
        named = [wanted, *part["baseline"].dropna().unique()[:1], "rope", "none", "default"]
        found[block] = next((name for name in named if name in there), "")
    return scores["block"].map(found)


def _paired(base: pd.Series, answers: pd.DataFrame) -> pd.DataFrame:
    """Questions that numbers have in common with others: `num` is the difference.

    A pair is left out where what a loss is divided by differs: its tokens are not the same.

    Args:
        base: number -> the one that it is compared with.
        answers: of both.
    """
    own = answers[answers["number"].isin(base.index)].drop(columns="document")
    own = own.assign(base=own["number"].map(base))
    theirs = answers[answers["number"].isin(base)].rename(
        columns={"number": "base", "num": "base_num", "den": "base_den"}
    )
    rows = own.merge(theirs, on=["base", "question"], validate="many_to_one")
    differs = (rows["den"] != rows["base_den"]).groupby(rows["number"]).transform("any")
    rows = rows[~differs.astype(bool)]
    binary = rows["base_num"].isin((0, 1)) & rows["num"].isin((0, 1)) & (rows["den"] == 1)
    return rows.assign(num=rows["num"] - rows["base_num"], binary=binary)


def _tested(rows: pd.DataFrame, about: pd.DataFrame) -> pd.DataFrame:
    """Difference, error, p and counts of each number of `rows`; `about` are their scores."""
    sums = _by_document(rows)
    found = ratios(sums, ["number"]).rename(
        columns={"ratio": "difference", "clusters": "documents"}
    )
    of_number = rows.groupby("number")
    found = found.join(of_number["binary"].all()).join(of_number.size().rename("common"))
    found = found.join(about[["kind", "higher_is_better"]])
    is_loss, higher = found["kind"] == "loss", found["higher_is_better"].astype(bool)
    counted = _signs(sums).where(is_loss, _signs(rows))
    wins = counted["up"].where(higher, counted["down"])
    losses = counted["down"].where(higher, counted["up"])
    mcnemar = ~is_loss & found["binary"] & (found["documents"] == found["common"])
    exact = 2 * special.bdtr(np.minimum(wins, losses), wins + losses, 0.5)
    flipped = sums[~sums["number"].isin(found.index[mcnemar])]
    by_flips = flipped.groupby("number")["num"].agg(sign_flip_p)
    return found.assign(
        p=by_flips.reindex(found.index).mask(mcnemar, np.minimum(1.0, exact)),
        smallest_p=smallest_p(found["documents"], exact=mcnemar),
        wins=wins,
        ties=counted["same"],
        losses=losses,
    )[["difference", "error", "df", "documents", "p", "smallest_p", "wins", "ties", "losses"]]


def _signs(rows: pd.DataFrame) -> pd.DataFrame:
    """How many differences of each number are positive, negative and zero."""
    signs = pd.DataFrame({"up": rows["num"] > 0, "down": rows["num"] < 0, "same": rows["num"] == 0})
    return signs.groupby(rows["number"]).sum()
