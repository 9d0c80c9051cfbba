"""What a line of lm-eval's samples holds: rows of real runs of SmolLM2, shortened."""

import math

import pytest
from plain_output import entries, sample, write

from leval_harness.old_results.sample_lines import Sample


def asked(*requests):
    return {f"gen_args_{n}": {"arg_0": a, "arg_1": b} for n, (a, b) in enumerate(requests)}


FRANCE = "The capital of France is"
MUTUAL = {
    "arguments": asked(
        (FRANCE, " Paris"), (FRANCE, " Berlin"), ("", " Paris"), ("", " Berlin"),
    ),
    "resps": [[["-0.26", "True"]], [["-6.93", "False"]], [["-17.3", "False"]], [["-19", "False"]]],
}  # fmt: skip
SCHEMA = {
    "arguments": asked((f"{FRANCE} Paris", "  ends here."), (f"{FRANCE} Berlin", "  ends here.")),
    "resps": [[["-35.1", "False"]], [["-31.2", "False"]]],
}
WITHOUT_PROMPT = {
    "arguments": asked(("", "one"), ("", "two")),
    "resps": [[["-1.5", "False"]], [["-2.5", "False"]]],
}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (MUTUAL, [("Paris", -0.26), ("Berlin", -6.93)]),
        (SCHEMA, [("Paris ends here.", -35.1), ("Berlin ends here.", -31.2)]),
        (WITHOUT_PROMPT, [("one", -1.5), ("two", -2.5)]),
    ],
    ids=["mutual information", "one ending for several beginnings", "no prompt at all"],
)
def test_choices_are_what_the_model_chose_from(row, expected):
    assert Sample(row).choices == expected


@pytest.mark.parametrize(
    ("resps", "texts"),
    [
        ([[" Paris", " New York", " Paris"]], [" Paris", " New York", " Paris"]),
        ([["one"], ["two"]], ["one", "two"]),
        ([[["-1303.15", "False"]]], ["-1303.15"]),
        ([[3]], []),
    ],
)  # fmt: skip
def test_every_response_is_there_also_where_a_task_repeats_a_request(resps, texts):
    assert Sample({"resps": resps}).responses == texts


def test_a_loss_of_any_name_is_the_one_that_its_aggregation_makes(tmp_path):
    """lm-eval's `weighted_perplexity` takes log-likelihoods, whatever a task calls its metric."""
    listed = [{"metric": "tokens_loss", "aggregation": "weighted_perplexity"}]
    rows = [sample(n, [-1.5 * (n + 1), n + 1], "tokens_loss") for n in range(20)]
    for name, value in (("right", math.exp(1.5)), ("wrong", math.exp(-1.5))):
        figures = {"tokens_loss,none": value}
        write(tmp_path / name, figures, fields={"metric_list": listed},
              better={"tokens_loss": False}, samples=rows)  # fmt: skip
    (right,), (wrong,) = (entries(tmp_path / name) for name in ("right", "wrong"))
    assert right.score.value == pytest.approx(math.exp(1.5))
    assert (wrong.score.status, wrong.score.value) == ("malformed", None)
    assert wrong.score.note.startswith("the samples give 4.48")
