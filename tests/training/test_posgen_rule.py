"""PosGen trained on random numbers that the rule labels: labels, stages, resuming, learning."""

import numpy as np
import pytest

from leval_harness.training.posgen_rule import JUDGED, batch, lengths
from leval_harness.training.posgen_settings import Architecture, PosGenRun, Recipe, preset
from leval_harness.training.posgen_train import train_all
from leval_tasks.metadata import SUBTASKS, PosGenSettings
from leval_tasks.posgen.sequences import extend, random_seeds, rule_labels
from resonance_vllm.errors import UserError

pytestmark = pytest.mark.hf

RUN = PosGenRun("semi_recursive", "rope", 0)


def _recipe(**changes):
    recipe = Recipe(
        architecture=Architecture(hidden=32, heads=2, head_dim=16, feed_forward=48),
        data={"modulus": 3, "train": 1, "validation": 8, "test": 8, "train_length": 10,
              "length": 20},
        batch_size=8,
        learning_rate=3e-3,
        labels="rule",
        stage_steps=30,
        final_steps=10,
    )  # fmt: skip
    return recipe.changed(**changes)


@pytest.mark.parametrize("subtask", SUBTASKS)
def test_labels_are_the_rule_for_the_numbers_that_stand_there(subtask):
    settings = PosGenSettings(subtask=subtask, modulus=7, train_length=5, length=30)
    sequences = extend(random_seeds(20, 4, 7, 0), settings)
    assert np.array_equal(rule_labels(sequences, settings), sequences[:, 4:])
    numbers = np.random.RandomState(1).randint(0, 7, size=(5, 12))
    labels = rule_labels(numbers, settings)
    for row, made in zip(numbers, labels, strict=True):
        for at in range(4, 12):
            far = {"recursive": at - 4, "cot": 0, "semi_recursive": (at - 4) // 2}[subtask]
            assert made[at - 4] == (row[far] + row[at - 3 : at].sum()) % 7


def test_batches_hold_so_many_tokens_and_a_label_never_stands_in_its_input():
    settings = PosGenSettings(subtask="semi_recursive", modulus=5)
    inputs, labels = batch(settings, 16, 2048, np.random.RandomState(0))
    assert inputs.shape == (128, 16)
    assert labels.shape == (128, 12)
    assert (inputs[:, 0] == 5 + 4).all(), "the prefix"
    again = rule_labels(np.pad(inputs[:, 1:], ((0, 0), (0, 1))), settings)
    assert np.array_equal(labels, again), "the last number is not needed"
    assert lengths(settings) == [6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64]
    assert preset("semi-recursive").settings("semi_recursive").modulus == 5


def test_a_run_trains_through_its_stages_and_is_made_once(tmp_path, no_driver):
    """On a machine whose torch was built for a GPU that is not there."""
    recipe = _recipe(stage_accuracy=0.0)
    (result,) = train_all(recipe, [RUN], tmp_path)
    steps = [JUDGED, 2 * JUDGED, 3 * JUDGED]
    rows = (tmp_path / RUN.folder / "metrics.csv").read_text().splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == [*steps, steps[-1] + 10], "6, 8, 10"
    assert result["steps"] == steps[-1] + 10
    assert list(train_all(recipe, [RUN], tmp_path)) == [result]
    (again,) = train_all(recipe, [RUN], tmp_path / "again")
    assert again["test"] == result["test"]


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    with pytest.raises(UserError, match=r"loss: nan at step \d+ in semi_recursive/rope/seed-0"):
        list(train_all(_recipe(learning_rate=1e30), [RUN], tmp_path, device="cpu"))
