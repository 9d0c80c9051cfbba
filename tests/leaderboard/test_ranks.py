"""What may be ranked and compared: the same questions, the same tokens, the same scale."""

import pytest
from plain_output import ROPE, sample, write

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables


def other_runs(tmp_path, values, metric, questions=None):
    """Two runs of one model by other people: as shipped and with YaRN."""
    for at, (value, config) in enumerate(zip(values, ({"pretrained": "m"}, ROPE), strict=True)):
        first = (questions or (0, 0))[at]
        rows = [sample(n, value, metric) for n in range(first, first + 20)] if questions else None
        better = {metric: True}
        write(
            tmp_path / f"r{at}", {f"{metric},none": value}, better=better, samples=rows,
            config={"model_args": config},
        )  # fmt: skip
    analysis = analyse(load_results(tmp_path))
    found = [entry for entry in analysis.entries if entry.score.metric == metric]
    assert len({entry.block for entry in found}) == 1
    notes = [note for table in build_tables(analysis) for note in table.notes]
    return found, [note for note in notes if note.startswith("Not ranked")]


def test_runs_with_other_questions_are_not_ranked(tmp_path):
    found, notes = other_runs(tmp_path, (0.4, 0.6), "acc", questions=(0, 5))
    assert [entry.rank for entry in found] == [None, None]
    assert notes == ["Not ranked, since the runs do not have the same questions: arc (acc)"]


def test_runs_with_the_same_questions_are_ranked(tmp_path):
    found, notes = other_runs(tmp_path, (0.4, 0.6), "acc", questions=(0, 0))
    assert sorted(entry.rank for entry in found) == [1, 2]
    assert notes == []


@pytest.mark.parametrize(("values", "ranked"), [
    ((0.4, 52.0), False), ((0.4, 0.6), True), ((40.0, 60.0), True), ((0.9, 1.2), False),
])  # fmt: skip
def test_a_share_beside_a_percentage_is_not_ranked(tmp_path, values, ranked):
    found, notes = other_runs(tmp_path, values, "rouge1")
    assert [entry.rank is not None for entry in found] == [ranked, ranked]
    assert [("percentages: arc (rouge1)" in note) for note in notes] == [True] * (not ranked)
