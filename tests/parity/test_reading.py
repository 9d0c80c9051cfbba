"""Readers of local models against the one function that reports log-probabilities of tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from leval_harness.parity.local import HFReader
from leval_harness.parity.reading import TOP, of_entries, of_logprobs
from leval_harness.parity.setups import Setup
from leval_tasks.token_logprobs import scored_requests
from resonance_vllm.errors import UserError

pytestmark = pytest.mark.hf
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
    for found, wanted in zip(ours.read(ROWS), expected, strict=True):
        assert found.logprob == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("arguments", ["batch_size=2", "prefill_chunk=16", "prefill_chunk=7"])
def test_batches_and_chunks_change_nothing(model, arguments):
    row = ROWS[0]
    (alone, *_), found = reader(model).read([row]), list(reader(model, arguments).read([row] * 3))
    assert len(found) == 3
    for each in found:
        assert each.logprob == pytest.approx(alone.logprob, abs=1e-4)


def test_settings_of_quantization_reach_transformers(model):
    """Which names the package that it lacks; lm-eval itself takes them from a checkpoint alone."""
    settings = '{"quant_method": "quanto", "weights": "int8"}'
    with pytest.raises(UserError, match="optimum-quanto"):
        reader(f"hf:{model}", f"quantization_config={settings}")


def test_tops_are_those_of_the_logits(model):
    ours = reader(model)
    (found,) = ours.read(ROWS[:1])
    with torch.no_grad():
        logits = ours.lm.model(torch.tensor(ROWS[:1])).logits[0, :-1].float().log_softmax(-1)
    best = logits.topk(TOP)
    assert np.array_equal(found.top_ids, best.indices.numpy())
    assert found.top == pytest.approx(best.values.numpy(), abs=1e-5)


def test_what_is_no_log_probability_is_named():
    even = np.log(np.full((2, 4), 0.25, np.float32))
    with pytest.raises(UserError, match="token 9 is outside of the vocabulary of 4 tokens"):
        of_logprobs(even, [1, 9])
    even[1] = np.nan
    with pytest.raises(UserError, match="B: log-probability nan at position 2 of 3"):
        of_logprobs(even, [1, 2]).checked("B")


def test_entries_by_position_become_a_reading():
    found = of_entries([{5: -0.1, 7: -3.0}, {8: -2.0, 5: -0.5, 1: -4.0}], [1, 7, 8])
    assert found.logprob == pytest.approx([-3.0, -2.0])
    assert found.top_ids.tolist() == [[5, 7], [5, 8]]
    with pytest.raises(UserError, match="1 of 2 positions were scored: the prompt was cut"):
        of_entries([{5: -0.1}], [1, 5, 7])
    with pytest.raises(UserError, match="position 1: token 6 of the text was not scored"):
        of_entries([{5: -0.1}], [1, 6])
