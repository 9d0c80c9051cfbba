"""Requests that a model on transformers cannot fulfil, and requests that its config completes."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from resonance_vllm import hf
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.hf.building import build_on_meta
from resonance_vllm.hf.inspection import report_of_checkpoint

CONFIGS = Path(__file__).parents[1] / "families" / "configs"
NATIVE = "original_max_position_embeddings"
DEFAULT = {"rope_type": "default", "rope_theta": 100.0}


WINDOWED = (
    "gemma3_1b", "gemma3_4b", "gemma3n_e2b", "gemma4", "gemma4_text", "mimo_v2", "modernbert",
    "olmo3_7b", "step35",
)  # fmt: skip
"""Families that keep settings of layers with a window beside those of the others."""


def windowed_types(config):
    rope = getattr(config, "rope_parameters", None) or {}
    return [key for key in rope if "sliding" in key or "chunked" in key]


def test_windowed_families_are_all_here():
    found = []
    for folder in sorted(CONFIGS.iterdir()):
        try:
            config = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
        except ValueError:  # a family that only vLLM knows
            continue
        if windowed_types(config):
            found.append(folder.name)
    assert tuple(found) == WINDOWED


@pytest.mark.parametrize("method", ["yarn", "resonance_yarn", "linear", "default"])
# transformers gives the last layer of a Gemma 4 full attention, whatever its config says.
@pytest.mark.parametrize("family", [name for name in WINDOWED if "gemma4" not in name])
def test_apply_rope_refuses_windowed_layers_alone(tmp_path, family, method):
    """A model all of whose layers keep their own settings, in each family that has such layers."""
    published = AutoConfig.from_pretrained(CONFIGS / family).get_text_config(decoder=True)
    (window,) = windowed_types(published)
    layers = published.num_hidden_layers
    content = json.loads((CONFIGS / family / "config.json").read_text())
    text = content.get("text_config", content)
    text["layer_types"] = [window] * layers
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = AutoConfig.from_pretrained(tmp_path).get_text_config(decoder=True)
    keys = {} if method == "default" else {"factor": 2.0}
    request = {"rope_type": method, "rope_theta": 123456.0, **keys}
    if "yarn" in method:
        request[NATIVE] = 4096
    model = build_on_meta(config)
    with pytest.raises(RopeConfigError, match=f"no layer .* layers 0 to {layers - 1} are {window}"):
        hf.apply_rope(model, request)


def test_report_refuses_windowed_layers_alone(tmp_path):
    content = json.loads((CONFIGS / "gemma3_1b" / "config.json").read_text())
    content |= {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3}
    content.pop("sliding_window_pattern", None)
    (tmp_path / "config.json").write_text(json.dumps(content))
    published = PositionConfig.from_checkpoint(str(CONFIGS / "gemma3_1b"))
    spec = published.complete({"rope_type": "yarn", "factor": 2})
    with pytest.raises(RopeConfigError, match="layers 0 to 2 are sliding_attention"):
        report_of_checkpoint(str(tmp_path), spec, 65536)
    assert report_of_checkpoint(str(tmp_path)), "unmodified it is fine"


def test_apply_rope_refuses_layers_without_rope(tiny):
    extra = {"no_rope_layers": [0, 0], "use_sliding_window": False}
    model = tiny("smollm3", DEFAULT, **extra)
    with pytest.raises(RopeConfigError, match="layers 0 to 1 have no RoPE"):
        hf.apply_rope(model, "linear:factor=2")


UNROTATED = {
    "exaone4": {"layer_types": ["full_attention"] * 2, "sliding_window": 8},
    "exaone_moe": {"layer_types": ["full_attention"] * 2, "sliding_window": 8,
                   "mlp_layer_types": ["dense"] * 2},
    "cohere2": {"layer_types": ["full_attention"] * 2, "sliding_window": 8},
    "afmoe": {"layer_types": ["full_attention"] * 2, "num_dense_layers": 2, "sliding_window": 8},
    "bamba": {"attn_layer_indices": [], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "granitemoehybrid": {"layer_types": ["mamba"] * 2, "position_embedding_type": "rope",
                         "mamba_n_heads": 4, "mamba_d_head": 16},
    "lfm2": {"layer_types": ["conv"] * 2},
    "qwen3_next": {"layer_types": ["linear_attention"] * 2},
}  # fmt: skip
"""Families with layers that rotate nothing, and settings with which they have no others."""


@pytest.mark.parametrize("family", UNROTATED)
def test_apply_rope_refuses_layers_that_do_not_rotate(family):
    """The model would give every method the same numbers."""
    config = AutoConfig.for_model(
        family, **{**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 2, **UNROTATED[family]}
    )
    model = build_on_meta(config)
    with pytest.raises(RopeConfigError, match=r"no layer of this .* layers 0 to 1 are "):
        hf.apply_rope(model, "linear:factor=2")


LEARNED = {
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
    "gpt_neo": {"attention_types": [[["global"], 1]], "num_layers": 1, "num_heads": 2},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 1, "n_head": 2},
    "biogpt": {},
    "bert": {"is_decoder": True},
    "roberta": {"is_decoder": True, "max_position_embeddings": 514},
    "xlm-roberta": {"is_decoder": True, "max_position_embeddings": 514},
    "bart": {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1},
}
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 64, "max_position_embeddings": 512, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize("family", LEARNED)
def test_load_refuses_more_than_the_position_table(family, tmp_path):
    """The limit is what the model's forward accepts: one more token is an error of its own."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **LEARNED[family]})
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    ids = torch.full((1, 513), 5)
    with torch.no_grad():
        model(ids[:, :512])
        with pytest.raises((IndexError, RuntimeError)):
            model(ids)
    assert hf.load(str(tmp_path), limit=512)
    with pytest.raises(RopeConfigError, match="513 is above the 512 positions of the table"):
        hf.load(str(tmp_path), limit=513)


def test_report_refuses_more_than_the_position_table(tmp_path):
    AutoConfig.for_model("opt", **{**SIZES, **LEARNED["opt"]}).save_pretrained(tmp_path)
    with pytest.raises(RopeConfigError, match="4096 is above the 512 positions of the table"):
        report_of_checkpoint(str(tmp_path), None, 4096)


@pytest.mark.parametrize(
    "request_",
    ["yarn:factor=2", {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "yarn", "factor": 2}],
)
def test_apply_rope_completes_settings(tiny, request_):
    model = tiny("llama", DEFAULT)
    hf.apply_rope(model, request_)
    rope = model.config.rope_parameters
    expected = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 100.0, NATIVE: 256}
    assert {key: rope[key] for key in expected} == expected
    hf.apply_rope(model, "linear:factor=3")
    assert model.config.rope_parameters["factor"] == 3.0
    hf.apply_rope(model, request_)
    assert model.config.rope_parameters == rope, "completed from the settings it was loaded with"


def test_load_completes_settings(tiny, tmp_path):
    tiny("llama", DEFAULT).save_pretrained(tmp_path)
    model = hf.load(str(tmp_path), "resonance_yarn:factor=2", dtype=torch.float32)
    rope = model.config.rope_parameters
    assert (rope["rope_theta"], rope[NATIVE], rope["factor"]) == (100.0, 256, 2.0)


def test_apply_rope_takes_complete_settings_as_they_are(tiny):
    """An optional key that is not written has its default and not what the checkpoint has."""
    shipped = {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        NATIVE: 64,
        "attention_factor": 3.0,
    }
    model = tiny("llama", shipped)
    (own,) = hf.apply_rope(model)
    complete = {key: value for key, value in shipped.items() if key != "attention_factor"}
    (report,) = hf.apply_rope(model, complete)
    assert own.attention_factor == 3.0
    assert report.attention_factor == pytest.approx(1.138629436)
    (partial,) = hf.apply_rope(model, {"rope_type": "yarn", "factor": 4.0})
    assert partial.attention_factor == 3.0


def test_apply_rope_names_a_wrong_key(tiny):
    with pytest.raises(RopeConfigError, match="did you mean 'beta_fast'"):
        hf.apply_rope(tiny("llama", DEFAULT), "yarn:factor=2,betafast=3")


@pytest.mark.parametrize("request_", [None, "linear:factor=2"])
def test_load_refuses_two_rope_dictionaries(tiny, tmp_path, request_):
    """transformers would take `rope_scaling` alone, and with it another base."""
    tiny("llama", {**DEFAULT, "rope_theta": 1e6}).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(RopeConfigError, match=r"rope_scaling: .* is given beside rope_parameters"):
        hf.load(str(tmp_path), request_)
