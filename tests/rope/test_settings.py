"""What the adapters write for each library."""

from pathlib import Path

import pytest
from llama31 import LLAMA31

from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.overrides import hf_overrides, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeRequest

FAMILIES = Path(__file__).parents[1] / "families" / "configs"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}


def on(rope, config):
    """A request on a model: complete settings and the model, as the functions take them."""
    model = PositionConfig.from_dict(config)
    return None if rope is None else model.complete(rope), model


def complete(rope, config):
    return on(rope, config)[0].to_dict()


def test_complete_takes_base_and_length_from_the_model():
    assert complete({"rope_type": "resonance_ntk", "factor": 2}, CONFIG) == {
        "rope_type": "resonance_ntk_aware",
        "rope_theta": 100000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 8192,
    }


def test_complete_takes_keys_of_the_method_in_use():
    old_style = {
        **CONFIG,
        "rope_parameters": None,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA31,
        "max_position_embeddings": 131072,
    }
    found = complete({"rope_type": "resonance_llama3"}, old_style)
    assert found == {**LLAMA31, "rope_type": "resonance_llama3", "rope_theta": 500000.0}


def test_a_model_without_rope_is_named():
    with pytest.raises(RopeConfigError, match="rope_theta: neither given nor in the config"):
        complete({"rope_type": "yarn", "factor": 2}, {"model_type": "gpt2", "n_positions": 1024})


def test_resonance_alone_on_what_follows_the_length_is_refused():
    shipped = {**CONFIG["rope_parameters"], "rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(RopeConfigError, match=r"alone on the 'dynamic' .*allowed: .* factor"):
        complete({"rope_type": "resonance"}, {**CONFIG, "rope_parameters": shipped})


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 2.0), (2.0, 3.0)])
def test_dynamic_is_frozen_at_the_served_length_for_vllm(factor, expected):
    rope = {"rope_type": "resonance_dynamic", "factor": factor}
    args = args_of(rope, library="vllm", context_length=16384)
    written = args["hf_overrides"]["rope_parameters"]
    assert written["rope_type"] == "resonance_ntk_aware"
    assert written["factor"] == expected


@pytest.mark.parametrize(
    ("rope", "compared"),
    [("yarn:factor=2", True), ("resonance_yarn:factor=2", False), ("default", False)],
)
def test_overrides_mark_stock_types_for_comparison(rope, compared):
    """Ours always are, and what is shipped is the model as it is."""
    written = vllm_hf_overrides(*on(RopeRequest.parse(rope).to_dict(), CONFIG))
    assert written.get("rope_compared", False) == compared


def test_longrope_is_written_with_the_keys_of_each_library():
    rope = {
        "rope_type": "longrope",
        "factor": 2,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "attention_factor": 1.25,
    }
    vllm = vllm_hf_overrides(*on(rope, CONFIG))
    assert vllm["rope_parameters"]["long_mscale"] == 1.25
    assert vllm["original_max_position_embeddings"] == 8192
    assert vllm["rope_parameters"]["short_mscale"] == 1.25
    assert hf_overrides(*on(rope, CONFIG))["rope_parameters"]["attention_factor"] == 1.25


def test_overrides_of_a_nested_config_keep_model_keys():
    shipped = {**LLAMA31, "rope_theta": 1e5, "mrope_section": [8, 12, 12]}
    config = {"text_config": {**CONFIG, "rope_parameters": shipped}}
    linear = on({"rope_type": "linear", "factor": 2.0}, config)
    written = vllm_hf_overrides(*linear)["text_config"]["rope_parameters"]
    assert written["mrope_section"] == [8, 12, 12]
    assert written["low_freq_factor"] is None
    assert written["rope_type"] == "linear"


def args_of(rope, **options):
    return model_args(*on(rope, CONFIG), model_path="folder", **options)


def test_model_args_of_each_library():
    rope = {"rope_type": "resonance_yarn", "factor": 2}
    args = args_of(rope, library="transformers", context_length=12000)
    assert args["pretrained"] == "folder"
    assert args["max_length"] == 12000
    assert args["rope_parameters"]["rope_type"] == "resonance_yarn"
    assert args["rope_precision"] == "float32"
    args = args_of(rope, library="vllm", context_length=12000)
    assert args["max_model_len"] == 12000
    assert args["hf_overrides"]["max_position_embeddings"] == 16384
    assert "rope_precision" not in args


def test_model_args_refuse_a_length_above_the_limit():
    rope = {"rope_type": "yarn", "factor": 2}
    with pytest.raises(RopeConfigError, match="20000 is above the limit of 16384"):
        args_of(rope, library="vllm", context_length=20000)


@pytest.mark.parametrize(
    "odd",
    [
        {"head_dim": [64, 128]},
        {"rope_theta": [1e4, 1e6]},
        {"partial_rotary_factor": {"full_attention": 0.5}},
        {"a key that we do not know": {"rope": 1}},
    ],
)
def test_a_shipped_config_may_hold_what_we_do_not_know(odd):
    assert length_limit(PositionConfig.from_dict({**CONFIG, **odd})) == 8192
