"""The lm-eval side of PosGen: index, settings and metrics without a model."""

import numpy as np
import pytest

from leval_tasks.errors import ContextLengthError
from leval_tasks.metadata import PosGenSettings
from leval_tasks.posgen.sequences import PosGenError
from leval_tasks.posgen.task import accuracies, read_settings
from leval_tasks.posgen.vocabulary import Vocabulary, build_tokenizer, from_tokenizer
from resonance_vllm.errors import SettingError

VOCABULARY = Vocabulary(tuple(range(17)), 21)


def test_vocabulary_has_the_ids_of_the_authors_code():
    vocabulary = from_tokenizer(build_tokenizer(17))
    assert vocabulary == VOCABULARY
    assert vocabulary.encode(np.array([[3, 16]])) == [[21, 3, 16]]
    with pytest.raises(PosGenError, match="hold the number 17"):
        vocabulary.encode(np.array([[17]]))
    assert build_tokenizer(17)("3 16")["input_ids"] == [21, 3, 16]


@pytest.mark.parametrize("prefix", [0, 1])
def test_accuracy_counts_numbers_by_their_position(prefix):
    settings = PosGenSettings(subtask="cot")
    # With a prefix token the first number is predicted as well; it is never scored.
    right = {4, 63, 64, 65, 255}
    correct = [position in right for position in range(1 - prefix, 256)]
    metrics = accuracies(correct, settings)
    assert metrics["id_accuracy"] == pytest.approx(2 / 60)
    assert metrics["ood_accuracy"] == pytest.approx(3 / 192)
    assert metrics["accuracy@64-127"] == pytest.approx(2 / 64)
    assert metrics["accuracy@192-255"] == pytest.approx(1 / 64)


def test_settings_come_from_metadata_else_checkpoint_else_vocabulary(tmp_path):
    (tmp_path / "config.json").write_text('{"posgen": {"modulus": 7, "length": 99, "seed": 3}}')
    pretrained = {"pretrained": str(tmp_path)}
    trained = read_settings("cot", pretrained, VOCABULARY)
    assert (trained.subtask, trained.modulus, trained.length, trained.seed) == ("cot", 7, 99, 3)
    asked = read_settings("cot", {**pretrained, "length": 128}, VOCABULARY)
    assert (asked.modulus, asked.length) == (7, 128)
    assert read_settings("cot", {}, VOCABULARY).modulus == 17


def test_a_model_that_does_not_read_whole_sequences_is_refused(tmp_path, while_running):
    from leval_tasks.posgen.task import PosGenTask

    build_tokenizer(17).save_pretrained(tmp_path)
    task = PosGenTask({"task": "posgen_cot", "metadata": {"pretrained": str(tmp_path)}})
    assert list(task.config.metadata["settings"]) == PosGenSettings.decides_numbers()

    def build() -> None:
        task.build_all_requests(limit=1, rank=0, world_size=1)

    with pytest.raises(ContextLengthError, match=r"length: 256 is above the 255 tokens"):
        while_running(build, "leval_harness.backends.hf_long", max_length=255, teacher_forced=None)
    while_running(build, "leval_harness.backends.hf_long", max_length=256, teacher_forced=None)
    assert len(task.instances[0].token_ids) == 257


def test_a_misspelt_setting_is_refused(tmp_path):
    with pytest.raises(SettingError, match="train_lenght: unknown setting; did you mean 'train_l"):
        read_settings("cot", {"pretrained": str(tmp_path), "train_lenght": 128}, VOCABULARY)
