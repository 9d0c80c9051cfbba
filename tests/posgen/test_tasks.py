"""The lm-eval side of PosGen: index, settings and metrics without a model."""

from pathlib import Path

import pytest

from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.metadata import PosGenSettings
from leval_tasks.posgen.sequences import build_tokenizer, modulus_of, special_id
from leval_tasks.posgen.task import PosGenTask, accuracies, read_settings
from resonance_vllm.common.errors import SettingError


def test_vocabulary_has_the_ids_of_the_authors_code():
    tokenizer = build_tokenizer(17)
    assert modulus_of(tokenizer) == 17
    assert tokenizer("3 16")["input_ids"] == [special_id("[EOS]", 17), 3, 16] == [21, 3, 16]


def test_a_tokenizer_of_another_kind_is_refused():
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "tokenizer")
    with pytest.raises(SettingError, match=r"no number vocabulary; use a checkpoint of"):
        modulus_of(other)


@pytest.mark.parametrize("prefix", [0, 1])
def test_accuracy_counts_numbers_by_their_position(prefix):
    settings = PosGenSettings(subtask="cot")
    # With a prefix token the first number is predicted as well; it is never scored.
    right = {4, 63, 64, 65, 255}
    correct = [position in right for position in range(1 - prefix, 256)]
    metrics = accuracies(correct, settings)
    assert metrics["id_accuracy"] == pytest.approx(2 / 60)
    assert metrics["ood_accuracy"] == pytest.approx(3 / 192)


def test_settings_sources_in_order(tmp_path):
    (tmp_path / "config.json").write_text('{"posgen": {"modulus": 7, "length": 99, "seed": 3}}')
    pretrained = {"pretrained": str(tmp_path)}
    trained = read_settings("cot", pretrained, 17)
    assert (trained.subtask, trained.modulus, trained.length, trained.seed) == ("cot", 7, 99, 3)
    asked = read_settings("cot", {**pretrained, "length": 128}, 17)
    assert (asked.modulus, asked.length) == (7, 128)
    assert read_settings("cot", {}, 17).modulus == 17
    with pytest.raises(SettingError, match="modulus: 19 is not allowed; allowed: up to the 17 num"):
        read_settings("cot", {"modulus": 19}, 17)


def test_a_model_that_does_not_read_whole_sequences_is_refused(tmp_path, while_running):
    build_tokenizer(17).save_pretrained(tmp_path)
    task = PosGenTask({"task": "posgen_cot", "metadata": {"pretrained": str(tmp_path)}})

    def build() -> None:
        task.build_all_requests(limit=1, rank=0, world_size=1)

    with pytest.raises(ContextLengthError, match=r"length: 256 is above the 255 tokens"):
        while_running(
            build, "leval_harness.backends.hf_long:HFLong", max_length=255, teacher_forced=None
        )
    while_running(
        build, "leval_harness.backends.hf_long:HFLong", max_length=256, teacher_forced=None
    )
    assert len(task.instances[0].token_ids) == 257
    with pytest.raises(SettingError, match=r"gives no result for each position.*hf-long"):
        while_running(build, "lm_eval.models.huggingface:HFLM", max_length=256)
