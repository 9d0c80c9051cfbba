import pytest
import torch

from leval_harness.backends import cache_layers
from leval_harness.backends.attention import shared_attention
from leval_harness.backends.prefix_selfcheck import find_prefix_reuse, obstacle, rope_limit


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "granite"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_ordinary_models_share_one_copy(make_model, kind, attention):
    model = make_model(kind, attention)
    found = find_prefix_reuse(model)
    assert (found.mode, found.max_length) == ("split", None)
    heads = 4 if kind == "gpt2" else 2
    assert found.footprint.bytes_per_position == 2 * 2 * heads * 12 * 4
    assert model.config._attn_implementation == attention, "the model has its own attention back"


def test_a_vocabulary_smaller_than_the_selfcheck_text_is_enough(make_model):
    found = find_prefix_reuse(make_model("llama", vocab_size=22))
    assert (found.mode, found.reason) == ("split", "")


def test_a_model_with_attention_of_its_own_gets_copies(make_model):
    found = find_prefix_reuse(make_model("bloom", "eager"))
    assert found.mode in ("copied", "none")
    assert found.reason


@pytest.mark.parametrize(
    ("kind", "more"), [("mistral", {"sliding_window": 16}), ("gemma2", {"sliding_window": 16})]
)
def test_sliding_windows_are_shared(make_model, kind, more):
    found = find_prefix_reuse(make_model(kind, "eager", **more))
    assert found.mode == ("copied" if kind == "gemma2" else "split")
    assert "softcap" in found.reason or not found.reason


def test_switching_shared_attention_off_is_said(make_model):
    found = find_prefix_reuse(make_model("llama"), share_attention=False)
    assert (found.mode, found.reason) == ("copied", "shared attention is switched off")


def test_a_cache_that_gives_other_answers_is_not_used(make_model, monkeypatch):
    shared_pair = cache_layers.PrefixLayer.shared_pair.fget
    swapped = property(lambda layer: shared_pair(layer)[::-1])
    monkeypatch.setattr(cache_layers.PrefixLayer, "shared_pair", swapped)
    assert find_prefix_reuse(make_model("llama")).mode == "copied"


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 2.0}, None),
        ({"rope_type": "dynamic", "factor": 2.0}, 256),
        ({"rope_type": "resonance_dynamic", "original_max_position_embeddings": 64}, 64),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0],
          "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "longrope", "short_factor": [2.0], "long_factor": [2.0]}, None),
    ],
)  # fmt: skip
def test_rope_types_whose_keys_depend_on_the_length_have_a_limit(make_model, rope, limit):
    config = make_model("llama").config
    config.rope_parameters = {"rope_theta": 1e4, **rope}
    assert rope_limit(config)[0] == limit
    config.rope_parameters = {"full_attention": {"rope_theta": 1e4, **rope}}
    assert rope_limit(config)[0] == limit


def test_obstacle_names_encoder_decoder_models(make_model):
    model = make_model("llama")
    assert not obstacle(model)
    model.config.is_encoder_decoder = True
    assert obstacle(model) == "encoder-decoder model"


def test_attention_is_given_back_after_an_error(make_model):
    model = make_model("llama")

    def fail():
        with shared_attention(model, split=True):
            assert model.config._attn_implementation != "sdpa"
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        fail()
    assert model.config._attn_implementation == "sdpa"


def test_a_reason_is_one_short_line(make_model, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("first\n" + "second " * 999)

    model = make_model("llama")
    monkeypatch.setattr(model, "forward", fail)
    found = find_prefix_reuse(model)
    assert found.mode == "none"
    assert found.reason.startswith("copied: RuntimeError: first second")
    assert len(found.reason) <= 200
