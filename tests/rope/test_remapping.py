"""Position remapping on transformers, against a naive float64 implementation and closed forms."""

import copy

import naive_llama
import naive_maps
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_maps import BASE, MAPS, MOVING, settings, text, tiny

from resonance_vllm import hf
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.remapping import RemappedMethod
from resonance_vllm.core.spec import METHODS, RopeRequest, RopeSpec
from resonance_vllm.export import export_checkpoint
from resonance_vllm.hf import key_slices, remapping

PLAIN_ROPE = {"rope_type": "default", "rope_theta": BASE}
PLAIN = naive_llama.inverse_frequencies(BASE, 8)
CHUNKS = ((0, 17), (17, 40), (40, 41), (41, 42), (42, 61))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks and slices that a text of 61 tokens has several of."""
    monkeypatch.setattr(key_slices, "_QUERIES", 8)
    monkeypatch.setattr(key_slices, "_UNMASKED", 2)


def in_chunks(model, tokens, chunks=CHUNKS):
    from transformers import DynamicCache

    past = DynamicCache(config=model.config)
    found = [
        model(torch.tensor([tokens[a:b]]), past_key_values=past, use_cache=True).logits[0]
        for a, b in chunks
    ]
    return torch.cat(found)


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, atol=5e-4, rtol=0)


def test_remapping_has_a_naive_form_of_each_method():
    assert set(MAPS) == {n for n, method in METHODS.items() if issubclass(method, RemappedMethod)}


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_remapping_logits_equal_the_definition(name, family):
    """Prefill, chunked prefill and decoding."""
    model, tokens = tiny(family, settings(name)), text()
    expected = naive_maps.expected(model, tokens, name)
    plain = naive_llama.logits(model, tokens, lambda i, j: i - j, PLAIN)
    assert float((plain - expected).abs().max()) > 0.1
    close(model(torch.tensor([tokens])).logits[0], expected)
    close(in_chunks(model, tokens), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("window", [4, 20])
def test_remapping_with_a_sliding_window(name, window):
    model, tokens = tiny("mistral", settings(name), sliding_window=window), text()
    expected = naive_maps.expected(model, tokens, name, window=window)
    close(model(torch.tensor([tokens])).logits[0], expected)
    close(in_chunks(model, tokens), expected)


@torch.no_grad()
def test_remapping_with_resonance():
    model, tokens = (
        tiny("llama", settings("self_extend") | {"rope_type": "resonance_self_extend"}),
        text(),
    )
    wavelengths = (2 * torch.pi / PLAIN).round()
    expected = naive_maps.expected(model, tokens, "self_extend", 2 * torch.pi / wavelengths)
    close(model(torch.tensor([tokens])).logits[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
def test_remapping_is_plain_rope_up_to_native_length(name):
    """With the default window and chunk, and with factor 1."""
    rope = {k: v for k, v in settings(name, factor=1.0).items() if k not in MAPS[name][0]}
    mapped, tokens = tiny("llama", rope), text(naive_maps.NATIVE)
    plain = tiny("llama", {"rope_type": "default", "rope_theta": BASE})
    assert mapped.config._attn_implementation != plain.config._attn_implementation
    found, expected = (each(torch.tensor([tokens])).logits for each in (mapped, plain))
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
def test_remapping_generates_padded_rows_as_single_ones(name):
    model, long, short = tiny("llama", settings(name)), text(40), text(27, seed=1)
    padded = torch.tensor([long, [3] * 13 + short])
    mask = torch.ones_like(padded)
    mask[1, :13] = 0
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 3}
    together = model.generate(padded, attention_mask=mask, **options)[:, 40:].tolist()
    alone = [
        model.generate(torch.tensor([each]), **options)[0, len(each) :].tolist()
        for each in (long, short)
    ]
    assert together == alone


@torch.no_grad()
def test_remapping_is_saved_copied_and_cast(tmp_path):
    model, tokens = tiny("llama", settings("self_extend")), torch.tensor([text()])
    expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    reloaded = hf.load(tmp_path, dtype=torch.float32)
    assert reloaded(tokens).logits.equal(expected)
    assert copy.deepcopy(model)(tokens).logits.equal(expected)
    half = hf.load(tmp_path, precision="float32", dtype=torch.bfloat16)
    difference = half(tokens).logits.double().log_softmax(-1) - expected.double().log_softmax(-1)
    assert float(difference.abs().mean()) < 0.1


LENGTHS = st.integers(8, 64)


@given(st.data(), LENGTHS, st.sampled_from([1.0, 1.5, 2.0, 7.0]))
@pytest.mark.parametrize("name", MAPS)
def test_parts_hold_each_key_once_within_native_distances(name, data, trained, factor):
    given_keys = {"rope_theta": BASE, "original_max_position_embeddings": trained}
    if name == "dual_chunk":
        given_keys["chunk_size"] = data.draw(st.integers((trained + 1) // 2, trained - 1))
    else:
        given_keys["window_size"] = data.draw(st.integers(1, trained - 1))
    method = RopeSpec.from_dict({"rope_type": name, "factor": factor, **given_keys}).method
    length = int(trained * factor)
    at = torch.arange(length)
    seen = torch.zeros(length, length, dtype=torch.int64)
    for part in method.parts():
        first, end = part.first(at), part.end(at)
        inside = (at[None] >= first[:, None]) & (at[None] < end[:, None])
        distance = part.query(at)[:, None] - part.key(at)[None]
        assert bool((first[1:] >= first[:-1]).all() and (end[1:] >= end[:-1]).all())
        assert bool(
            ((distance >= 0) & (distance < trained))[inside & (at[None] <= at[:, None])].all()
        )
        seen += inside
    assert seen.tril().equal(torch.ones_like(seen).tril())


@given(LENGTHS, st.sampled_from([1.0, 1.5, 2.0, 7.0, 33.0]), st.data())
def test_the_smallest_group_that_covers_the_factor(trained, factor, data):
    window = data.draw(st.integers(1, trained - 1))
    given_keys = {
        "rope_theta": BASE,
        "original_max_position_embeddings": trained,
        "window_size": window,
    }
    rope = {"rope_type": "self_extend", "factor": factor, **given_keys}
    group, last = RopeSpec.from_dict(rope).method.group, int(trained * factor) - 1

    def longest(size):
        return last // size + window - window // size

    assert group == min(size for size in range(1, last + 2) if longest(size) < trained)
    if group > 1:
        with pytest.raises(RopeConfigError, match=f"group_size: .* allowed: from {group} on"):
            RopeSpec.from_dict({**rope, "group_size": group - 1})


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("self_extend", {"window_size": 24}, "window_size: 24 is not below 24"),
        ("dual_chunk", {"chunk_size": 24}, "chunk_size: 24 .*below 24"),
        ("dual_chunk", {"chunk_size": 11}, "chunk_size: 11 .*at least half"),
    ],
)
def test_settings_that_leave_the_trained_distances_are_refused(name, wrong, message):
    with pytest.raises(RopeConfigError, match=message):
        RopeSpec.from_dict(settings(name, **wrong))


def of_family(family, rope):
    """A tiny model with random weights in its norms, which some families apply after rotation."""
    more = {}
    if "moe" in family or family == "mixtral":
        more = dict.fromkeys(("num_local_experts", "num_experts"), 4) | {"num_experts_per_tok": 2}
        more |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16)
    if family == "gemma3_text":
        rope = {"full_attention": rope, "sliding_attention": PLAIN_ROPE}
        more = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    if family.startswith("glm"):
        rope = {**rope, "partial_rotary_factor": 0.5}
    model = tiny(family, rope, **more)
    for name, weight in model.named_parameters():
        if weight.ndim == 1 and "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


@torch.no_grad()
@pytest.mark.parametrize("family", remapping.SUPPORTED)
def test_remapping_uses_the_rotation_of_each_family(family):
    """With a window over the whole text it is plain RoPE, and all of it is our turning."""
    tokens = text()
    rope = settings("self_extend", window_size=71, original_max_position_embeddings=72, factor=1.0)
    expected = in_chunks(of_family(family, PLAIN_ROPE), tokens)
    found = in_chunks(of_family(family, rope), tokens)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    far = in_chunks(of_family(family, {**rope, "window_size": 7, "group_size": 9}), tokens)
    assert float((far - expected).abs().max()) > 0.1


@pytest.mark.parametrize("family", ["gemma2", "deepseek_v3", "hunyuan_v1_dense"])
def test_remapping_refuses_other_families(family):
    with pytest.raises(RopeConfigError, match=f"model_type '{family}'; allowed: ernie4_5, "):
        tiny(family, settings("self_extend"))


@torch.no_grad()
def test_remapping_refuses_another_attention_function():
    model, tokens = tiny("llama", settings("self_extend")), torch.tensor([text()])
    model.set_attn_implementation("sdpa")
    with pytest.raises(RopeConfigError, match=r"attn_implementation: 'sdpa' .*'self_extend' needs"):
        model(tokens)


def test_remapping_refuses_training_and_other_caches():
    model, tokens = tiny("llama", settings("self_extend")), torch.tensor([text(20)])
    with pytest.raises(RopeConfigError, match="no gradients"):
        model(tokens)
    with torch.no_grad(), pytest.raises(RopeConfigError, match="it needs a growing cache"):
        model.generate(tokens, max_new_tokens=3, cache_implementation="static")
    with torch.no_grad(), pytest.raises(RopeConfigError, match="a growing cache from position 0"):
        model(tokens, position_ids=torch.arange(5, 25)[None])


@pytest.mark.parametrize("rope_type", sorted(MOVING))
def test_remapping_is_refused_by_vllm_and_export(rope_type, tmp_path):
    rope = settings(rope_type.removeprefix("resonance_")) | {"rope_type": rope_type}
    tiny("llama", {"rope_type": "default", "rope_theta": BASE}).save_pretrained(tmp_path)
    with pytest.raises(RopeConfigError, match="vLLM's attention sees every key at its own"):
        RopeSpec.from_dict(rope).method.to_vllm({"rope_type": rope["rope_type"]})
    with pytest.raises(RopeConfigError, match="a portable checkpoint holds frequencies alone"):
        export_checkpoint(tmp_path, RopeRequest.from_dict(rope), tmp_path / "folder")
