"""Exported checkpoints: stock code turns by them where our package cannot be imported, or none."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from naive_maps import MOVING
from vllm_modules import looked_at

from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError, UserError
from resonance_vllm.core import frequencies
from resonance_vllm.core.spec import ROPE_TYPES, RopeRequest, RopeType
from resonance_vllm.export import export_checkpoint

pytestmark = pytest.mark.slow

RESCALED = [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8]


def fixed(rope_type):
    """A request for a type with factor 4, None for one whose frequencies follow the length."""
    method = RopeType.parse(rope_type).method
    asked = method.example_settings(16) | {
        "factor": 4,
        "short_factor": RESCALED,
        "long_factor": RESCALED,
    }
    asked.pop("original_max_position_embeddings", None)
    kept = {key: value for key, value in asked.items() if key in method.key_names()}
    missing = method.depends_on_length or rope_type in MOVING
    return None if missing else {"rope_type": rope_type, **kept}


FIXED = [rope for rope in map(fixed, ROPE_TYPES) if rope is not None]

STOCK_HF = """
import json, sys, torch
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "resonance_vllm":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from transformers import AutoModelForCausalLM
answers = []
for folder in json.load(open(sys.argv[1])):
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.rotary_emb
    cos, sin = module(torch.zeros(1), torch.ones(1, 1, dtype=torch.int64))
    answers.append([module.inv_freq.tolist(), float(torch.hypot(cos, sin).max())])
assert "resonance_vllm" not in sys.modules
json.dump(answers, open(sys.argv[2], "w"))
"""


def stock(request, tmp_path):
    """What stock transformers answers where our package cannot be imported."""
    program, asked, answered = (tmp_path / name for name in ("run.py", "in.json", "out.json"))
    program.write_text(STOCK_HF)
    asked.write_text(json.dumps(request))
    subprocess.run([sys.executable, str(program), str(asked), str(answered)], check=True)
    return json.loads(answered.read_text())


@pytest.fixture
def source(tiny, tmp_path):
    folder = tmp_path / "source"
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    tiny("llama", rope, max_position_embeddings=2048).save_pretrained(folder)
    return folder


def exported(source, tmp_path):
    """Every fixed method's exported folder."""
    for number, rope in enumerate(FIXED):
        out = tmp_path / f"out{number}"
        limit = export_checkpoint(source, RopeRequest.from_dict(rope), out)
        assert limit == 2048 * rope.get("factor", 1)
        yield str(out)


@pytest.mark.slow(long=True)
def test_stock_transformers_runs_every_fixed_method(source, tmp_path):
    model = PositionConfig.from_checkpoint(source)
    answers = stock(list(exported(source, tmp_path)), tmp_path)
    for rope, (inv_freq, scale) in zip(FIXED, answers, strict=True):
        spec = model.complete(rope)
        expected = frequencies.closed_form_inv_freq(spec, 16)
        found = torch.tensor(inv_freq, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert scale == pytest.approx(spec.method.compute_attention_factor())


def test_a_model_that_does_not_build_is_refused_with_the_reason(source, tmp_path):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pad_token_id": 2**63}))
    with pytest.raises(UserError, match=r"the code of LlamaConfig fails .*: Padding_idx must"):
        export_checkpoint(source, RopeRequest.parse("yarn:factor=2"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("mine")
    with pytest.raises(RopeConfigError, match=r"out: .*out already exists"):
        export_checkpoint(source, RopeRequest.parse("yarn:factor=2"), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


FOLDERS = sorted((Path(__file__).parents[1] / "families" / "configs").iterdir())
RESONANCE = RopeRequest.parse("resonance")


def turns_of(folder):
    """What transformers' modules turn by, without settings of ours."""
    from resonance_vllm.hf.inspection import report_of_checkpoint

    return [(each.name, each.inv_freq) for each in report_of_checkpoint(str(folder))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_export_stock_code_rotates_by_rounded_wavelengths(folder, tmp_path):
    out = tmp_path / "out"
    try:
        export_checkpoint(folder, RESONANCE, out)
    except (RopeConfigError, UserError):
        assert not out.exists()
        return
    for (name, shipped), (same, exported) in zip(turns_of(folder), turns_of(out), strict=True):
        assert name == same
        assert len(shipped) == len(exported)
        for before, after in zip(shipped, exported, strict=True):
            wave, integer = 2 * math.pi / before, 2 * math.pi / after
            assert integer == pytest.approx(round(integer), rel=2e-6)
            assert abs(integer - wave) <= 0.5 + 1e-5 * wave
    written = json.loads((out / "config.json").read_text())
    text = written.get("text_config") or written.get("llm_config") or written
    assert len(text["rope_parameters"]["short_factor"]) == len(turns_of(out)[0][1])


@pytest.mark.parametrize(
    ("name", "rope", "words"),
    [
        ("gemma3_1b", "yarn:factor=2", "one of several rotations"),
        ("bloom_7b", "yarn:factor=2,rope_theta=10000", "max_position_embeddings: the model"),
        ("qwen3_8b", "dynamic:factor=2", "change with the length"),
        ("qwen3_8b", "self_extend:factor=2", "a portable checkpoint holds frequencies alone"),
        # it scales its softmax by `mscale` of yarn, which longrope has not
        ("deepseek_v3", "resonance", r"not what an exported config runs: .*self_attn\.scaling is"),
    ],
)
def test_what_no_list_of_factors_holds_is_refused(tmp_path, name, rope, words):
    folder = next(each for each in FOLDERS if each.name == name)
    with pytest.raises(RopeConfigError, match=words):
        export_checkpoint(folder, RopeRequest.parse(rope), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.engine("vllm")
@pytest.mark.slow(long=True)
def test_vllm_turns_by_an_export(tmp_path):
    folder = next(each for each in FOLDERS if each.name == "qwen3_8b")
    limit = export_checkpoint(folder, RESONANCE, tmp_path / "out")
    ((_, wanted),) = turns_of(tmp_path / "out")
    (found,) = looked_at([{"model": str(tmp_path / "out"), "max_model_len": limit}])
    assert found["held"][0]["inv_freq"] == pytest.approx(wanted)
