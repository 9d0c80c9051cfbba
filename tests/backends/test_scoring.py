"""Log-probabilities in blocks of the vocabulary, and attention in blocks of a window."""

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from leval_harness.backends import scoring
from leval_harness.backends.attention import windowed_attention
from leval_harness.backends.scoring import token_scores

POSITIONS = 70
VOCABULARY = 333


class PlainHead:
    """The output layer of a model."""

    def __init__(self, matrix):
        self.matrix = matrix
        self.decoder = self.output = matrix
        self.vocabulary = VOCABULARY

    def logits(self, states):
        return self.output(states)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def head(request):
    torch.manual_seed(0)
    return PlainHead(torch.nn.Linear(24, VOCABULARY).to(request.param))


@pytest.mark.parametrize("by_block", [True, False])
def test_scores_are_those_of_cross_entropy(head, by_block, monkeypatch):
    """Several blocks of both sizes; some logits are equal, of which `argmax` takes the first."""
    monkeypatch.setattr(scoring, "BLOCK_POSITIONS", 32)
    monkeypatch.setattr(scoring, "BLOCK_VOCABULARY", 50)
    states = 3 * torch.randn(POSITIONS, 24).to(head.output.weight.dtype)
    with torch.no_grad():
        head.output.weight[200:300] = head.output.weight[:100]
        head.output.bias[200:300] = head.output.bias[:100]
        logits = head.output(states)
        targets = logits.argmax(-1)
        targets[::3] = torch.randint(VOCABULARY, targets[::3].shape)
        if not by_block:
            head.matrix = None
        logprob, correct = token_scores(head, states, targets.tolist(), with_correct=True)
        alone, nothing = token_scores(head, states, targets.tolist(), with_correct=False)
    expected = -cross_entropy(logits.float(), targets, reduction="none")
    torch.testing.assert_close(logprob, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(correct, logits.argmax(-1) == targets)
    assert torch.equal(alone, logprob)
    assert nothing is None


@pytest.mark.parametrize("before", [0, 5, 299])
@pytest.mark.parametrize("n", [1, 40, 700])
def test_windowed_attention_is_that_over_all_keys(before, n):
    window = 300
    torch.manual_seed(0)
    query = torch.randn(1, 4, n, 8)
    key, value = torch.randn(2, 1, 2, before + n, 8)
    positions = torch.arange(n)[:, None] + before
    keys = torch.arange(before + n)
    mask = ((keys <= positions) & (keys > positions - window))[None, None]
    expected = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    output = windowed_attention(query, key, value, mask, 0.3, window)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
