"""What may be written as rope_parameters, and what is refused with which words."""

import pytest

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import METHOD_KEYS, ROPE_TYPES, RopeSpec, split_rope_type

VALUES = {
    "factor": 4,
    "original_max_position_embeddings": 256,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "short_factor": [1.0, 2],
    "long_factor": [2.0, 4],
}


def rope(rope_type, **extra):
    required = METHOD_KEYS[split_rope_type(rope_type)[0]][0]
    return {
        "rope_type": rope_type,
        "rope_theta": 10000,
        **{k: VALUES[k] for k in required},
        **extra,
    }


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_every_type_survives_a_round_trip(rope_type):
    spec = RopeSpec.from_dict(rope(rope_type))
    assert spec.rope_type == rope_type
    assert RopeSpec.from_dict(spec.to_dict()) == spec


def test_an_integer_factor_becomes_a_float():
    written = RopeSpec.from_dict(rope("linear")).to_dict()
    assert isinstance(written["factor"], float)
    assert isinstance(written["rope_theta"], float)


def test_yarn_over_wavelengths_is_written_under_a_name_of_its_own():
    spec = RopeSpec.from_dict(rope("yarn", ramp="wavelength"))
    assert spec.to_dict()["rope_type"] == "yarn_wavelength"
    assert not spec.is_stock
    assert RopeSpec.from_dict(rope("yarn", ramp="dimension")).is_stock


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rope_theta": 1e4}, ["rope_type", "missing", "resonance_yarn"]),
        ({"rope_type": "yran", "rope_theta": 1e4}, ["rope_type", "'yran'", "mean yarn"]),
        ({"rope_type": "ntk", "rope_theta": 1e4}, ["ntk_aware"]),
        (rope("yarn", facter=2), ["facter", "did you mean factor"]),
        (rope("yarn", factor=0.5), ["factor", "0.5", "at least 1"]),
        (rope("yarn", factor=True), ["factor", "True"]),
        (rope("yarn", factor="2"), ["factor", "'2'"]),
        (rope("yarn", factor=float("nan")), ["factor", "nan"]),
        (rope("yarn", ramp="sideways"), ["ramp", "'sideways'", "dimension or wavelength"]),
        (rope("yarn", beta_fast=1, beta_slow=2), ["beta_fast", "1.0", "2"]),
        (rope("ntk_aware", base_scaling="x"), ["base_scaling", "'x'", "exact or paper"]),
        (rope("default", factor=2), ["factor", "not a setting", "'default'"]),
        (rope("longrope", short_factor=[1, -1]), ["short_factor", "above 0"]),
        (rope("llama3", high_freq_factor=0.5), ["high_freq_factor", "low_freq_factor"]),
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(settings, words):
    with pytest.raises(RopeConfigError) as caught:
        RopeSpec.from_dict(settings)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_every_required_key_is_missed(rope_type):
    whole = rope(rope_type)
    for key in set(whole) - {"rope_type"}:
        cut = {k: v for k, v in whole.items() if k != key}
        with pytest.raises(RopeConfigError, match=f"{key}: missing"):
            RopeSpec.from_dict(cut)
