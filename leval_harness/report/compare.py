"""Scores with intervals, ranks and paired differences: the one frame that is shown everywhere."""

from collections import Counter, defaultdict
from typing import Literal

import numpy as np
import pandas as pd
from scipy import special  # its stdtrit is the quantile of Student's t; stats imports slowly

from leval_harness.report.labels import blocks, labels, task_titles
from leval_harness.report.own_questions import stated_questions
from leval_harness.results.columns import NUMBER as FLOAT
from leval_harness.results.columns import TEXT, WHOLE, Column
from leval_harness.results.load import Results, column
from leval_harness.results.methods import SHIPPED
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

SIGNIFICANT = "*"
CANNOT_TELL = "?"

NUMBER = ["run", "task", "name", "filter"]
"""What names a number of `scores`."""

RIVALS = ["block", "task_title", "name", "filter", "rival_length"]
"""What must agree before two numbers are ranked or compared; questions do too."""

RANKED_BY = [*RIVALS, "value", "higher_is_better", "kind", "unit", "older", "questions"]
"""Columns that decide a rank."""

UNSCALED = ("rope", "none", "default")
"""Names of a method that changes nothing: the baseline where no other one is named."""

LEAST_DOCUMENTS = 3
"""A loss of fewer documents has no interval."""

SHARES = ("unparsed", "truncated", "reached_limit", "thinking_unfinished")
"""Notes of samples whose shares are shown beside a number."""

MOST_UNPARSED = 0.5
"""A score of which a larger share of the answers was not parsed is not ranked."""

CUT_ELSEWHERE = "documents were cut at different places, each model at its own"
OTHER_QUESTIONS = "not ranked: other questions than those of the other rows"
REPETITION = "not ranked: a later run of the same repeats it"
UNKNOWN_DIRECTION = "not ranked: it is unknown whether higher is better"
TOKENS_DIFFER = "not ranked: tokens of two models are not the same; compare bits per byte"

COMPARED = {
    "block": Column(TEXT, "title of the rows that may be ranked against each other"),
    "label": Column(TEXT, "name of the row in tables"),
    "task_title": Column(TEXT, "name of the task in tables: of a user's documents, of their file"),
    "kind": Column(TEXT, "`score` or `loss`"),
    "unit": Column(TEXT, "`share` (from 0 to 1), `percent`, `perplexity`, `nats`, `bits` or empty"),
    "n": Column(WHOLE, "questions that the samples hold"),
    "clusters": Column(WHOLE, "documents of these questions"),
    "unparsed": Column(FLOAT, "share of the answers that could not be parsed"),
    "truncated": Column(FLOAT, "share of the prompts whose document was cut"),
    "reached_limit": Column(FLOAT, "share of the answers that reached the token limit"),
    "thinking_unfinished": Column(FLOAT, "share of the answers that ended while thinking"),
    "low": Column(FLOAT, "lower end of the 95% interval"),
    "high": Column(FLOAT, "upper end of the 95% interval"),
    "interval": Column(TEXT, "`clustered` by document, `exact` (binomial), `reported` (lm-eval's standard "
                       "error, no ends) or `none`"),
    "rank": Column(WHOLE, "1 is best; missing where numbers cannot be ranked"),
    "baseline": Column(TEXT, "label of the row that the block is compared with"),
    "difference": Column(FLOAT, "to the baseline on common questions: a fraction of scores, nats of "
                         "losses (positive is worse)"),
    "diff_low": Column(FLOAT, "lower end of its interval, at 5% over the number of rows compared"),
    "diff_high": Column(FLOAT, "upper end of its interval"),
    "p": Column(FLOAT, "of the sign-flip test over documents, or McNemar's test where each question "
                "is its own document"),
    "p_holm": Column(FLOAT, "p corrected over the rows compared (Holm)"),
    "smallest_p": Column(FLOAT, "the smallest p that so many documents can give"),
    "wins": Column(WHOLE, "questions, of losses documents, that are better than the baseline's"),
    "ties": Column(WHOLE, "questions, of losses documents, that are equal"),
    "losses": Column(WHOLE, "questions, of losses documents, that are worse"),
    "mark": Column(TEXT, "`*` where p_holm is below 0.05 and the interval of the difference excludes zero; "
                   "`?` where the documents are too few to tell"),
}  # fmt: skip
"""Columns that `compare` adds to `scores` and to what `runs` says of each run.

The column `stderr` is clustered by document here, else lm-eval's own.
"""


def compare(
    results: Results,
    baseline: str | None = None,
    across: Literal["methods", "models"] = "methods",
) -> pd.DataFrame:
    """Return every number, checked against its samples, with its interval, rank and difference.

    Args:
        results: from `load_results`.
        baseline: label to compare with in each block that has it; else the one that a sweep names,
            else the method `rope`, `none` or `default`, or `unmodified` beside another method;
            without any of these nothing is compared.
        across: `methods` compares the methods of each model; `models` all models that were asked
            the same questions.

    Returns:
        the columns of `scores`, of `runs` and of `COMPARED`, a row for each of `scores`.

    Raises:
        SettingError: no row has the label `baseline`, or `across` is something else.
    """
    check_choice("across", across, ("methods", "models"))
    scores = _with_names(_with_runs(results), across)
    scores = _in_one_unit(_with_shares(scores, results.samples))
    cut_elsewhere = _cut_elsewhere(results.samples) if across == "models" else set()
    of_run_and_task = zip(scores["run"], scores["task"], strict=True)
    scores["cut_elsewhere"] = [key in cut_elsewhere for key in of_run_and_task]
    answers = _answers(scores, results.samples, across)
    scores = _estimated(_checked(scores, answers, results.samples))
    scores = _ranked(scores, answers, across)
    scores = _compared(scores, answers, baseline, across)
    shown = dict.fromkeys([*results.scores, *_run_columns(results), *COMPARED])
    return _declared(scores[list(shown)])


def _run_columns(results: Results) -> list[str]:
    """Return the columns of `runs` that the compared frame repeats in each row of a run."""
    return [name for name in results.runs if name not in ("run", "status", "note", "tasks")]


def _with_runs(results: Results) -> pd.DataFrame:
    """Return the scores, each with what `runs` says of its run."""
    runs = results.runs[["run", *_run_columns(results)]]
    return results.scores.merge(runs, on="run", how="left", validate="many_to_one")


def _with_names(scores: pd.DataFrame, across: str) -> pd.DataFrame:
    """Return the scores with the columns that decide what is compared, and how it is named.

    These are `block`, `task_title` and `label`; `kind` and `unit` of the metric; and
    `rival_length`, the length in tokens in which rivals must agree.
    """
    names = scores["name"].fillna("")
    metrics = [metric_of(name, task) for name, task in zip(names, scores["task"], strict=True)]
    kinds = [metric.kind for metric in metrics]
    units = [metric.unit for metric in metrics]
    scores = scores.assign(
        block=blocks(scores, across),
        task_title=task_titles(scores),
        kind=pd.Series(kinds, scores.index, dtype=object),
        unit=pd.Series(units, scores.index, dtype=object),
    )
    scores = scores.join(labels(scores, across))
    # `loss@2048` is of one position in runs of any length: it competes with that of equal runs.
    # Other numbers compete with those of questions of one length.
    is_at_position = names.str.contains("@", regex=False).astype(bool)
    rival_length = scores["context_length"].where(is_at_position, scores["length"])
    return scores.assign(rival_length=rival_length)


def _declared(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the declared types, which joins lose."""
    typed = {
        name: column(compared[name], COMPARED[name].type) for name in compared if name in COMPARED
    }
    return compared.assign(**typed)


def _in_one_unit(scores: pd.DataFrame) -> pd.DataFrame:
    """Clear the unit of a metric that is called a share and has a number outside of 0 to 1."""
    is_outside = ~scores["value"].fillna(0).between(-1e-9, 1 + 1e-9)
    contradicts = is_outside & (scores["unit"] == "share")
    of_metric = contradicts.groupby(
        [scores["task"], scores["name"], scores["filter"]], dropna=False
    )
    return scores.assign(unit=scores["unit"].mask(of_metric.transform("any"), ""))


def _with_shares(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with the share of each of `SHARES` among the answers to their questions."""
    notes = samples[samples["metric"].isin(SHARES)]
    means = notes.groupby(["run", "task", "filter", "metric"])["num"].mean()
    shares = means.unstack("metric").reindex(columns=list(SHARES))
    return scores.join(shares, on=["run", "task", "filter"])


def _cut_elsewhere(samples: pd.DataFrame) -> set[tuple[int, str]]:
    """Return each run and task with a document that another run cut at another position.

    Args:
        samples: among their metrics are `truncated` (0 or 1), `kept_tokens` and `document_tokens`.
    """
    cut_columns = ["truncated", "kept_tokens", "document_tokens"]
    question_keys = ["run", "task", "question"]
    notes = samples[samples["metric"].isin(cut_columns)]
    notes = notes.drop_duplicates([*question_keys, "metric"])
    cuts = notes.set_index([*question_keys, "metric"])["num"].unstack("metric")
    cuts = cuts.reindex(columns=cut_columns)
    of_question = cuts.groupby(["task", "question"])
    # Another number of tokens also shows another tokenizer, with which a cut is at another place.
    different_lengths = of_question[["kept_tokens", "document_tokens"]].transform("nunique")
    was_cut = of_question["truncated"].transform("max") > 0
    differs = was_cut & (different_lengths > 1).any(axis=1)
    return {(run, task) for run, task, _ in cuts.index[differs]}


def _answers(scores: pd.DataFrame, samples: pd.DataFrame, across: str) -> pd.DataFrame:
    """Return the samples of all numbers.

    Returns:
        `number`, the row of `scores`; `num` and `den`; `question` and `document` as integers, equal
        where they are the same. Within a model the prompt is part of a question: a method must
        not be compared on another prompt. Models have prompts of their own.
    """
    rows = scores[NUMBER].assign(number=scores.index).dropna(subset=["name"])
    samples = samples.rename(columns={"metric": "name"})
    answers = samples.merge(rows, on=NUMBER, how="inner", validate="many_to_one")
    questions = pd.factorize(answers["question"])[0].astype(np.int64)
    if across == "methods":
        prompts = pd.factorize(answers["prompt"])[0].astype(np.int64)
        # one integer for the pair, which is faster than a group of two texts
        pairs = questions * (1 + prompts.max(initial=0)) + prompts
        questions = pd.factorize(pairs)[0]
    documents = pd.factorize(answers["document"])[0]
    return answers[["number", "num", "den"]].assign(question=questions, document=documents)


def _checked(scores: pd.DataFrame, answers: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with what their samples give; what samples contradict is `malformed`.

    A number that is malformed has no value. Of an aggregation that is the task's own nothing
    follows where the samples give another number: only the samples are not used then.
    """
    scores = scores.join(_by_number(answers))
    recomputed = _recomputed(scores)
    agrees = pd.Series(np.isclose(scores["value"], recomputed, rtol=1e-6, atol=1e-9), scores.index)
    is_checkable = recomputed.notna() & (scores["aggregation"] != "own")
    is_wrong = scores["status"].eq("done") & is_checkable & ~agrees
    note = "the samples give " + recomputed.map("{:.8g}".format)

    trusted = agrees & ~is_wrong
    from_samples = {
        name: scores[name].where(trusted) for name in ("ratio", "error", "df", "least", "most")
    }
    # without samples of this metric: what the results file and other metrics' samples say
    documents = samples.groupby(["run", "task"])["document"].nunique().rename("documents")
    documents_of_task = scores[["run", "task"]].join(documents, on=["run", "task"])["documents"]
    return scores.assign(
        **from_samples,
        status=scores["status"].mask(is_wrong, "malformed"),
        note=scores["note"].mask(is_wrong, note),
        value=scores["value"].mask(is_wrong | scores["status"].ne("done")),
        n=scores["n"].fillna(stated_questions(scores)),
        clusters=scores["clusters"].fillna(documents_of_task),
        binary=scores["binary"].eq(True) & trusted,
        trusted=trusted,
    )


def _recomputed(scores: pd.DataFrame) -> pd.Series:
    """Return each number as its samples give it, in the unit of the results file."""
    aggregation = scores["aggregation"]
    # A metric of another name that lm-eval aggregates as a loss has log-likelihoods as samples.
    is_log_likelihood = aggregation.isin(("perplexity", "bits")) & (scores["kind"] != "loss")
    loss = scores["ratio"].mask(is_log_likelihood, -scores["ratio"])
    with np.errstate(over="ignore"):  # infinite: it agrees with no number
        perplexity = np.exp(loss)
    recomputed = loss.mask(aggregation == "perplexity", perplexity)
    return recomputed.mask(aggregation == "bits", loss / np.log(2))


def _by_number(answers: pd.DataFrame) -> pd.DataFrame:
    """Return `ratios` of each number; its questions, the least and most of them, and `binary`.

    `binary` holds where the answer to each question counts 0 or 1.
    """
    is_binary = answers["num"].isin((0.0, 1.0)) & (answers["den"] == 1)
    of_number = answers.assign(binary=is_binary).groupby("number")
    counts = of_number.agg(
        n=("num", "size"), least=("num", "min"), most=("num", "max"), binary=("binary", "all")
    )
    return ratios(_by_document(answers), ["number"]).join(counts)


def _by_document(answers: pd.DataFrame) -> pd.DataFrame:
    """Return sums of numerators and denominators of each number in each document."""
    return answers.groupby(["number", "document"], sort=False)[["num", "den"]].sum().reset_index()


def _estimated(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with standard error, 95% interval, and the kind of that interval.

    The exact binomial interval comes first, then that of the clustered standard error, then
    lm-eval's own standard error, without ends.
    """
    estimate = _clustered_interval(scores)
    has_samples = scores["ratio"].notna()

    # A standard error of 0 says that all answers were alike; with rounding it is nearly 0.
    has_stderr = scores["stderr"] > 1e-12 + 1e-9 * scores["value"].abs()
    is_reported = ~has_samples & has_stderr

    exact = _exact_interval(scores, is_reported)
    is_exact = exact["tried"].notna()
    low = estimate["low"].mask(is_exact, exact["low"])
    high = estimate["high"].mask(is_exact, exact["high"])

    interval = pd.Series("none", scores.index)
    interval = interval.mask(is_reported, "reported")
    interval = interval.mask(estimate["error"].notna(), "clustered")
    interval = interval.mask(is_exact, "exact")

    # All answers right, or all wrong: their spread is 0, which is not how well they are known.
    all_alike = scores["ratio"].isin((0, 1))
    stderr = estimate["error"].mask(all_alike)
    stderr = stderr.where(has_samples, scores["stderr"].where(is_reported))
    scores = scores.assign(low=low, high=high, interval=interval, stderr=stderr)
    return scores.drop(columns=["ratio", "error", "df", "least", "most"])


def _clustered_interval(scores: pd.DataFrame) -> pd.DataFrame:
    """Return `error`, `low` and `high` from the samples by document, in the numbers' own units.

    Intervals are Student's t. Of scores within 0 to 1 they are on the logit scale, so that their
    ends stay within 0 to 1. Those of a perplexity are exponentials of the loss's.
    """
    mean = scores["ratio"]
    kind = scores["kind"]
    unit = scores["unit"]
    is_loss = kind == "loss"
    # Losses of two documents say next to nothing about others.
    error = scores["error"].where(~is_loss | (scores["clusters"] >= LEAST_DOCUMENTS))
    quantile = pd.Series(special.stdtrit(scores["df"], 1 - LEVEL / 2), scores.index)
    half_width = quantile * error
    low = mean - half_width
    high = mean + half_width

    is_share = (scores["least"] >= 0) & (scores["most"] <= 1) & mean.between(0, 1, "neither")
    on_logit_scale = ~is_loss & is_share
    logit_low, logit_high = logit_interval(mean.where(on_logit_scale), half_width)
    low = low.mask(on_logit_scale, logit_low)
    high = high.mask(on_logit_scale, logit_high)

    is_perplexity = unit == "perplexity"
    with np.errstate(over="ignore"):
        low = low.mask(is_perplexity, np.exp(low))
        high = high.mask(is_perplexity, np.exp(high))
        error = error.mask(is_perplexity, error * np.exp(mean))
    estimate = pd.DataFrame({"error": error, "low": low, "high": high})
    return estimate.mask(unit == "bits", estimate / np.log(2))


def _exact_interval(scores: pd.DataFrame, is_reported: pd.Series) -> pd.DataFrame:
    """Return the exact binomial interval of the numbers that have one.

    These are scores of 0 or 1 per question, one question per document; those whose answers are all
    right or all wrong (documents are counted then); and a share of 0 or 1 without samples.

    Args:
        scores: the scores with what their samples give.
        is_reported: rows for which lm-eval's own standard error is shown.

    Returns:
        `tried`, `low` and `high`; missing for other numbers.
    """
    mean = scores["ratio"]
    one_per_document = scores["clusters"] == scores["n"]
    is_binary = (scores["kind"] != "loss") & scores["binary"]
    by_samples = is_binary & (one_per_document | mean.isin((0, 1)))

    all_alike = (scores["unit"] == "share") & scores["value"].isin((0, 1)) & (scores["n"] > 0)
    by_value = mean.isna() & all_alike & ~is_reported

    questions = scores["n"].astype("float64").where(by_value)
    tried = scores["clusters"].astype("float64").where(by_samples, questions)
    share = mean.where(by_samples, scores["value"])
    right = (share * tried).round()
    low, high = clopper_pearson(right, tried)
    return pd.DataFrame({"tried": tried, "low": low, "high": high}, scores.index)


def _ranked(scores: pd.DataFrame, answers: pd.DataFrame, across: str) -> pd.DataFrame:
    """Return the scores with a dense rank, 1 is best, and with notes on what limits a comparison.

    A number is ranked among its rivals, which agree in `RIVALS`. It is not ranked where
    `_reasons_against_rank` has a reason, where more than `MOST_UNPARSED` of its answers could not be
    parsed, or where no rival that is left has another value. A number whose documents were cut at
    other places is ranked all the same, with a note.

    Args:
        scores: the numbers.
        answers: their samples, from `_answers`.
        across: `methods` or `models`.
    """
    scores = scores.assign(questions=_question_sets(scores, answers))
    reasons = pd.Series("", scores.index)
    ranks = pd.Series(np.nan, scores.index)
    too_few_parsed = scores["unparsed"] > MOST_UNPARSED
    done = scores[scores["status"] == "done"]
    for _, rivals in done[RANKED_BY].groupby(RIVALS, dropna=False, sort=False):
        if len(rivals) < 2:
            continue
        reasons_of_rivals = _reasons_against_rank(rivals, across)
        reasons[rivals.index] = reasons_of_rivals
        is_ranked = (reasons_of_rivals == "") & ~too_few_parsed[rivals.index]
        # Sums in another order differ in their last digits: such values are equal.
        values = rivals["value"][is_ranked].round(12)
        if values.nunique() > 1:
            higher_is_better = bool(rivals["higher_is_better"][is_ranked].iloc[0])
            ranks[values.index] = values.rank(method="dense", ascending=not higher_is_better)

    notes = scores["note"].copy()
    for row in done.index:
        remarks = []
        if reasons[row]:
            remarks.append(reasons[row])
        if too_few_parsed[row]:
            remarks.append(f"{scores['unparsed'][row]:.0%} of the answers could not be parsed")
        if scores["cut_elsewhere"][row]:
            remarks.append(CUT_ELSEWHERE)
        notes[row] = "; ".join(remarks)
    return scores.assign(rank=ranks.astype("Int64"), note=notes)


def _reasons_against_rank(rivals: pd.DataFrame, across: str) -> pd.Series:
    """Return why each row of a group of rivals cannot be ranked; empty where nothing is against it.

    Only rows with the same questions can be ranked. Of several sets of questions the one that most
    rows have is chosen, of equally many the first.
    """
    rows_with_questions = Counter(rivals["questions"])
    ((most_common, _),) = rows_with_questions.most_common(1)
    directions = set(rivals["higher_is_better"].dropna())
    reasons = []
    for row in rivals.itertuples():
        tokens_differ = across == "models" and row.kind == "loss" and row.unit != "bits"
        if tokens_differ:
            reason = TOKENS_DIFFER
        elif pd.isna(row.higher_is_better) or len(directions) > 1:
            reason = UNKNOWN_DIRECTION
        elif row.questions != most_common:
            reason = OTHER_QUESTIONS
        elif row.older:
            reason = REPETITION
        else:
            reason = ""
        reasons.append(reason)
    return pd.Series(reasons, rivals.index)


def _question_sets(scores: pd.DataFrame, answers: pd.DataFrame) -> pd.Series:
    """Return for each number a key that is equal where the questions are the same.

    It is the frozenset of its questions. What a loss is divided by is part of a question: bytes of
    the same document are equal, tokens of two models are not. A number without samples takes the
    set of its rivals with as many questions, if they have one; else its key is the number of
    questions, and that of a run which excluded some is its own.
    """
    questions = answers.groupby(["question", "den"], sort=False).ngroup()
    set_of_number = {
        number: frozenset(part.tolist()) for number, part in questions.groupby(answers["number"])
    }
    group_keys = _group_keys(scores, [*RIVALS, "asked"])
    sets_of_group: dict[tuple[object, ...], set[frozenset[int]]] = defaultdict(set)
    for number, group in zip(scores.index, group_keys, strict=True):
        if number in set_of_number:
            sets_of_group[group].add(set_of_number[number])

    keys: list[object] = []
    for number, group, run, partial in zip(
        scores.index, group_keys, scores["run"], scores["partial"].fillna(False), strict=True
    ):
        asked = group[-1]
        sets = sets_of_group[group]
        if number in set_of_number:
            keys.append(set_of_number[number])
        elif partial:
            keys.append(("some questions of a run", asked, run))
        elif len(sets) == 1:
            keys.append(next(iter(sets)))
        else:
            keys.append(("all questions", asked))
    return pd.Series(keys, scores.index, dtype=object)


def _group_keys(scores: pd.DataFrame, columns: list[str]) -> list[tuple[object, ...]]:
    """Return the values of some columns of each row as a tuple, None where one is missing."""
    values = scores[columns].astype(object)
    values = values.where(values.notna(), None)
    return list(values.itertuples(index=False, name=None))


def _compared(
    scores: pd.DataFrame, answers: pd.DataFrame, wanted: str | None, across: str
) -> pd.DataFrame:
    """Return the scores with their paired differences to the baseline, on common questions."""
    scores = scores.assign(baseline=_baselines(scores, wanted))
    pairs = _pairs(scores, across)
    scores = scores.join(_tested(_paired(pairs["base"], answers), pairs))

    # Holm's correction and the level of the intervals are over the rows of one comparison.
    comparisons = scores.groupby(RIVALS, dropna=False)["p"]
    threshold = LEVEL / comparisons.transform("count")
    p_holm = holm(scores["p"], comparisons.ngroup())

    has_enough = (scores["kind"] != "loss") | (scores["documents"] >= LEAST_DOCUMENTS)
    quantile = special.stdtrit(scores["df"], 1 - threshold / 2)
    half_width = quantile * scores["error"].where(has_enough)
    low = scores["difference"] - half_width
    high = scores["difference"] + half_width

    # Two tests: the sign flips, and the interval. A mark needs both.
    is_significant = (p_holm < LEVEL) & ((low > 0) | (high < 0))
    mark = pd.Series("", scores.index)
    mark = mark.mask(is_significant, SIGNIFICANT)
    mark = mark.mask(scores["smallest_p"] > threshold, CANNOT_TELL)
    return scores.assign(p_holm=p_holm, diff_low=low, diff_high=high, mark=mark)


def _pairs(scores: pd.DataFrame, across: str) -> pd.DataFrame:
    """Return the rows that are compared, with the row of their baseline in the column `base`."""
    is_base = (scores["stem"] == scores["baseline"]) | (scores["label"] == scores["baseline"])
    is_usable = scores["status"].eq("done") & scores["trusted"] & ~scores["older"]
    is_usable &= scores["higher_is_better"].notna()
    if across == "models":
        # tokens of two models are not the same, bytes are
        is_usable &= (scores["kind"] == "score") | (scores["unit"] == "bits")
    # two rows of one baseline: which of them is meant is unknown
    bases = scores[is_usable & is_base][RIVALS].drop_duplicates(keep=False)
    bases = bases.assign(base=bases.index)
    others = scores[is_usable & ~is_base].reset_index(names="number")
    return others.merge(bases, on=RIVALS, validate="many_to_one").set_index("number")


def _baselines(scores: pd.DataFrame, wanted: str | None) -> pd.Series:
    """Return the baseline of each row's block; empty where the block has none."""
    if wanted is not None:
        check_choice("baseline", wanted, sorted({*scores["stem"], *scores["label"]}))
    baseline_of_block = {}
    for block, part in scores.groupby("block"):
        names = {*part["stem"], *part["label"]}
        of_sweep = part["baseline"].dropna().unique()[:1]
        candidates = [wanted, *of_sweep, *UNSCALED]
        if part["method"].nunique() > 1:
            # of plain runs; alone in its block it is compared with nothing
            candidates.append(SHIPPED)
        baseline_of_block[block] = next((name for name in candidates if name in names), "")
    return scores["block"].map(baseline_of_block)


def _paired(base: pd.Series, answers: pd.DataFrame) -> pd.DataFrame:
    """Return the questions that numbers have in common with others: `num` is the difference.

    A pair is excluded where what a loss is divided by differs: its tokens are not the same.

    Args:
        base: number -> the number that it is compared with.
        answers: the answers of both.
    """
    own = answers[answers["number"].isin(base.index)].drop(columns="document")
    own = own.assign(base=own["number"].map(base))
    of_base = answers[answers["number"].isin(base)].rename(
        columns={"number": "base", "num": "base_num", "den": "base_den"}
    )
    rows = own.merge(of_base, on=["base", "question"], validate="many_to_one")
    den_differs = rows["den"] != rows["base_den"]
    of_number = den_differs.groupby(rows["number"]).transform("any").astype(bool)
    rows = rows[~of_number]
    both_binary = rows["base_num"].isin((0, 1)) & rows["num"].isin((0, 1))
    is_binary = both_binary & (rows["den"] == 1)
    return rows.assign(num=rows["num"] - rows["base_num"], binary=is_binary)


def _tested(rows: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Test each number against the one that it is compared with, question by question.

    A score whose questions count 0 or 1 and have a document each is tested by McNemar's test, every
    other number by sign flips of its documents.

    Args:
        rows: one per question that both numbers have, from `_paired`: `number`, `document`, the
            difference `num` over `den`, and whether both answers count 0 or 1 (`binary`).
        scores: the rows of these numbers, with `kind` and `higher_is_better`.

    Returns:
        By number: `difference` with its clustered `error` and degrees of freedom `df`; `documents`;
        `p`, and the smallest one that so many documents can give; and how many questions (of a
        loss: documents) are better, equal and worse, in the columns `wins`, `ties` and `losses`.
    """
    sums = _by_document(rows)
    tested = ratios(sums, ["number"]).rename(
        columns={"ratio": "difference", "clusters": "documents"}
    )
    of_number = rows.groupby("number")
    tested["common"] = of_number.size()
    tested["binary"] = of_number["binary"].all()
    tested = tested.join(scores[["kind", "higher_is_better"]])

    # Where the metric is a loss, documents are counted: a question is a document or a part of one.
    measures_loss = tested["kind"] == "loss"
    signs = _signs(sums).where(measures_loss, _signs(rows))
    higher_is_better = tested["higher_is_better"].astype(bool)
    better = signs["up"].where(higher_is_better, signs["down"])
    worse = signs["down"].where(higher_is_better, signs["up"])

    one_per_document = tested["documents"] == tested["common"]
    by_mcnemar = ~measures_loss & tested["binary"] & one_per_document
    # Exact and two-sided: as many heads or fewer in as many throws of a fair coin.
    mcnemar_p = 2 * special.bdtr(np.minimum(better, worse), better + worse, 0.5)
    # sign flips take long: not of numbers whose p is McNemar's
    flipped = sums[~sums["number"].isin(tested.index[by_mcnemar])]
    sign_flips_p = flipped.groupby("number")["num"].agg(sign_flip_p).reindex(tested.index)
    tested = tested.assign(
        p=sign_flips_p.mask(by_mcnemar, np.minimum(1.0, mcnemar_p)),
        smallest_p=smallest_p(tested["documents"], exact=by_mcnemar),
        wins=better,
        ties=signs["same"],
        losses=worse,
    )
    return tested[
        ["difference", "error", "df", "documents", "p", "smallest_p", "wins", "ties", "losses"]
    ]


def _signs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many differences of each number are positive, negative and zero."""
    signs = pd.DataFrame({"up": rows["num"] > 0, "down": rows["num"] < 0, "same": rows["num"] == 0})
    return signs.groupby(rows["number"]).sum()
