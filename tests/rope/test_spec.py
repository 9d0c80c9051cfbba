"""What may be written as rope_parameters, and what is refused with which words."""

import json

import pytest

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import ROPE_TYPES, RopeRequest, RopeSpec, RopeType


def rope(rope_type, **extra):
    example = RopeType.parse(rope_type).method.example_settings(4)
    return {"rope_type": rope_type, "rope_theta": 10000, **example, **extra}


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_every_type_survives_a_round_trip(rope_type):
    spec = RopeSpec.from_dict(rope(rope_type))
    assert spec.rope_type == rope_type
    assert RopeSpec.from_dict(spec.to_dict()) == spec
    assert RopeSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert hash(spec) == hash(RopeSpec.from_dict(spec.to_dict()))


def test_an_integer_factor_becomes_a_float():
    written = RopeSpec.from_dict(rope("linear", factor=4)).to_dict()
    assert repr(written["factor"]) == "4.0"
    assert repr(written["rope_theta"]) == "10000.0"


def test_a_length_written_as_a_float_becomes_an_integer():
    written = RopeSpec.from_dict(rope("yarn", original_max_position_embeddings=8192.0)).to_dict()
    assert written["original_max_position_embeddings"] == 8192
    assert isinstance(written["original_max_position_embeddings"], int)
    with pytest.raises(RopeConfigError, match=r"original_max_position_embeddings: .*8192\.5"):
        RopeSpec.from_dict(rope("yarn", original_max_position_embeddings=8192.5))


def test_spec_wavelength_ramp_is_not_left_to_a_library():
    method = RopeSpec.from_dict(rope("yarn", ramp="wavelength")).method
    with pytest.raises(RopeConfigError, match="yarn; use resonance_yarn"):
        method.to_vllm({"rope_type": "yarn"})
    assert method.to_vllm({"rope_type": "resonance_yarn"}) == {"rope_type": "resonance_yarn"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rope_theta": 1e4}, ["rope_type", "missing", "resonance_yarn"]),
        ({"type": "yarn"}, ["rope_type: missing in {'type'"]),
        ({"rope_type": "yran", "rope_theta": 1e4}, ["rope_type", "'yran'", "mean 'yarn'"]),
        ({"rope_type": "ntk", "rope_theta": 1e4}, ["unknown type 'ntk'", "ntk_aware"]),
        ({"rope_type": 3}, ["rope_type: unknown type '3'", "resonance_yarn"]),
        ("yarn", ["rope_type: missing in 'yarn'"]),
        (rope("yarn", facter=2), ["facter", "did you mean 'factor'"]),
        (rope("yarn", factor=0.5), ["factor: ", "equal to 1 (0.5 given)"]),
        (rope("yarn", factor=True), ["factor", "True"]),
        (rope("yarn", factor="2"), ["factor", "'2'"]),
        (rope("yarn", factor=float("nan")), ["factor", "nan"]),
        (rope("yarn", ramp="sideways"), ["ramp", "'sideways'", "'dimension' or 'wavelength'"]),
        (rope("yarn", beta_fast=1, beta_slow=2), ["beta_fast: 1.0 is below beta_slow=2.0"]),
        (rope("yarn", beta_slow=40), ["beta_fast: 32.0 is below beta_slow=40"]),
        (rope("ntk_aware", base_scaling="x"), ["base_scaling", "'x'", "'exact' or 'paper'"]),
        (rope("default", factor=2), ["factor: unknown setting; allowed: rope_theta"]),
        (rope("longrope", short_factor=[1, -1]), ["short_factor.1", "greater than 0"]),
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


def test_short_form_and_json_say_the_same():
    short = RopeRequest.parse("yarn:factor=2,original_max_position_embeddings=8192,truncate=false")
    assert short.to_dict() == {
        "rope_type": "yarn",
        "factor": 2,
        "original_max_position_embeddings": 8192,
        "truncate": False,
    }
    assert RopeRequest.parse(json.dumps(short.to_dict())) == short
    for text, words in (
        ("{rope_type: yarn}", "not JSON"),
        ("yran:factor=2", "did you mean 'yarn'"),
        ("yarn:facter=2", "did you mean 'factor'"),
    ):
        with pytest.raises(RopeConfigError, match=words):
            RopeRequest.parse(text)


@pytest.mark.parametrize("prefix", ["", "resonance_"])
def test_short_names_are_resolved_in_requests_only(prefix):
    request = RopeRequest.from_dict({"rope_type": prefix + "ntk", "factor": 2})
    assert request.to_dict() == {"rope_type": prefix + "ntk_aware", "factor": 2}
