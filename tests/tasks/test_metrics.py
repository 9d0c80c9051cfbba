import pytest

from leval_tasks.closed.catalog import TASKS
from leval_tasks.common.metrics import (
    LM_EVAL,
    OURS,
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


LOSSES = {"perplexity", "nll", "loss", "reference_loss", "loss_difference", "bits_per_byte"}
LOSSES |= {f"{each}_perplexity" for each in ("word", "byte", "token", "paper")}


def test_lower_is_better_for_losses_and_what_is_made_of_them():
    assert {name for name, metric in OURS.items() if metric.kind == "loss"} == LOSSES
    names = [*OURS, "token_perplexity@8192", "exact_match_stderr"]
    lower = {*LOSSES, "token_perplexity@8192", "exact_match_stderr"}
    assert directions(names) == {name: name not in lower for name in names}
    assert {metric for task in TASKS.values() for metric in task.metrics()} <= {*OURS}
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
    ("humaneval", "pass@64", "share"), ("humaneval", "pass@0", ""),
    ("mine", "perplexity_score", ""),
])  # fmt: skip
def test_a_metric_has_the_unit_of_its_task(task, metric, unit):
    assert metric_of(metric, task).unit == unit
