import pytest
import torch

from leval_harness.backends import attention, cache, cache_layers
from leval_harness.backends.attention import UnsupportedAttentionError
from resonance_vllm.hf import partial_attention as partials
from resonance_vllm.hf.partial_attention import partial_attention, plain_attention


def reference(query, key, value, scale, mask):
    scores = (query.double() @ key.double().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask.double()
    return scores.softmax(-1) @ value.double(), scores.logsumexp(-1)


@pytest.mark.parametrize("function", [partial_attention, plain_attention])
@pytest.mark.parametrize("kind", ["free", "causal", "masked"])
def test_partial_attention_gives_output_and_normaliser(function, kind, monkeypatch):
    monkeypatch.setattr(partials, "_SCORES_AT_ONCE", 2 * 3 * 7 * 2)  # two queries at a time
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 7, 16) for _ in range(3))
    mask = None
    if kind == "causal":
        mask = torch.full((7, 7), float("-inf")).triu(1)
    elif kind == "masked":
        mask = torch.zeros(2, 1, 7, 7).masked_fill_(torch.rand(2, 1, 7, 7) < 0.3, float("-inf"))
        mask[..., 0] = 0
    got = function(
        query, key, value, 0.3, mask=mask if kind == "masked" else None, causal=kind == "causal"
    )
    for mine, expected in zip(got, reference(query, key, value, 0.3, mask), strict=True):
        torch.testing.assert_close(mine.double(), expected, atol=2e-6, rtol=0)


def whole_path(capacity, *, split):
    """A path of one layer of full attention."""
    return cache.PrefixCache([cache_layers.PrefixLayer(capacity, split=split)], split=split)


class Layer(torch.nn.Module):
    layer_idx = 0


@pytest.mark.parametrize("pads", [None, [0, 2, 1]])
def test_split_softmax_equals_one_softmax_over_shared_and_own_keys(pads):
    """Prefill in two chunks, three rows after it, then a decoding step; grouped query heads."""
    torch.manual_seed(1)
    shared_k, shared_v = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    own_k, own_v, query = torch.randn(3, 2, 5, 8), torch.randn(3, 2, 5, 8), torch.randn(3, 6, 5, 8)
    path = whole_path(9, split=True)
    path.update(shared_k[:, :, :4], shared_v[:, :, :4], 0)
    path.update(shared_k[:, :, 4:], shared_v[:, :, 4:], 0)
    rows = path.fork(3, 5)
    rows.pads = None if pads is None else torch.tensor(pads)
    outs = []
    for part in (slice(0, 4), slice(4, 5)):
        keys, values = rows.update(own_k[:, :, part], own_v[:, :, part], 0)
        with attention.attending(rows):
            out, _ = attention.shared_prefix_attention(
                Layer(), query[:, :, part], keys, values, None, scaling=0.5
            )
        outs.append(out)
    assert rows.get_seq_length() == 14

    keys = torch.cat([shared_k.expand(3, -1, -1, -1), own_k], 2).repeat_interleave(3, 1)
    values = torch.cat([shared_v.expand(3, -1, -1, -1), own_v], 2).repeat_interleave(3, 1)
    mask = torch.zeros(3, 1, 5, 14)
    mask[:, :, :, 9:] = torch.full((5, 5), float("-inf")).triu(1)
    for row, pad in enumerate(pads or [0, 0, 0]):
        mask[row, :, :, 9 : 9 + pad] = float("-inf")
    expected = reference(query, keys, values, 0.5, mask)[0].transpose(1, 2)
    got = torch.cat(outs, 1)
    for row, pad in enumerate(pads or [0, 0, 0]):
        torch.testing.assert_close(got[row, pad:].double(), expected[row, pad:], atol=2e-6, rtol=0)


def test_each_device_has_the_mask_of_its_layers():
    rows = whole_path(4, split=True).fork(2, 4)
    rows.pads, layer = torch.tensor([0, 2]), rows.layers[0]
    here, _ = rows.masks(layer, 1, torch.ones(2, 1, 4, 8))
    there, _ = rows.masks(layer, 1, torch.ones(2, 1, 4, 8, device="meta"))
    assert (here.device.type, there.device.type) == ("cpu", "meta")
    assert rows.masks(layer, 1, torch.ones(2, 1, 4, 8))[0] is here
    assert here.isinf().sum(-1).flatten().tolist() == [0, 2]


def test_shared_keys_are_views_not_copies():
    path, whole = whole_path(8, split=True), whole_path(8, split=False)
    for each in (path, whole):
        each.update(torch.ones(1, 2, 8, 4), torch.ones(1, 2, 8, 4), 0)
        each.cut(6)
    rows = path.fork(5, 3)
    assert rows.layers[0].shared_pair[0].data_ptr() == path.layers[0].keys.data_ptr()
    copied = whole.fork(5, 3)
    keys, _ = copied.update(torch.zeros(5, 2, 1, 4), torch.zeros(5, 2, 1, 4), 0)
    assert keys.shape == (5, 2, 7, 4)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "position_bias"])
def test_options_that_change_attention_are_refused(name):
    path = whole_path(4, split=True)
    tensor = torch.ones(1, 2, 4, 4)
    with attention.attending(path), pytest.raises(UnsupportedAttentionError, match=name):
        attention.shared_prefix_attention(Layer(), tensor, tensor, tensor, None, **{name: 3})
