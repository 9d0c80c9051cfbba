"""The methods against closed forms: 184 rotations of published configs and of edge values."""

import json
import sys
from pathlib import Path

import mpmath
import pytest

FOLDER = Path(__file__).parents[2] / "reports" / "rope-engines"
FILE = FOLDER / "rope_vectors.json"
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))["vectors"]


def test_vectors_file_equals_the_formulas(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import generate

    assert FILE.read_text(encoding="utf-8") == generate.text(), generate.__doc__


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS if "alpha" not in vector["rope"]],  # HunYuan's fixed base
    ids=lambda vector: vector["id"],
)
def test_methods_equal_the_vectors(vector):
    """`resonance_vllm.core` shares no line with the closed forms."""
    import torch
    from turned import cos_sin

    from resonance_vllm.core.frequencies import closed_form_inv_freq
    from resonance_vllm.core.spec import RopeSpec

    rope = {**vector["rope"], "partial_rotary_factor": 1.0}
    if vector["method"] == "proportional":
        rope["partial_rotary_factor"] = vector["rope"]["partial_rotary_factor"]
    for key in ("finetuned", "llama_4_scaling_beta", "mrope_section", "mrope_interleaved"):
        rope.pop(key, None)
    if rope.get("mscale_all_dim") == 0.0:
        del rope["mscale_all_dim"]  # DeepSeek writes 0 for none
    if "yarn_wavelength" in rope["rope_type"]:  # the closed form's name of that ramp
        rope |= {"rope_type": rope["rope_type"].replace("_wavelength", ""), "ramp": "wavelength"}
    spec = RopeSpec.from_dict(rope)
    dim, length = vector["rotary_dim"], vector["length"]
    found = closed_form_inv_freq(spec, dim, length)
    assert found.tolist() == pytest.approx(vector["inv_freq"], rel=1e-12, abs=0)
    assert spec.method.compute_attention_factor() == pytest.approx(
        vector["attention_factor"], rel=1e-12
    )
    positions = torch.tensor(vector["positions"])
    for name, values in zip(
        ("cos", "sin"), cos_sin(spec, dim, positions, seq_len=length), strict=True
    ):
        expected = torch.tensor(vector[name], dtype=torch.float64)
        assert (values - expected).abs().max() < 1e-8 + 1e-15 * length


def test_vectors_cos_and_sin_equal_40_digits():
    for vector in VECTORS[::7]:
        with mpmath.workdps(40):
            for row, position in enumerate(vector["positions"]):
                for j, theta in enumerate(vector["inv_freq"]):
                    turned = vector.get("wavelengths")
                    angle = (
                        2 * mpmath.pi * (position % turned[j]) / turned[j]
                        if turned and turned[j]
                        else position * mpmath.mpf(theta)
                    )
                    exact = vector["attention_factor"] * mpmath.cos(angle)
                    assert abs(exact - vector["cos"][row][j]) < 1e-9 + 1e-16 * position
