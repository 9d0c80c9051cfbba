"""transformers' own types asked of every family: what its function computes there, or refused.

A refusal has to be true: the model built with the same settings, and nobody to compare them, turns
by something else or fails.
"""

import json
import re

import pytest
import torch
from families_compare import LENGTH, L, in_turn, outcomes, settings_of
from families_models import answers, config_of, global_rotations, shipped_of
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from resonance_vllm.config import ModelPositions, hf_overrides
from resonance_vllm.core.spec import STOCK_TYPES
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.hf.build import on_meta, report_of_checkpoint
from resonance_vllm.hf.request import configs
from resonance_vllm.hf.tiny import model_of
from resonance_vllm.positions import by_layer, windowed
from resonance_vllm.verifier import OverriddenRope

pytestmark = pytest.mark.hf

FAILS = (AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


# A request reaches their rotary modules; Resonance may still be refused.
TURNING = [
    family
    for family, outcome in outcomes().items()
    if not re.search("no rotary|the encoder|does not know|no RoPE", outcome)
]
NOT_OF_THE_FAMILY = "features of a whole head|pairs dimensions over all of it"


def overrides_of(folder, name):
    """What is asked of transformers."""
    model = ModelPositions.of_checkpoint(str(folder))
    settings = settings_of(folder, name)
    if name in ("default", "proportional"):
        settings.pop(L)
    if name == "longrope":
        settings["long_factor"] = [2 + j / 16 for j in range(len(settings["short_factor"]))]
    return hf_overrides(model.complete(settings), model)


def computed(text, kind, length=None):
    """Frequencies and attention factor by the library's function for a config's settings."""
    settings = by_layer(text)[kind]
    name = settings["rope_type"]
    if name == "default":  # which is no function of the registry
        settings |= {"rope_type": "linear", "factor": 1.0}
    keywords = {} if kind is None else {"layer_type": kind}
    if vars(text).get("head_dim", 0) is None:
        text.head_dim = text.hidden_size // text.num_attention_heads
    found, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](
        text, "cpu", seq_len=length, **keywords
    )
    settings["rope_type"] = name
    return found.sort().values, scale


def is_as_computed(folder, overrides):
    """Whether a model with the settings, built by the library alone, turns as its function says."""
    text = AutoConfig.from_pretrained(folder, **overrides).get_text_config()
    small = config_of(folder)
    inner = small.get_text_config()
    inner.rope_parameters = json.loads(json.dumps(text.rope_parameters))
    inner.max_position_embeddings = text.max_position_embeddings
    try:
        model = model_of(small)
        rotations = global_rotations(model)
        for module, prefix, kind in rotations:
            for length in (1, 2 * LENGTH, 2 * LENGTH + 1):
                answers(module, kind, [length - 1])
                held, scale = computed(inner, kind, length)
                found = getattr(module, f"{prefix}inv_freq").sort().values
                torch.testing.assert_close(found, held, rtol=1e-5, atol=0)
                assert getattr(module, f"{prefix}attention_scaling") == pytest.approx(scale)
    except (AssertionError, *FAILS):
        return False
    return bool(rotations) and not getattr(model.config, "is_encoder_decoder", False)


def uncompared(folder, overrides):
    """The config with overrides that nobody compares with what is built."""
    config = AutoConfig.from_pretrained(folder, **overrides)
    for each in configs(config):
        if OverriddenRope.of(each):
            each.rope_parameters = dict(each.rope_parameters)
    return config


def looked_at(folder, overrides):
    """What the model holds with us at work, or why not."""
    try:
        return report_of_checkpoint(str(folder), overrides), None
    except RopeConfigError as error:
        return [], str(error)
    except FAILS as error:
        with pytest.raises(FAILS):  # loud, and so is the library alone
            on_meta(uncompared(folder, overrides))
        return [], str(error)


def counts(held):
    return {len(each.inv_freq) for each in held if not windowed(each.layer_type)}


@in_turn(TURNING, sorted(STOCK_TYPES), "name")
def test_a_type_that_is_asked_for_is_what_the_model_turns_by(family, name):
    shipped = shipped_of(config_of(family))
    partly = shipped.get("partial_rotary_factor", 1) < 1
    if partly and (name == "proportional") != (shipped["rope_type"] == "proportional"):
        with pytest.raises(RopeConfigError, match=NOT_OF_THE_FAMILY):
            overrides_of(family, name)
    else:
        turns_as_asked_or_says_why(family, overrides_of(family, name))


def turns_as_asked_or_says_why(family, overrides):
    held, reason = looked_at(family, overrides)
    if reason is not None:
        assert "features turn" in reason or not is_as_computed(family, overrides), reason
        return
    assert counts(held) == counts(report_of_checkpoint(str(family)))
    text = AutoConfig.from_pretrained(family, **overrides).get_text_config()
    for each in held if OverriddenRope.of(text) else ():  # else it is what is shipped
        if not windowed(each.layer_type):
            found, scale = computed(text, each.layer_type)
            assert sorted(each.inv_freq) == pytest.approx(found.tolist(), rel=1e-5)
            assert each.attention_factor == pytest.approx(scale, rel=1e-6)
