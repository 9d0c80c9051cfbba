"""A method written in any library's way is read back as the same method, for every family."""

import json
from pathlib import Path

import pytest
from lm_eval_output import ACC, write

from leval_harness.results.load import load_results
from resonance_vllm.checkpoint.arguments import model_args, rope_from_model_args
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import UserError
from resonance_vllm.core.spec import RopeSpec

CONFIGS = Path(__file__).parents[1] / "families" / "configs"
FAMILIES = sorted(file.parent.name for file in CONFIGS.glob("*/config.json"))
METHODS = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "ntk_aware", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "attention_factor": 1.5},
    {"rope_type": "resonance"},
    {"rope_type": "resonance_linear", "factor": 4.0},
    {"rope_type": "resonance_yarn", "factor": 4.0},
)
ORIGINAL = "original_max_position_embeddings"


def completed(model, rope):
    """The complete settings, or None where the family refuses the method."""
    for addition in ({}, {ORIGINAL: 4096}):
        try:
            return model.complete({**rope, **addition})
        except UserError as error:
            last = error
    assert last is not None
    return None


def spellings(spec, model):
    """The arguments that libraries read for a request: name -> `model_args`."""
    hf = model_args(spec, model, library="transformers", model_path="m")
    written = {"transformers": hf}
    try:
        vllm = model_args(spec, model, library="vllm", model_path="m")
    except UserError:
        return written
    overrides = vllm["hf_overrides"]
    return {
        **written,
        "vLLM": vllm,
        "vLLM as text": {**vllm, "hf_overrides": json.dumps(overrides)},
        "SGLang": {"pretrained": "m", "json_model_override_args": json.dumps(overrides)},
        "vLLM's flag": {"pretrained": "m", "hf-overrides": repr(overrides)},
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_rope_from_model_args_of_every_family(family):
    model = PositionConfig.from_checkpoint(str(CONFIGS / family))
    read = 0
    for rope in METHODS:
        spec = completed(model, rope)
        if spec is None:
            continue
        for name, arguments in spellings(spec, model).items():
            expected = spec.to_dict()
            if rope["rope_type"] == "dynamic" and name != "transformers":
                # vLLM has the frequencies of the served length, which are those of another method
                at_length = spec.method.at_length(model_length(arguments, spec, model))
                expected = RopeSpec.from_dict(
                    {"rope_type": "ntk_aware", **dict(at_length)}
                ).to_dict()
            assert rope_from_model_args(arguments, model) == expected, (rope, name)
            read += 1
    assert bool(read) == (family not in REFUSED_FAMILIES)


def model_length(arguments, spec, model):
    """The length that a request is served with."""
    return arguments.get("max_model_len") or spec.method.length_limit(model.max_positions)


REFUSED_FAMILIES = {"bloom_7b", "gptj_6b"}
"""Families without a rotation that a method could change."""


def old_spellings():
    """One YaRN request as transformers 4 and 5, vLLM and SGLang have taken it, by the place."""
    bodies = {
        "rope_type": {"rope_type": "yarn", "factor": 4.0},
        "type": {"type": "yarn", "factor": 4},
        "both": {"type": "yarn", "rope_type": "yarn", "factor": 4.0},
        "a layer type": {"full_attention": {"rope_type": "yarn", "factor": 4.0},
                         "sliding_attention": {"rope_type": "default"}},
    }  # fmt: skip
    nests = {
        "flat": lambda body: body,
        "text_config": lambda body: {"text_config": body},
        "llm_config": lambda body: {"llm_config": body},
        "thinker": lambda body: {"thinker_config": {"text_config": body}},
        "language_model": lambda body: {"language_model": {"config": body}},
    }
    for body_name, body in bodies.items():
        for key in ("rope_scaling", "rope_parameters"):
            yield f"{key}, {body_name}", {key: body}
            for nest_name, nest in nests.items():
                overrides = nest({key: body})
                for argument in ("hf_overrides", "hf-overrides", "json_model_override_args"):
                    name = f"{argument}, {nest_name}, {key}, {body_name}"
                    yield name, {argument: overrides}
                    yield f"{name}, text", {argument: json.dumps(overrides)}


SPELLINGS = dict(old_spellings())


def test_methods_of_runs_are_read_in_every_spelling():
    assert len(SPELLINGS) == 248
    for name, arguments in SPELLINGS.items():
        rope = rope_from_model_args(arguments)
        assert rope == {"rope_type": "yarn", "factor": 4.0}, name


@pytest.mark.parametrize("name", list(SPELLINGS)[::31])
def test_results_name_the_method_in_every_spelling(tmp_path, name):
    write(tmp_path, ACC, config={"model_args": {"pretrained": "m", **SPELLINGS[name]}})
    assert load_results(tmp_path).runs["method"].tolist() == ["yarn x4"]
