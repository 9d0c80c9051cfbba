"""Nothing outside a model changes when it gets RoPE settings, and all of it is undone."""

import copy

import pytest
import torch

from resonance_vllm import hf
from resonance_vllm.common.settings import parse_settings
from resonance_vllm.core import spec
from resonance_vllm.core.spec import ROPE_TYPES

DEFAULT = {"rope_type": "default", "rope_theta": 100.0}
TOKENS = torch.randint(3, 64, (1, 60), generator=torch.Generator().manual_seed(5))
FAMILIES = ["llama", "qwen3", "gemma3_text", "mistral", "gpt_neox", "cohere", "glm4"]


def answers(model):
    with torch.no_grad():
        return model(TOKENS).logits


def instance_attributes(model):
    """What the modules of a model have of their own, by the name of the module."""
    attributes = {}
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        attributes[name] = (
            hooks,
            sorted(set(vars(module)) - {"_rope_loaded", "rope_precision_used"}),
        )
    return attributes


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_rotation_changes_one_model(tiny, family):
    """Two models of a family: one is given float32 rotation, the other never sees it."""
    changed = tiny(family, DEFAULT).to(torch.bfloat16)
    other = tiny(family, DEFAULT).to(torch.bfloat16)
    for model in (changed, other):
        hf.apply_rope(model)  # `to` has cast the inverse frequencies, too
    before = answers(other)
    attributes = instance_attributes(other)
    assert answers(changed).equal(before)
    hf.apply_rope(changed, None, "float32")
    assert changed.rope_precision_used == "float32"
    assert not answers(changed).equal(before)
    assert answers(other).equal(before)
    assert instance_attributes(other) == attributes
    later = tiny(family, DEFAULT).to(torch.bfloat16)
    hf.apply_rope(later)
    assert answers(later).equal(before)
    assert instance_attributes(later) == attributes
    again = tiny(family, DEFAULT).to(torch.bfloat16)
    hf.apply_rope(again, None, "float32")
    assert answers(again).equal(answers(changed))
    hf.apply_rope(changed)
    assert answers(changed).equal(before)
    assert instance_attributes(changed) == attributes


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_rotation_is_copied_and_dispatched(tiny, family):
    from accelerate import cpu_offload

    model = tiny(family, DEFAULT).to(torch.bfloat16)
    hf.apply_rope(model)
    before = answers(model)
    hf.apply_rope(model, None, "float32")
    wanted = answers(model)
    copied = copy.deepcopy(model)
    assert answers(copied).equal(wanted)
    hf.apply_rope(copied)
    assert answers(copied).equal(before)
    assert answers(model).equal(wanted)
    offloaded = cpu_offload(tiny(family, DEFAULT).to(torch.bfloat16))
    hf.apply_rope(offloaded, None, "float32")
    assert answers(offloaded).equal(wanted)
    hf.apply_rope(offloaded)
    assert answers(offloaded).equal(before)


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_settings_are_parsed_once(tiny, monkeypatch, rope_type):
    """Once for a request: what its modules read from the config is known by then."""
    model = tiny("llama", DEFAULT)
    hf.apply_rope(model)
    parsed = []

    def parse(method, given, **keywords):
        parsed.append(given)
        return parse_settings(method, given, **keywords)

    monkeypatch.setattr(spec, "_PARSED", {})
    monkeypatch.setattr(spec, "parse_settings", parse)
    kind = spec.RopeType.parse(rope_type)
    required = kind.method.example_settings(16)
    hf.apply_rope(model, {"rope_type": rope_type, **required})
    assert len(parsed) == 1, parsed


def test_equal_settings_of_other_types_are_parsed_anew():
    """Python has 1 == True, and only one of them is a factor."""
    settings = {"rope_type": "linear", "rope_theta": 1e4}
    assert spec.RopeSpec.from_dict({**settings, "factor": 1}).method.factor == 1
    with pytest.raises(ValueError, match="factor"):
        spec.RopeSpec.from_dict({**settings, "factor": True})
