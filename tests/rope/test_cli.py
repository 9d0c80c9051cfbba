"""The commands rope, check and export, as a user calls them."""

import json
import math
from pathlib import Path

import pytest
from golden_access import fine, run

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import METHODS


def test_rope_json_is_alone_and_in_full_precision():
    facts = json.loads(fine("rope", "--method", "yarn", "--resonance", "--json"))
    assert list(facts) == [
        "inv_freq", "wavelengths", "attention_factor", "critical_dimension", "feature_gap"
    ]  # fmt: skip
    assert facts["inv_freq"][0] == 2 * math.pi / 6
    assert facts["wavelengths"][0] == 6.0
    assert facts["attention_factor"] == 0.1 * math.log(8) + 1
    assert facts["feature_gap"][: facts["critical_dimension"]] == [0.0] * 39
    assert facts["wavelengths"][38] < 4096 <= facts["wavelengths"][39]


@pytest.mark.parametrize("method", [*METHODS, "ntk"])
@pytest.mark.parametrize("resonance", [(), ("--resonance",)])
def test_rope_accepts_every_flag_with_every_method(method, resonance):
    flags = ("--factor", 2, "--theta", 500000, "--head-dim", 32, "--original", 512)
    flags += ("--ramp", "wavelength", "--base-scaling", "paper", "--json", *resonance)
    found = fine("rope", "--method", method, *flags)
    assert len(json.loads(found)["feature_gap"]) == 16


def test_rope_wavelengths_are_those_of_the_papers_model():
    small = ("--head-dim", 64, "--original", 64, "--factor", 4)
    facts = json.loads(fine("rope", "--method", "default", *small, "--resonance", "--json"))
    fast = [6, 8, 11, 15, 20, 26, 35, 47, 63]
    assert facts["wavelengths"][:9] == pytest.approx(fast, rel=1e-15)
    assert facts["feature_gap"][:9] == [0.0] * 9


def test_rope_table_shows_each_feature():
    found = fine("rope", "--method", "ntk", "--head-dim", 8, "--original", 64)
    assert "critical dimension  1 of 4" in found


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--method", "yarn", "--head-dim", "7"), "dim: 7 is not allowed; allowed: an even"),
        (("--method", "dynamic", "--seq-len", "0"), "seq_len: 0 is not allowed; allowed: at"),
        (("--method", "yarn", "--original", "0"), "original_max_position_embeddings: Input should"),
        (("--method", "default", "--factor", "inf"), "original, factor: 4096, inf are not"),
        (("--method", "longrope", "--short-factor", "[1"), "short_factor: Input should be a valid"),
        (("--method", "yarn", "--plot", "x.jpg"), "'.jpg' is not allowed; allowed: .svg, .pdf"),
    ],
)
def test_rope_wrong_usage_exits_with_2(args, words):
    result = run("rope", *args)
    assert result.code == 2
    assert words in result.err


def test_rope_has_an_option_for_every_key():
    found = fine("rope", "--method", "yarn", "--attention-factor", 1.5, "--json")
    assert json.loads(found)["attention_factor"] == 1.5
    shown = fine("rope", "--help")
    for method in METHODS.values():
        for key in set(method.model_fields) - {"partial_rotary_factor"}:
            option = {"rope_theta": "theta", "original_max_position_embeddings": "original"}
            assert f"--{option.get(key, key).replace('_', '-')}" in shown


def test_rope_documentation_has_every_method_and_key():
    page = Path(__file__).parents[2] / "docs" / "reference" / "rope.md"
    rows = page.read_text(encoding="utf-8").splitlines()
    for name, method in METHODS.items():
        row = next(row for row in rows if row.startswith(f"| `{name}` |"))
        assert all(f"`{key}`" in row for key in set(method.model_fields) - {*Method.model_fields})


def test_rope_plot_is_drawn_with_and_without_resonance(tmp_path):
    out = tmp_path / "rope.png"
    small = ("--head-dim", 32, "--original", 128, "--factor", 2)
    fine("rope", "--method", "default", *small, "--plot", out)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_export_prints_the_serving_command(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    config = {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 256}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes(b"weights")
    found = fine("export", source, "--rope", "resonance_yarn:factor=4", "--out", out)
    assert found.strip().endswith(f"vllm serve {out} --max-model-len 1024")
    assert (out / "model.safetensors").read_bytes() == b"weights"
    refused = run("export", source, "--rope", "dynamic:factor=1", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "change with the length" in refused.err
    assert not (tmp_path / "x").exists()
