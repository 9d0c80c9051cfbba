"""What is ranked and compared with what, and what is marked."""

import numpy as np
import pandas as pd
import pytest
from lm_eval_output import ACC, ROPE, answers, mean_of, sample, write
from scipy import stats

from leval_harness.report.compare import (
    OTHER_QUESTIONS,
    REPETITION,
    TOKENS_DIFFER,
    UNKNOWN_DIRECTION,
    compare,
)
from leval_harness.results.load import load_results
from resonance_vllm.common.errors import SettingError

UP = {"acc": True}
RNG = np.random.default_rng(5)


def compared(folder, **how):
    found = compare(load_results(folder), **how)
    return found.assign(folder=[path.name for path in found["folder"]]).set_index("folder")


def two(tmp_path, first, second, baseline=None, **how):
    """Two runs of one model, unmodified and with YaRN, `a` and `b`; their rows."""
    write(tmp_path / "a", **{"better": UP, **first})
    config = {"model_args": ROPE} | second.pop("config", {})
    write(tmp_path / "b", **{"better": UP, "config": config, **second})
    return compared(tmp_path, baseline=baseline, **how)


SETTINGS = {
    "a limit": {"config": {"limit": 5.0, "model_args": ROPE}},
    "dtype": {"config": {"model_args": {**ROPE, "dtype": "float16"}}},
    "dtype as loaded": {"config": {"model_dtype": "torch.float16", "model_args": ROPE}},
    "backend": {"config": {"model": "vllm", "model_args": ROPE}},
    "chat template": {"chat_template": "{{ x }}", "chat_template_sha": "ab"},
    "few-shot count": {"n-shot": {"arc": 16}},
    "version": {"versions": {"arc": 2.0}},
    "generation": {"config": {"gen_kwargs": {"temperature": 1.0}, "model_args": ROPE}},
    "seed": {"config": {"random_seed": 7, "model_args": ROPE}},
    "documents left out": {"fields": {"metadata": {"skipped_documents": 2}}},
    "the bundled sample": {"fields": {"metadata": {"data": {"source": "sample"}}}},
    "data": {"fields": {"metadata": {"data": {"source": "hub", "files": {"x": "1"}}}}},
    "what was asked": {"task_hashes": {"arc": "ab"}},
    "part of the questions": {"n-samples": {"arc": {"original": 20, "effective": 5}}},
    "another model": {"model_name": "org/other"},
}


@pytest.mark.parametrize("what", SETTINGS)
def test_blocks_separate_runs_of_other_settings(tmp_path, what):
    rows = two(tmp_path, {"values": ACC}, {"values": {"acc,none": 0.6}, **SETTINGS[what]})
    assert rows["block"].nunique() == 2
    title = "org/model · backend hf" if what == "backend" else "org/model"
    assert rows.loc["a", "block"] == title, "what is unset is not in a title"
    assert rows["rank"].isna().all()
    assert rows["difference"].isna().all()


@pytest.mark.parametrize("more", [
    {"config": {"batch_size": "7", "model_args": ROPE}},
    {"config": {"device": "cuda:1", "model_args": ROPE}},
    {"config": {"model_args": {**ROPE, "cache_dir": "/elsewhere", "rope_precision": None}}},
    {"git_hash": "abc", "transformers_version": "5.1"},
])  # fmt: skip
def test_blocks_ignore_what_changes_no_number(tmp_path, more):
    rows = two(tmp_path, {"values": ACC}, {"values": {"acc,none": 0.6}, **more})
    assert list(rows["block"].unique()) == ["org/model"]
    assert rows["rank"].to_dict() == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("output_type", "blocks"),
    [("generate_until", 2), ("multiple_choice", 1), ("loglikelihood_rolling", 1), (None, 2)],
)
def test_blocks_generation_settings_that_are_read(tmp_path, output_type, blocks):
    fields = {"output_type": output_type} if output_type else {}
    config = {"gen_kwargs": {"temperature": 1.0}, "model_args": ROPE}
    rows = two(tmp_path, {"values": ACC, "fields": fields},
               {"values": {"acc,none": 0.6}, "fields": fields, "config": config})  # fmt: skip
    assert rows["block"].nunique() == blocks
    assert rows["rank"].notna().all() == (blocks == 1)


def test_compare_two_plain_runs_with_and_without_method(tmp_path):
    """No baseline is named: the unmodified run is one."""
    first, second = answers([0] * 7 + [1] + [0] * 4), answers([1] * 7 + [0] + [0] * 4)
    rows = two(tmp_path, {"samples": first}, {"samples": second})
    assert rows["block"].nunique() == 1
    assert set(rows["baseline"]) == {"unmodified"}
    assert rows.loc["b", "difference"] == pytest.approx(0.5)


def test_blocks_say_how_a_run_was_limited(tmp_path):
    for at, limit in enumerate((5.0, 0.1)):
        write(tmp_path / f"{at}", ACC, config={"limit": limit})
    titles = compared(tmp_path)["block"]
    assert titles["0"] == "org/model · partial: the first 5 questions of each task"
    assert titles["1"] == "org/model · partial: the first 10% of each task's questions"


def test_blocks_ignore_a_limit_as_large_as_the_task(tmp_path):
    write(tmp_path, ACC, config={"limit": 20})
    assert compared(tmp_path)["block"].tolist() == ["org/model"]


SAME = answers([1, 0, 0, 1, 0])


@pytest.mark.parametrize(
    ("first", "second", "ranks", "notes"),
    [
        ({"samples": SAME}, {"samples": answers([1, 1, 1, 1, 0])}, [2, 1], ["", ""]),
        ({"samples": SAME}, {"samples": SAME}, [None, None], ["", ""]),
        ({"samples": SAME}, {"samples": answers([1, 1, 1, 1, 0], first=2)}, [None, None],
         ["", OTHER_QUESTIONS]),
        ({"samples": SAME}, {"values": {"acc,none": 0.8}, "n-samples":
                             {"arc": {"original": 5, "effective": 5}}}, [2, 1], ["", ""]),
        ({"values": ACC, "better": {}}, {"values": {"acc,none": 0.6}, "better": {"acc": False}},
         [None, None], [UNKNOWN_DIRECTION] * 2),
        ({"values": {"ppl,none": 9.0}, "better": {"ppl": False}},
         {"values": {"ppl,none": 8.0}, "better": {"ppl": False}}, [2, 1], ["", ""]),
        ({"values": {"odd,none": 9.0}, "better": {}}, {"values": {"odd,none": 8.0}, "better": {}},
         [None, None], [UNKNOWN_DIRECTION] * 2),
    ],
)  # fmt: skip
def test_rank_needs_the_same_questions_and_a_direction(tmp_path, first, second, ranks, notes):
    rows = two(tmp_path, first, dict(second))
    assert [None if pd.isna(each) else each for each in rows["rank"]] == ranks
    assert rows["note"].tolist() == notes


def test_rank_is_of_the_most_common_set_of_questions(tmp_path):
    for at, first in enumerate((0, 3, 0, 0)):
        rope = {**ROPE["rope_parameters"], "factor": at + 2}
        write(tmp_path / f"{at}", samples=answers([1] * at + [0] * (5 - at), first), better=UP,
              config={"model_args": {"pretrained": "m", "rope_parameters": rope}})  # fmt: skip
    rows = compared(tmp_path)
    assert [None if pd.isna(each) else each for each in rows["rank"]] == [3, None, 2, 1]
    assert rows["note"].tolist() == ["", OTHER_QUESTIONS, "", ""]


def test_compare_loss_with_wrong_direction_is_not_ranked(tmp_path):
    rows = two(tmp_path, {"values": {"perplexity,none": 9.0}, "better": {"perplexity": True}},
               {"values": {"perplexity,none": 8.0}, "better": {"perplexity": True}})  # fmt: skip
    assert rows["rank"].isna().all()


def of_our_task(answer, is_parsed):
    return {"filtered_resps": [[answer, "right" if is_parsed else "unparsed"]]}


def of_a_filter(answer, is_parsed):
    """As lm-eval's filters mark what they do not find."""
    return {"filtered_resps": [answer if is_parsed else "[invalid]"], "filter": "strict-match"}


@pytest.mark.parametrize("shown", [of_our_task, of_a_filter])
def test_rank_excludes_scores_of_unparsed_answers(tmp_path, shown):
    def marked(unparsed, scores):
        rows = answers(scores)
        return [row | shown("x", at >= unparsed) for at, row in enumerate(rows)]

    chosen = shown("x", True).get("filter", "none")
    of = [([1, 1, 1, 1, 0], 4), ([1, 0, 0, 0, 0], 2)]
    one, other = (
        {"samples": marked(n, scores), "values": {f"acc,{chosen}": sum(scores) / 5}}
        for scores, n in of
    )
    rows = two(tmp_path, one, other)
    assert rows["unparsed"].tolist() == [0.8, 0.4]
    assert rows["note"].tolist() == ["80% of the answers could not be parsed", ""]
    assert pd.isna(rows["rank"]["a"])


def test_labels_of_repeated_runs_have_dates(tmp_path):
    for at, (score, date) in enumerate(((0.9, 1e9), (0.4, 2e9))):
        write(tmp_path, {"acc,none": score}, better=UP, date=date,
              stamp=f"2026-01-0{at + 1}T00-00-00.000000")  # fmt: skip
    write(tmp_path, {"acc,none": 0.5}, better=UP, config={"model_args": ROPE}, date=1.5e9,
          stamp="2026-01-05T00-00-00.000000")  # fmt: skip
    rows = compare(load_results(tmp_path), baseline="unmodified").set_index("label")
    assert {*rows.index} == {
        "unmodified (2001-09-09 01:46:40)", "unmodified (2033-05-18 03:33:20)", "yarn x2",
    }  # fmt: skip
    assert rows["rank"].fillna(0).to_dict() == {
        "unmodified (2001-09-09 01:46:40)": 0,
        "unmodified (2033-05-18 03:33:20)": 2,
        "yarn x2": 1,
    }
    assert rows.loc["unmodified (2001-09-09 01:46:40)", "note"] == REPETITION
    assert set(rows["baseline"]) == {"unmodified"}


@pytest.mark.parametrize("apart", ["length", "task"])
def test_labels_tell_methods_of_one_name_apart(tmp_path, apart):
    for at, beta in enumerate((32, 16)):
        rope = {"rope_type": "yarn", "factor": 2.0, "beta_fast": beta}
        task = f"arc{at}" if apart == "task" else "arc"
        write(tmp_path / f"{at}", ACC, task, max_length=4096 * (1 + at * (apart == "length")),
              config={"model_args": {"pretrained": "m", "rope_parameters": rope}})  # fmt: skip
    assert compared(tmp_path)["label"].tolist() == [
        "yarn x2", "yarn x2 (beta_fast 16)",
    ]  # fmt: skip


def clustered(rng, documents, each, shift=0.0):
    """Samples of 0 and 1, questions of a document alike."""
    rows = []
    for document in range(documents):
        level = np.clip(0.5 + shift + rng.normal(0, 0.2), 0, 1)
        for _ in range(each):
            row = sample(len(rows), float(rng.random() < level))
            row["doc"] = {"document_id": document, "question_id": len(rows), "cluster": document}
            rows.append(row)
    return rows


def test_difference_is_on_the_questions_in_common(tmp_path):
    """By hand: join by question, sum by document, sign flips, CR2."""
    rng = np.random.default_rng(3)
    first, second = clustered(rng, 8, 6), clustered(rng, 8, 6, 0.3)
    rng.shuffle(second)
    second = second[4:]  # in another order, and some are missing
    row = two(tmp_path, {"samples": first}, {"samples": second}, baseline="unmodified").loc["b"]
    base = {each["doc_id"]: each["acc"] for each in first}
    table = pd.DataFrame(
        [(s["doc"]["cluster"], s["acc"] - base[s["doc_id"]]) for s in second], columns=["d", "x"]
    )
    sums = table.groupby("d")["x"].agg(["sum", "size"])
    flips = np.array(np.meshgrid(*[(-1, 1)] * len(sums))).reshape(len(sums), -1)
    expected = (abs(sums["sum"] @ flips) >= abs(sums["sum"].sum()) - 1e-9).mean()
    assert row["difference"] == pytest.approx(table["x"].mean())
    assert row["p"] == pytest.approx(expected)
    assert row["p_holm"] == row["p"]
    assert row["smallest_p"] == 2.0**-7
    assert (row["wins"], row["ties"], row["losses"]) == tuple(
        (table["x"] > 0).sum() if sign > 0 else (table["x"] * sign > 0).sum() if sign else
        (table["x"] == 0).sum() for sign in (1, 0, -1)
    )  # fmt: skip
    assert row["diff_low"] < row["difference"] < row["diff_high"]
    assert "other questions" in row["note"], "it is compared on what both have, and not ranked"


def test_difference_of_single_questions_is_by_mcnemar(tmp_path):
    first, second = answers([0] * 7 + [1] + [0] * 4), answers([1] * 7 + [0] + [0] * 4)
    row = two(tmp_path, {"samples": first}, {"samples": second}, baseline="unmodified").loc["b"]
    assert (row["wins"], row["ties"], row["losses"]) == (7, 4, 1)
    assert row["p"] == pytest.approx(stats.binomtest(1, 8).pvalue)
    assert row["smallest_p"] == 2.0**-11


def test_compare_holm_within_a_task(tmp_path):
    rng = np.random.default_rng(1)
    write(tmp_path / "base", samples=clustered(rng, 12, 5), better=UP)
    for at in range(3):
        rope = {"rope_type": "yarn", "factor": float(at + 2)}
        write(tmp_path / f"{at}", samples=clustered(rng, 12, 5, 0.15 * at), better=UP,
              config={"model_args": {"pretrained": "m", "rope_parameters": rope}})  # fmt: skip
    rows = compared(tmp_path, baseline="unmodified").drop(index="base")
    p = rows["p"].sort_values()
    holm = (p * [3, 2, 1]).cummax().clip(upper=1)
    assert rows["p_holm"].to_dict() == pytest.approx(holm.to_dict())
    shown = (rows["p_holm"] < 0.05) & ((rows["diff_low"] > 0) | (rows["diff_high"] < 0))
    assert (rows["mark"] == "*").tolist() == shown.tolist()
    assert shown.any()
    assert not shown.all()


def marks(rng, documents, spread, shift):
    """Marks and intervals of two losses of so many documents each."""
    base = rng.normal(2.0, 0.3, documents)
    change = shift + spread * rng.standard_t(2, documents)
    return base, base + change


def losses(values, tokens=100, name="bits_per_byte"):
    return [
        sample(at, [value * tokens, tokens], name,
               doc={"document_id": at, "cluster": at}) for at, value in enumerate(values)
    ]  # fmt: skip


def test_mark_needs_an_interval_without_zero(tmp_path):
    """The two tests differ where differences are skewed: a mark needs both."""
    rng = np.random.default_rng(0)
    for at in range(60):
        for values, more in zip(marks(rng, 7, 0.05, 0.05), ({}, ROPE), strict=True):
            write(tmp_path / f"{at}{len(more)}", {"bits_per_byte,none": values.mean() / np.log(2)},
                  f"task{at}", losses(values),
                  config={"model_args": {"pretrained": "m", **more}})  # fmt: skip
    rows = compare(load_results(tmp_path), baseline="unmodified").query("label == 'yarn x2'")
    beside = (rows["diff_low"] > 0) | (rows["diff_high"] < 0)
    assert not (rows["mark"].eq("*") & ~beside).any()
    assert (rows["p_holm"].lt(0.05) & ~beside).any(), "the sign flips alone would mark some"
    assert (rows["mark"] == "*").any()
    lost = rows["difference"] > 0
    assert (rows.loc[lost, "losses"] >= 1).all(), "a larger loss is worse"


def test_mark_of_too_few_documents_is_undecided(tmp_path):
    first, second = answers([0] * 5), answers([1] * 5)
    row = two(tmp_path, {"samples": first}, {"samples": second}, baseline="unmodified").loc["b"]
    assert row["mark"] == "?", "2 / 2**5 is above 0.05"


def test_baseline_that_nothing_has_is_refused(tmp_path):
    write(tmp_path, ACC)
    with pytest.raises(SettingError, match="baseline: 'nope' is not allowed; allowed: unmodified"):
        compared(tmp_path, baseline="nope")
    with pytest.raises(SettingError, match="across"):
        compared(tmp_path, across="sizes")


def models(tmp_path, one, other, task="arc", **more):
    write(tmp_path / "a", task=task, better=UP, model_name="org/a", **one, **more)
    write(tmp_path / "b", task=task, better=UP, model_name="org/b", **other, **more)
    return compared(tmp_path, across="models", baseline="org/a, unmodified")


def own_prompts(rows, model):
    return [row | {"prompt_hash": f"{model} {row['prompt_hash']}"} for row in rows]


def test_models_are_ranked_and_paired_on_the_same_questions(tmp_path):
    """Their prompts differ, by template and tokenizer; the questions do not."""
    rng = np.random.default_rng(0)
    first, second = clustered(rng, 10, 4), clustered(rng, 10, 4, 0.35)
    one = {"samples": own_prompts(first, "a"), "chat_template": "a"}
    other = {"samples": own_prompts(second, "b"), "config": {"model_dtype": "bfloat16"}}
    rows = models(tmp_path, one, other)
    assert rows["block"].nunique() == 1
    assert rows["label"].tolist() == ["org/a, unmodified", "org/b, unmodified"]
    assert rows["rank"].tolist() == [2, 1]
    change = mean_of(second)["acc,none"] - mean_of(first)["acc,none"]
    assert rows.loc["b", "difference"] == pytest.approx(change)
    assert rows.loc["b", "p"] < 0.05


def test_models_on_other_questions_are_not(tmp_path):
    rows = models(tmp_path, {"samples": answers([1, 0, 0])}, {"samples": answers([1, 1, 0], 9)})
    assert rows["rank"].isna().all()
    assert rows["difference"].isna().all()


@pytest.mark.parametrize(
    ("name", "tokens", "ranked"),
    [
        ("bits_per_byte", (700, 700), True),
        ("bits_per_byte", (700, 690), False),
        ("token_perplexity", (100, 100), False),
    ],
)
def test_losses_of_models_are_ranked_by_bits_over_the_same_bytes(tmp_path, name, tokens, ranked):
    sides = []
    for shift, size in zip((0.0, 0.1), tokens, strict=True):
        values = np.linspace(1.8, 2.2, 6) + shift
        number = values.mean() / np.log(2) if name == "bits_per_byte" else np.exp(values.mean())
        sides.append({"samples": losses(values, size, name), "values": {f"{name},none": number}})
    rows = models(tmp_path, *sides, task="ppl_govreport")
    assert rows["rank"].notna().tolist() == [ranked, ranked]
    assert rows["difference"].notna().tolist() == [False, ranked]
    if name == "token_perplexity":
        assert set(rows["note"]) == {TOKENS_DIFFER}


def test_note_says_that_documents_were_cut_elsewhere(tmp_path):
    sides = []
    for kept in (90, 80):
        rows = answers([1, 0, 1, 1])
        for at, row in enumerate(rows):
            row["doc"] = {
                "document_id": at,
                "cluster": at,
                "prompt": {
                    "kept_head": kept,
                    "kept_tail": 0,
                    "document_tokens": 100,
                    "truncated": at > 1,
                },
            }
        sides.append({"samples": rows})  # fmt: skip
    sides[1]["samples"][0]["acc"] = 0
    rows = models(tmp_path, *sides)
    assert rows["rank"].notna().all()
    assert rows["note"].str.contains("documents were cut at different places").all()
    same = models(tmp_path / "same", sides[0], sides[0])
    assert not same["note"].str.contains("cut at different").any()


def of_values(values, unit="score", per_document=1, name="acc"):
    """Samples of these numbers, so many to a document; losses are of 100 tokens each."""
    of = (lambda v: [100 * v, 100]) if unit == "loss" else (lambda v: v)
    return [
        sample(at, of(value), name,
               doc={"document_id": at // per_document, "cluster": at // per_document,
                    "question_id": at}) for at, value in enumerate(values)
    ]  # fmt: skip


def test_compare_intervals_of_shares_are_on_the_logit_scale(tmp_path):
    shares, beyond = RNG.random(24), RNG.random(24) * 3
    shares[:3] = 0, 1, 0.5  # not all are 0 or 1
    write(tmp_path / "a", samples=of_values(shares, per_document=4), better=UP)
    write(tmp_path / "b", samples=of_values(beyond, per_document=4), better=UP, task="other")
    rows = compared(tmp_path)
    assert rows["interval"].tolist() == ["clustered"] * 2
    for folder, values in (("a", shares), ("b", beyond)):
        row, sums = rows.loc[folder], values.reshape(6, 4).sum(axis=1)
        error = np.sqrt(((sums - sums.mean()) ** 2).sum() / 5 / 6) / 4
        half, mean = stats.t.ppf(0.975, 5) * error, values.mean()
        ends = [mean - half, mean + half]
        if folder == "a":
            middle, width = np.log(mean / (1 - mean)), half / (mean * (1 - mean))
            ends = [1 / (1 + np.exp(-middle + width)), 1 / (1 + np.exp(-middle - width))]
        assert (row["stderr"], row["low"], row["high"]) == pytest.approx((error, *ends))


@pytest.mark.parametrize(
    ("how", "interval", "right"),
    [
        ({"samples": of_values([1, 0, 0, 1])}, "exact", (2, 4)),
        ({"samples": of_values([0.5, 0.25, 1, 0])}, "clustered", None),
        ({"samples": of_values([1] * 8, per_document=4)}, "exact", (2, 2)),
        ({"values": {"acc,none": 1.0}}, "exact", (20, 20)),
        ({"values": {"acc,none": 1.0, "acc_stderr,none": 0.0}}, "exact", (20, 20)),
        ({"values": {"acc,none": 0.5, "acc_stderr,none": 0.1}}, "reported", None),
        ({"values": {"acc,none": 0.5, "acc_stderr,none": 0.0}}, "none", None),
        ({"values": {"acc,none": 0.5}}, "none", None),
    ],
)  # fmt: skip
def test_interval_kind_of_a_score(tmp_path, how, interval, right):
    row = compared(write(tmp_path / "a", better=UP, **how).parent).loc["a"]
    assert row["interval"] == interval
    if right is not None:
        ends = stats.binomtest(*right).proportion_ci()
        assert (row["low"], row["high"]) == pytest.approx((ends.low, ends.high))
    assert (row["stderr"] == 0.1) == (interval == "reported")


@pytest.mark.parametrize("documents", [2, 3])
def test_compare_loss_interval_needs_three_documents(tmp_path, documents):
    base = np.linspace(0.5, 0.7, documents)
    for at, more in enumerate(({}, ROPE)):
        values = base + at * np.linspace(0.1, 0.2, documents)
        for task, name in (("x", "loss"), ("y", "acc")):
            rows = of_values(values, unit=name, name=name)
            write(tmp_path / f"{task}{at}", {f"{name},none": values.mean()}, task, rows,
                  better={name: name == "acc"},
                  config={"model_args": {"pretrained": "m", **more}})  # fmt: skip
    rows = compared(tmp_path, baseline="unmodified")
    assert rows["low"].notna().to_dict() == {
        "x0": documents > 2, "x1": documents > 2, "y0": True, "y1": True,
    }  # fmt: skip
    assert rows["diff_low"].notna()[["x1", "y1"]].tolist() == [documents > 2, True]


def test_mcnemar_is_exact_for_many_questions(tmp_path):
    first, second = answers([0] * 20 + [1] * 9 + [0] * 6), answers([1] * 20 + [0] * 9 + [0] * 6)
    row = two(tmp_path, {"samples": first}, {"samples": second}, baseline="unmodified").loc["b"]
    assert row["p"] == pytest.approx(stats.binomtest(9, 29).pvalue, rel=1e-12)


def test_compare_unit_is_that_of_all_runs_of_a_task(tmp_path):
    for at, (task, value) in enumerate((("x", 0.5), ("x", 37.0), ("y", 0.5), ("z", -0.5))):
        write(tmp_path / f"{at}", {"f1,none": value}, task,
              config={"model_args": {**ROPE, "dtype": f"{at}"}})  # fmt: skip
    assert compared(tmp_path)["unit"].tolist() == ["", "", "share", ""]


def test_runs_of_unknown_length_are_ranked_compared_and_dated(tmp_path):
    """A key that is missing in all rows drops none of them."""
    first, second = answers([1, 0, 0, 0, 0, 0, 1, 0]), answers([1, 1, 1, 1, 1, 1, 1, 0])
    known = {"better": {"acc": True}, "max_length": None}
    write(tmp_path / "a", samples=first, date=1e9, **known)
    write(tmp_path / "b", samples=second, config={"model_args": ROPE}, **known)
    rows = compared(tmp_path, baseline="unmodified")
    assert rows["context_length"].isna().all()
    assert rows["rank"].tolist() == [2, 1]
    assert rows.loc["b", "difference"] == 0.625
    assert rows.loc["b", "p_holm"] == rows.loc["b", "p"]
    write(tmp_path / "c", samples=second, date=2e9, **known)
    rows = compared(tmp_path)
    assert rows["label"].tolist() == [
        "unmodified (2001-09-09 01:46:40)", "yarn x2", "unmodified (2033-05-18 03:33:20)",
    ]  # fmt: skip
    assert rows["note"].tolist() == [REPETITION, "", ""]
    other = {"better": {"acc": False}, "max_length": None}
    write(tmp_path / "d", samples=first, config={"model_args": {"rope_parameters": {
        "rope_type": "linear", "factor": 2}}}, **other)  # fmt: skip
    assert set(compared(tmp_path)["note"]) == {UNKNOWN_DIRECTION}


def test_note_is_empty_without_rivals(tmp_path):
    write(tmp_path / "a", ACC)
    assert compared(tmp_path)["note"].tolist() == [""]
