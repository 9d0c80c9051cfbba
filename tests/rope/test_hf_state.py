"""Nothing outside a model changes when it gets RoPE settings, and all of it is undone."""

import copy
import logging
import sys

import pytest
import torch

from resonance_vllm import hf
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.hf.inspection import report_of_checkpoint

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


def process_state():
    """Levels and handlers of all loggers, and the functions of the libraries' loaded modules."""
    loggers = {"": logging.getLogger()}
    loggers |= {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    state = {
        name: (logger.level, logger.disabled, logger.propagate, tuple(map(id, logger.handlers)))
        for name, logger in loggers.items()
    }
    for name, module in list(sys.modules.items()):
        if name.startswith(("transformers.", "torch.nn")):
            for key, value in list(vars(module).items()):
                if callable(value):
                    state[f"{name}.{key}"] = id(value)
    return state


CALLS = {
    "read_config": lambda folder, model: read_config(folder),
    "load": lambda folder, model: hf.load(folder, "yarn:factor=2", precision="float32"),
    "apply_rope": lambda folder, model: hf.apply_rope(model, "resonance_yarn:factor=2", "float32"),
    "apply_rope, remapping": lambda folder, model: hf.apply_rope(model, "self_extend:factor=2"),
    "apply_rope, undone": lambda folder, model: hf.apply_rope(model),
    "report_of_checkpoint": lambda folder, model: report_of_checkpoint(folder),
}


@pytest.mark.parametrize("name", CALLS)
def test_public_function_leaves_the_process_alone(tiny, tmp_path, name):
    model = tiny("llama", DEFAULT)
    model.save_pretrained(tmp_path)
    hf.register()
    before = process_state()
    CALLS[name](str(tmp_path), model)
    after = process_state()
    # what a call imports is new and not changed
    assert {key: after[key] for key in before if key in after} == before


def test_settings_are_parsed_once(tiny, monkeypatch):
    """Once for a request, and once for what the config of all rotary modules says then."""
    from resonance_vllm.core.spec import RopeRequest

    model = tiny("llama", DEFAULT)
    hf.apply_rope(model)
    parsed = []
    original = RopeRequest.from_dict.__func__

    def from_dict(cls, rope, **keywords):
        parsed.append(rope)
        return original(cls, rope, **keywords)

    monkeypatch.setattr(RopeRequest, "from_dict", classmethod(from_dict))
    hf.apply_rope(model, "yarn:factor=2")
    assert len(parsed) == 1
