"""RoPE settings in arguments of other tools, read back into one form."""

import json

import pytest
from families_record import folders

from resonance_vllm.checkpoint.arguments import model_args, rope_from_model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import METHODS, RopeSpec

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LEGACY = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768.0}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}

SPELLINGS = {
    "rope_parameters": {"rope_parameters": YARN},
    "rope_scaling as an argument": {"rope_scaling": LEGACY},
    "hf_overrides, legacy": {"hf_overrides": {"rope_scaling": LEGACY}},
    "hf_overrides, today": {"hf_overrides": {"rope_parameters": YARN}},
    "hf-overrides with a dash": {"hf-overrides": {"rope_parameters": YARN}},
    "hf_overrides as JSON": {"hf_overrides": json.dumps({"rope_scaling": LEGACY})},
    "hf_overrides as Python": {"hf_overrides": str({"rope_scaling": LEGACY})},
    "SGLang": {"json_model_override_args": json.dumps({"rope_scaling": LEGACY})},
    "rope-scaling with a dash": {"rope-scaling": json.dumps(LEGACY)},
    "vLLM's name in DeepSeek's models": {
        "hf_overrides": {"rope_scaling": {**LEGACY, "type": "deepseek_yarn"}}
    },
    "nested": {"hf_overrides": {"text_config": {"rope_parameters": {"mscale": None, **YARN}}}},
    "nested twice": {"hf_overrides": {"thinker_config": {"text_config": {"rope_scaling": LEGACY}}}},
    "beside a vision tower": {
        "hf_overrides": {
            "vision_config": {"rope_parameters": LOCAL},
            "llm_config": {"rope_scaling": LEGACY},
        }
    },
    "per layer type": {
        "hf_overrides": {"rope_parameters": {"sliding_attention": LOCAL, "full_attention": YARN}}
    },
    "defaults written out": {
        "hf_overrides": {"rope_parameters": {**YARN, "beta_fast": 32, "truncate": True}}
    },
    "other keys of the model": {
        "hf_overrides": {"rope_parameters": {**YARN, "mrope_section": [8, 12, 12]}}
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_read_back_every_spelling(spelling):
    arguments = {"pretrained": "x", "dtype": "auto", **SPELLINGS[spelling]}
    assert rope_from_model_args(arguments) == YARN


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pretrained": "x", "max_length": 4096}, None),
        ({"hf_overrides": {"max_position_embeddings": 8192}}, None),
        ({"hf_overrides": "not JSON"}, None),
        ({"hf_overrides": {"rope_theta": 5000000}}, {"rope_theta": 5e6}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 10000},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        ),
        ({"rope_scaling": {"type": "ntk", "alpha": 2}}, {"rope_type": "ntk", "alpha": 2}),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [2]}},
            {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
        ),
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}},
            {"rope_type": "default"},
        ),
    ],
)
def test_read_back_other_requests(arguments, expected):
    assert rope_from_model_args(arguments) == expected


def request_for(method, positions):
    """A request with factor 2 for a method, with lists as long as the model's."""
    keys = {k: v for k, v in method.example_settings(128).items() if "position" not in k}
    if "factor" in keys:
        keys["factor"] = 2.0
    if method.name == "longrope":
        keys["factor"] = 2.0
    if positions.stated_original_length is None and positions.is_scaled:
        keys["original_max_position_embeddings"] = 4096
    return {"rope_type": method.name, **keys}


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_read_back_round_trip_of_families(folder):
    """What this package writes for a library is read back as the same settings."""
    try:
        positions = PositionConfig.from_checkpoint(str(folder))
        positions.max_positions  # noqa: B018 - families without positions have no RoPE
    except RopeConfigError:
        pytest.skip("no positions")
    compared = 0
    for method in METHODS.values():
        try:
            spec = positions.complete(request_for(method, positions))
        except RopeConfigError:
            continue
        for library in ("transformers", "vllm"):
            try:
                arguments = model_args(spec, positions, library=library, model_path="x")
            except RopeConfigError:  # position remapping in vLLM
                continue
            expected = spec
            if library == "vllm" and method.depends_on_length:
                length = arguments["max_model_len"]
                expected = RopeSpec(spec.method.at_length(length), spec.resonance)
            found = rope_from_model_args(json.loads(json.dumps(arguments)))
            assert found == expected.to_dict()
            compared += 1
    assert compared or positions.rope.get("rope_theta") is None or positions.layer_types
