"""Exports of published layouts: what stock code turns by, or a refusal."""

import json
import math
from pathlib import Path

import pytest
import torch

from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.export.checkpoint import export_checkpoint

pytestmark = pytest.mark.hf

FOLDERS = sorted((Path(__file__).parents[1] / "families" / "configs").iterdir())
RESONANCE = RopeRequest.parse("resonance")


def stock_rotary(folder):
    """Rotary modules of the text that a family's own code builds on the CPU, by name."""
    from resonance_vllm.hf.model import rotary_modules
    from transformers import AutoConfig

    from resonance_vllm.hf import on_meta

    model = on_meta(AutoConfig.from_pretrained(folder))
    with torch.device("cpu"):
        return {name: type(module)(module.config) for name, module in rotary_modules(model)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_stock_code_turns_by_rounded_wavelengths_or_the_export_is_refused(folder, tmp_path):
    out = tmp_path / "out"
    try:
        export_checkpoint(folder, RESONANCE, out)
    except RopeConfigError:
        assert not out.exists()
    else:
        rounded_in_stock_code(folder, out)


def rounded_in_stock_code(folder, out):
    shipped, exported = stock_rotary(folder), stock_rotary(out)
    assert shipped.keys() == exported.keys()
    assert shipped
    for name, module in exported.items():
        before = 2 * math.pi / shipped[name].inv_freq.double()
        after = 2 * math.pi / module.inv_freq.double()
        assert len(before) == len(after)
        torch.testing.assert_close(after, after.round(), rtol=2e-6, atol=0)
        assert bool(((after - before).abs() <= 0.5 + 1e-5 * before).all())
        assert module.attention_scaling == pytest.approx(shipped[name].attention_scaling, rel=1e-6)


def small(folder, model_type, **keys):
    from transformers import AutoConfig

    AutoConfig.for_model(model_type, **keys).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("model_type", "keys", "words"),
    [
        ("glm4", {}, "turns neighbouring dimensions"),
        ("cohere", {}, "turns neighbouring dimensions"),
        ("gpt2", {}, "no RoPE"),
        ("gemma3_text", {}, "several RoPEs by layer type"),
    ],
)
def test_what_the_target_would_not_read_is_refused(tmp_path, model_type, keys, words):
    folder = small(tmp_path / "source", model_type, **keys)
    request = RopeRequest.parse("resonance_yarn:factor=2,rope_theta=10000")
    with pytest.raises(RopeConfigError, match=words):
        export_checkpoint(folder, request, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_neighbours_are_seen_in_a_function_that_was_given_float32():
    from resonance_vllm.hf.float32 import _MARK, _rotation
    from transformers.models.glm4 import modeling_glm4

    from resonance_vllm.export.comparison import turns_neighbours

    own = modeling_glm4.apply_rotary_pos_emb
    plain = own.__wrapped__ if hasattr(own, _MARK) else own
    assert turns_neighbours(plain)
    assert turns_neighbours(_rotation(plain))


def test_a_softmax_scale_that_follows_the_type_is_not_lost(tmp_path):
    """DeepSeek scales its softmax by `mscale` of yarn, which longrope has not."""
    from resonance_vllm.export.comparison import compare
    from resonance_vllm.verify import RotaryReport

    folder = next(each for each in FOLDERS if each.name == "deepseek_v3")
    exported = tmp_path / "exported"
    exported.mkdir()
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_scaling", None) or config["rope_parameters"]
    ones = [1.0] * (config["qk_rope_head_dim"] // 2)
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "factor": 1.0,
        "rope_theta": config.get("rope_theta", rope.get("rope_theta", 10000.0)),
        "original_max_position_embeddings": 4096,
        "short_factor": ones,
        "long_factor": ones,
        "attention_factor": 1.0,
    }
    (exported / "config.json").write_text(json.dumps(config))
    module = next(iter(stock_rotary(exported).values()))
    held = RotaryReport("model.rotary_emb", None, tuple(module.inv_freq.tolist()), 1.0, False)
    with pytest.raises(RopeConfigError, match=r"self_attn\.scaling"):
        compare(folder, {}, exported, held)


def test_partial_rotary_has_as_many_factors_as_features_that_turn(tmp_path):
    folder = next(each for each in FOLDERS if each.name == "minimax_m2")
    request = RopeRequest.parse("resonance_yarn:factor=4")
    export_checkpoint(folder, request, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]
    assert len(written["short_factor"]) == len(written["long_factor"]) == 32


@pytest.mark.vllm
@pytest.mark.long
def test_the_installed_vllm_is_asked(tmp_path, caplog):
    """It follows an export of Qwen 3, and would not run gpt-oss, whose type its code fixes."""
    folders = {each.name: each for each in FOLDERS}
    export_checkpoint(folders["qwen3_8b"], RESONANCE, tmp_path / "qwen", ask_vllm=True)
    assert "vLLM" not in caplog.text
    export_checkpoint(folders["gpt_oss_20b"], RESONANCE, tmp_path / "oss", ask_vllm=True)
    assert "vLLM would not run this export" in caplog.text


def test_another_rotation_in_vllm_is_a_refusal(tmp_path, monkeypatch):
    from resonance_vllm.verify import RotaryReport

    folder = next(each for each in FOLDERS if each.name == "qwen3_8b")
    other = RotaryReport("model.layers.0.self_attn.rotary_emb", None, (1.0,) * 64, 1.0, False)
    monkeypatch.setattr("resonance_vllm.vllm.build.report_of_checkpoint", lambda path: [other])
    with pytest.raises(RopeConfigError, match="of vLLM does not follow an exported config"):
        export_checkpoint(folder, RESONANCE, tmp_path / "out", ask_vllm=True)
    assert not (tmp_path / "out").exists()
