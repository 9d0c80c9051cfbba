"""Readers of local models against the one function that reports log-probabilities of tokens."""

from types import SimpleNamespace

import numpy as np
import pytest

from leval_harness.diff import side
from leval_harness.diff.local import HFReader
from leval_harness.diff.setups import Setup
from leval_tasks.common.token_logprobs import scored_requests
from leval_tasks.perplexity.documents import Document
from resonance_vllm.common.errors import UserError

ROWS = [[1, *range(3, 32), *range(3, 32), *range(5, 25)], [1, *range(31, 3, -1), *range(3, 30)]]


@pytest.fixture
def model(tmp_path, save_llama, copying_model):
    """The trained model's tokenizer with random weights, which are wider than trained ones."""
    folder = save_llama(tmp_path / "m", vocab_size=32, hidden_size=64, initializer_range=0.3)
    for file in copying_model("yarn").glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def reader(folder, arguments=""):
    return HFReader(Setup.parse(f"{folder},device=cpu,{arguments}".rstrip(",")))


def test_log_probabilities_are_those_of_the_tasks(model):
    ours = reader(model)
    asked = [SimpleNamespace(token_parts=(None, row[:1], row[1:])) for row in ROWS]
    expected = [each.logprobs for each in scored_requests(ours.lm, asked)]
    for row, wanted in zip(ROWS, expected, strict=True):
        assert ours.read(row) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("chunk", [16, 7])
def test_chunks_change_nothing(model, chunk):
    alone, found = (reader(model, each).read(ROWS[0]) for each in ("", f"prefill_chunk={chunk}"))
    assert found == pytest.approx(alone, abs=1e-4)


def test_settings_of_quantization_reach_transformers(model):
    """Which names the package that it lacks; lm-eval itself takes them from a checkpoint alone."""
    settings = '{"quant_method": "quanto", "weights": "int8"}'
    with pytest.raises(UserError, match="optimum-quanto"):
        reader(f"hf:{model}", f"quantization_config={settings}")


def test_what_is_no_log_probability_is_named(model, monkeypatch):
    ours = reader(model)
    with pytest.raises(UserError, match="token 40 is outside of the vocabulary of 32 tokens"):
        ours.read([1, 40])
    monkeypatch.setattr(side, "open_reader", lambda setup: ours)
    monkeypatch.setattr(ours, "read", lambda row: np.log(np.float32([0.5, np.nan])))
    with pytest.raises(
        UserError, match="B: the log-probability at position 2 of document 1 is nan"
    ):
        side.read_b(ours.setup, [Document("a", "w1 w2")], [[1, 2, 3]])
