"""How long may it read? Tasks and backends of both libraries are asked, and give one answer."""

import json
import subprocess
import sys

import pytest
from llama31 import LLAMA31
from naive_maps import MOVING

from leval_tasks.common.model import resolve_context
from resonance_vllm.checkpoint.arguments import model_args
from resonance_vllm.checkpoint.limits import check_length, length_limit, length_notes
from resonance_vllm.checkpoint.overrides import hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import ROPE_TYPES, RopeType

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 8}
SCALED = {"factor": 2.0, "original_max_position_embeddings": 8192}
CONFIGS = {
    "llama 2": {"max_position_embeddings": 4096, "rope_theta": 1e4, "rope_scaling": None},
    "llama 3.1": {"max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": LLAMA31},
    "llama 3.1 unscaled": {
        "max_position_embeddings": 8192,
        "rope_theta": 5e5,
        "rope_scaling": LLAMA31,
    },
    "yarn": {
        "max_position_embeddings": 16384,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e5, **SCALED},
    },
    "resonance": {
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "resonance_yarn", "rope_theta": 1e5, **SCALED},
    },
}
# Worked out by hand for factor 4: original context length times factor; the original context length
# without one.
LIMITS = {
    "llama 2": (4096, 16384),
    "llama 3.1": (8192, 32768),
    "llama 3.1 unscaled": (8192, 32768),
    "yarn": (8192, 32768),
    "resonance": (8192, 32768),
}


def asked(rope_type):
    """A request for a type with factor 4 in place of what is shipped, which has the length."""
    method = RopeType.parse(rope_type).method
    keys = {
        key: value for key, value in method.example_settings(16).items() if "position" not in key
    }
    factor = {"factor": 4.0} if "factor" in keys else {}
    return {"rope_type": rope_type} | keys | factor


def answers(rope, config, folder):
    """Who is asked -> longest sequence in tokens."""
    (folder / "config.json").write_text(json.dumps(config))
    model = PositionConfig.from_checkpoint(str(folder))
    spec = model.complete(rope)
    by_library = {
        library: model_args(spec, model, library=library, model_path=str(folder))
        for library in ("transformers", "vllm")
    }
    result = {
        "the function": length_limit(model, spec),
        "backend, transformers": by_library["transformers"]["max_length"],
        "backend, vllm": by_library["vllm"]["max_model_len"],
    }
    # transformers takes the config's length for the trained one of what follows the length.
    if not spec.method.depends_on_length:
        written = {**config, "rope_scaling": None, **hf_overrides(spec, model)}
        result["a checkpoint written so"] = length_limit(PositionConfig.from_dict(written))
    return spec, result


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rope_type", [t for t in ROPE_TYPES if t not in MOVING])
def test_everybody_gives_the_same_limit(rope_type, name, tmp_path):
    spec, found = answers(asked(rope_type), {**LLAMA, **CONFIGS[name]}, tmp_path)
    assert len(set(found.values())) == 1, found
    on_shipped = rope_type == "resonance" and name != "llama 2"
    if spec.method.name in ("default", "linear", "ntk_aware", "yarn") and not on_shipped:
        limit = LIMITS[name][spec.method.name != "default"]
        assert set(found.values()) == {limit}


@pytest.mark.parametrize("rope_type", ["llama3", "resonance_llama3"])
def test_llama_3_1_with_resonance_reads_what_llama_3_1_reads(rope_type, tmp_path):
    config = {**LLAMA, **CONFIGS["llama 3.1"]}
    config["rope_scaling"] = {**LLAMA31, "rope_type": rope_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve_context({"pretrained": str(tmp_path)}) == 131072
    assert length_limit(PositionConfig.from_checkpoint(str(tmp_path))) == 131072
    _, found = answers({"rope_type": rope_type}, config, tmp_path)
    assert set(found.values()) == {131072}, found


def test_lengths_and_settings_are_asked_without_torch():
    script = """
import sys
import resonance_vllm.core.methods
from resonance_vllm.core.spec import RopeRequest
from resonance_vllm.checkpoint.limits import check_length, length_limit, length_notes
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.overrides import hf_overrides, vllm_hf_overrides
model = PositionConfig.from_dict({"max_position_embeddings": 256, "rope_theta": 1e4})
rope = model.complete(RopeRequest.parse("resonance_yarn:factor=4"))
assert length_limit(model, rope) == 1024
assert rope.method.compute_attention_factor() > 1.1
hf_overrides(rope, model), vllm_hf_overrides(rope, model)
from resonance_vllm.checkpoint.arguments import model_args
model_args(rope, model, library="vllm", model_path="x")
assert "torch" not in sys.modules and "transformers" not in sys.modules, "heavy"
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_limit_of_dynamic_names_its_own_method():
    """A checkpoint that ships `dynamic` is told to use it, and not that it has no method."""
    config = {**LLAMA, **CONFIGS["llama 2"], "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    model = PositionConfig.from_dict(config)
    longer = model.max_positions + 100
    assert length_notes(model, None, longer) == []
    with pytest.raises(RopeConfigError, match=r"--rope dynamic:factor=2, its own method"):
        check_length(model, None, longer)
    assert check_length(model, model.own_spec(), 10_000) == 10_000
