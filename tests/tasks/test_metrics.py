import pytest

from leval_tasks.closed.catalog import TASKS
from leval_tasks.metrics import (
    LM_EVAL,
    OURS,
    SHARE,
    UNKNOWN,
    compose,
    directions,
    length_of,
    metric_of,
    split,
)


def test_names_are_taken_apart_as_they_are_made():
    assert compose("token_perplexity", 8192) == "token_perplexity@8192"
    assert split("token_perplexity@8192") == ("token_perplexity", 8192)
    assert split("nll@0-4096") == ("nll", None)  # of an earlier version
    assert split("exact_match") == ("exact_match", None)
    assert [length_of("1" * digits) for digits in (4, 11)] == [1111, 11111111111]
    assert length_of("1" * 12) is length_of("1" * 13) is None


LOSSES = {"perplexity", "nll", "loss", "windows_loss", "bits_per_byte"}
LOSSES |= {f"{each}_perplexity" for each in ("word", "byte", "token", "paper")}


def test_lower_is_better_for_losses_and_what_is_made_of_them():
    assert {name for name, metric in OURS.items() if metric.kind == "loss"} == {*LOSSES, "gain"}
    names = [*OURS, "token_perplexity@8192", "exact_match_stderr"]
    lower = {*LOSSES, "token_perplexity@8192", "exact_match_stderr"}
    assert directions(names) == {name: name not in lower for name in names}
    assert {metric for task in TASKS.values() for metric in task.metrics()} <= {*OURS}


def test_a_metric_of_ours_that_is_not_in_the_table_is_refused():
    with pytest.raises(KeyError):
        directions(["brand_new"])


def test_directions_agree_with_lm_evals_own():
    from lm_eval.api import metrics, registry

    assert metrics
    stated = registry.HIGHER_IS_BETTER_REGISTRY
    both = sorted({*LM_EVAL} & {*stated})
    assert len(both) > 12
    assert [LM_EVAL[name].higher_is_better for name in both] == [stated[name] for name in both]


@pytest.mark.parametrize(("task", "metric", "unit"), [
    ("squadv2", "f1", "percent"), ("drop", "f1", "share"), ("scrolls_qasper", "f1", "percent"),
    ("humaneval", "pass@1", "share"), ("mbpp", "pass_at_100", "share"), ("a", "pass@32", "share"),
    ("longbench_qasper", "score", "share"), ("mine", "score", ""), ("wiki", "4096", "share"),
    ("ppl_pg19", "token_perplexity@4096", "perplexity"), ("mine", "my_accuracy", ""),
])  # fmt: skip
def test_a_metric_has_the_unit_of_its_task(task, metric, unit):
    assert metric_of(metric, task).unit == unit


def test_every_number_of_tries_is_a_share():
    tries = [f"pass{at}{n}" for at in ("@", "_at_") for n in (1, 2, 5, 8, 10, 32, 64, 100)]
    assert {metric_of(name, "humaneval").unit for name in tries} == {"share"}
    assert metric_of("pass@0", "humaneval") == UNKNOWN


def test_scores_have_two_decimals_and_losses_three():
    known = [*OURS.values(), *LM_EVAL.values()]
    losses = {each.decimals for each in known if each.kind == "loss"}
    shares = {each.decimals for each in known if each.unit == "share"}
    assert (losses, shares, UNKNOWN.decimals) == ({3}, {2}, 3)


def test_nothing_is_read_out_of_a_name():
    assert metric_of("my_perplexity_score", "mine") == UNKNOWN
    assert metric_of("4096", "ruler_vt") == SHARE
