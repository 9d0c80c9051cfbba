"""transformers' own types that overrides ask for: compared with what was built, or said to be lost.

All families and types are in `tests/families/test_stock.py`.
"""

import copy
import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from leval_harness.cli.main import main
from resonance_vllm.core.method import ScaledMethod
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf import registration as hf
from resonance_vllm.hf.build import report_of_checkpoint
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides
from resonance_vllm.verifier import NoRope, OverriddenRope

FAMILIES = Path(__file__).parents[1] / "families" / "configs"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}  # fmt: skip
SIZES = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path):
    """A saved Llama with plain RoPE."""
    hf.register()
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def asked_of(family, text):
    model = ModelPositions.of_checkpoint(str(FAMILIES / family))
    return hf_overrides(model.complete(RopeRequest.parse(text)), model)


def test_a_type_beside_which_a_family_keeps_a_key_of_its_own_is_refused():
    """HunYuan's code turns `dynamic` with the `alpha` of its config into a fixed base."""
    folder = str(FAMILIES / "hunyuan_7b")
    given = "dynamic:factor=4,replace=true,original_max_position_embeddings=32768"
    with pytest.raises(
        RopeConfigError, match=r"'dynamic' is not what model\.rotary_emb .* turns by"
    ):
        report_of_checkpoint(folder, asked_of("hunyuan_7b", given))
    # What it ships is asked for without a loss, and is what it was.
    shipped = report_of_checkpoint(folder)
    assert report_of_checkpoint(folder, asked_of("hunyuan_7b", "dynamic")) == shipped


def test_check_refuses_it_with_the_reason(capsys, without_vllm):
    rope = "dynamic:factor=4,replace=true,original_max_position_embeddings=32768"
    with pytest.raises(SystemExit) as ended:
        main(["check", str(FAMILIES / "hunyuan_7b"), "--rope", rope])
    assert ended.value.code == 2
    assert "63 of 64 frequencies differ" in capsys.readouterr().err


def test_a_trained_length_that_scales_queries_is_not_that_of_dynamic():
    """Ministral 3 scales queries from 16,384 on; `dynamic` begins at the end of its positions."""
    folder = FAMILIES / "ministral3_text"
    asked = asked_of(
        folder.name, "dynamic:factor=4,replace=true,original_max_position_embeddings=1024"
    )
    assert asked["rope_parameters"]["original_max_position_embeddings"] == 16384
    (held,) = report_of_checkpoint(str(folder), asked)  # which also compares at 2,048 tokens
    assert held.inv_freq[-1] == pytest.approx(1e6 ** (-126 / 128))


def test_a_type_that_turns_more_of_a_head_is_refused():
    """GLM-4 turns half of each head; transformers would make features of all of it."""
    folder, raw = str(FAMILIES / "glm4_9b"), {"rope_type": "proportional", "rope_theta": 1e4}
    with pytest.raises(RopeConfigError, match="64 features turn, and 32 as it is shipped"):
        report_of_checkpoint(folder, {"rope_parameters": raw})
    with pytest.raises(RopeConfigError, match=r"whole head, and this 'glm4' model turns 0\.5"):
        asked_of("glm4_9b", "resonance_proportional")


@pytest.mark.parametrize("rope", ["resonance:", "ntk_aware:factor=4,", "default:"])
def test_plain_frequencies_are_of_the_part_of_a_head_that_turns(rope, tmp_path):
    """Mistral 4 rotates 64 dimensions; its code makes plain frequencies for a whole head of 128."""
    CONFIG_MAPPING["mistral4"]().save_pretrained(tmp_path)
    model = ModelPositions.of_checkpoint(str(tmp_path))
    (shipped,) = report_of_checkpoint(str(tmp_path))
    assert len(shipped.inv_freq) == 32
    request = RopeRequest.parse(f"{rope}replace=true")
    overrides = hf_overrides(model.complete(request), model)
    (held,) = report_of_checkpoint(str(tmp_path), overrides)
    assert len(held.inv_freq) == 32


def test_a_model_of_another_dtype_is_compared_in_float32():
    """While it is built, torch's default dtype is the model's: bfloat16 would blur frequencies."""
    hf.register()
    rope = {**YARN, "rope_type": "resonance_yarn"}
    config = LlamaConfig(**SIZES, rope_parameters=rope)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    wavelengths = 2 * math.pi / model.model.rotary_emb.inv_freq
    assert wavelengths.tolist() == pytest.approx(wavelengths.round().tolist(), rel=1e-6)


def test_a_model_without_rope_is_refused_a_type_of_the_library():
    with pytest.raises(NoRope, match="'yarn' would be ignored: GraniteMoeHybridForCausalLM"):
        report_of_checkpoint(str(FAMILIES / "granite4_h"), asked_of("granite4_h", "yarn:factor=4"))


def test_an_encoder_that_a_type_of_the_library_would_miss():
    with pytest.raises(RopeConfigError, match="'yarn' would reach the decoder of T5Gemma"):
        report_of_checkpoint(str(FAMILIES / "t5gemma_2b"), asked_of("t5gemma_2b", "yarn:factor=4"))


class _Other(modeling_llama.LlamaRotaryEmbedding):
    """Turns half as fast as its settings say."""

    def __init__(self, config):
        super().__init__(config)
        self.inv_freq = self.inv_freq / 2


class _Amplifies(modeling_llama.LlamaRotaryEmbedding):
    """Leaves the attention factor out of its answer."""

    def forward(self, x, position_ids):
        cos, sin = super().forward(x, position_ids)
        return cos / self.attention_scaling, sin / self.attention_scaling


class _FailsPast(modeling_llama.LlamaRotaryEmbedding):
    """Fails on the last token of twice the trained length and later ones alone."""

    def forward(self, x, position_ids):
        if int(position_ids.max()) >= 2 * YARN["original_max_position_embeddings"]:
            raise UnboundLocalError("a name that is forgotten the second time")
        return super().forward(x, position_ids)


@pytest.mark.parametrize(
    ("rotary", "says"),
    [
        (_FailsPast, "its code fails at [0-9]+ tokens: UnboundLocalError"),
        (_Other, "16 of 16 frequencies differ"),
        (_Amplifies, "the attention factor is 1, not 1.13863"),
    ],
)
def test_a_loaded_model_whose_code_turns_otherwise(tiny, monkeypatch, rotary, says):
    monkeypatch.setattr(modeling_llama, "LlamaRotaryEmbedding", rotary)
    AutoModelForCausalLM.from_pretrained(tiny)  # nothing is asked for
    with pytest.raises(RopeConfigError, match=says):
        AutoModelForCausalLM.from_pretrained(tiny, rope_parameters=YARN)


def test_what_is_asked_for_is_saved_and_copied_as_any_dictionary(tiny, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(
        tiny, rope_parameters=YARN, max_position_embeddings=256
    )
    config = model.config
    assert type(config.rope_parameters) is OverriddenRope
    for again in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert again.rope_parameters.specs == config.rope_parameters.specs
    model.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert written["rope_parameters"] == YARN
    assert not [key for key in written if "asked" in key or "compared" in key]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(loaded.config.rope_parameters) is dict  # it ships that
    turned = loaded.model.rotary_emb.inv_freq
    assert turned.equal(model.model.rotary_emb.inv_freq)
    assert float(turned[-1]) == pytest.approx(1e4 ** (-30 / 32) / 4)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.stock and n != "default"])
def test_every_type_is_accepted_where_it_is_followed(tiny, name):
    method = METHODS[name]
    keys = {"rope_type": name, **method.example(32)}
    if issubclass(method, ScaledMethod):
        keys |= {"factor": 4.0}
    model = ModelPositions.of_checkpoint(str(tiny))
    loaded = AutoModelForCausalLM.from_pretrained(
        tiny, **hf_overrides(model.complete({**keys, "rope_theta": 1e4}), model)
    )
    fastest = 0.25 if name == "linear" else 1.0
    assert float(loaded.model.rotary_emb.inv_freq[0]) == fastest
    loaded(torch.arange(32)[None])
