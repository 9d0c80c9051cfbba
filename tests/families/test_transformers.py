"""Every family on transformers: its library's own modules with rounded wavelengths, or refused.

The frequencies of every family under seven methods are frozen (tests/frozen). Here small models
run: angles, exact phase, logits, and what is done with a model that has been loaded.
"""

import copy
import functools

import pytest
import torch
from families_compare import (
    IDS,
    SHIPPED,
    check,
    in_turn,
    name_of,
    outcomes,
    refusal,
    settings_of,
)
from families_models import applied, asked, config_of, global_rotations, model_of, output
from families_record import RIGHT, settle
from transformers import PreTrainedConfig

from resonance_vllm import hf
from resonance_vllm.config import ModelPositions
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.spec import METHODS
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import by_layer

pytestmark = pytest.mark.hf

RUNS = [family for family, outcome in outcomes().items() if outcome == RIGHT]
every_family_that_runs = pytest.mark.parametrize("family", RUNS, ids=lambda folder: folder.name)
NAMES = [
    name_of(name, resonance=resonance)
    for name, method in METHODS.items()
    for resonance in (False, True)
    if not issubclass(method, MappedMethod)
    if resonance or not method.stock  # the library's own: frozen, and exchanged below
]
EXCHANGED = ("yarn", "resonance_yarn", "linear", "default")


def test_resonance_on_what_is_shipped_or_a_reason(family):
    refused = refusal(family)
    settle("transformers", family, refused)
    if refused is None:
        check(family, SHIPPED, resonance=True)


@in_turn(RUNS, NAMES, "method")
def test_every_method(family, method):
    resonance = method.startswith("resonance")
    base = method.removeprefix("resonance").removeprefix("_") or "default"
    check(family, base, resonance=resonance)


def resonant(family):
    """A model with Resonance on what the family ships."""
    shipped = settings_of(family, SHIPPED)
    kind = name_of(shipped["rope_type"], resonance=True)
    return applied(asked(config_of(family), {**shipped, "rope_type": kind}))


def exchangeable(config):
    """The settings of `EXCHANGED` that a small model of a family takes."""
    positions = ModelPositions.of_config(config)
    for name in EXCHANGED:
        keys = {"original_max_position_embeddings": 1024} if name != "default" else {}
        factor = {"factor": 4.0} if name != "default" else {}
        try:
            yield positions.complete({"rope_type": name, **factor, **keys})
        except RopeConfigError:
            continue


@every_family_that_runs
def test_methods_are_exchanged_in_a_model_bit_for_bit(family):
    """yarn → resonance_yarn → linear → default → as shipped, each as in a model made with it."""
    config = config_of(family)
    model = model_of(config)
    shipped = output(model, IDS)
    for spec in exchangeable(config):
        try:
            hf.apply_rope(model, spec)
        except RopeConfigError:
            continue  # as frozen, or as the test of every method says
        fresh = hf.with_rope(copy.deepcopy(config), spec.to_dict())
        made = model_of(fresh)
        hf.apply_rope(made)
        assert output(model, IDS).equal(output(made, IDS)), spec
    hf.apply_rope(model)
    assert output(model, IDS).equal(shipped)


@every_family_that_runs
def test_a_saved_copied_and_cast_model_turns_alike(family, tmp_path):
    model = resonant(family)
    wanted = output(model, IDS)
    assert output(copy.deepcopy(model), IDS).equal(wanted)
    if type(model.config.get_text_config()).validate_rope is PreTrainedConfig.validate_rope:
        model.save_pretrained(tmp_path)  # other config classes name the types they allow (Phi 3)
        loaded = hf.load(str(tmp_path), auto_class=type(model), dtype=torch.float32)
        text = loaded.config.get_text_config()
        assert by_layer(text) == by_layer(model.config.get_text_config())
        torch.testing.assert_close(output(loaded, IDS), wanted, rtol=0, atol=1e-4)
    before = turned(model)
    torch.testing.assert_close(turned(model.to(torch.bfloat16).float()), before, rtol=0, atol=0)


def turned(model):
    """What the rotary modules answer."""
    return [module(torch.zeros(1), IDS, **of(kind)) for module, _, kind in global_rotations(model)]


def of(kind):
    return {} if kind is None else {"layer_type": kind}


@in_turn(RUNS, ["compile", "float32"], "what")
def test_what_is_done_with_a_model(family, what):
    model = resonant(family)
    if what == "compile":
        compiles_whole(model)
    else:
        rotates_in_float32(model)


def compiles_whole(model):
    for module, _, kind in global_rotations(model):
        if any(getattr(hook, "at_length", None) for hook in module._forward_hooks.values()):
            continue  # a length that frequencies follow is looked at, by transformers too
        whole = functools.partial(module, **of(kind))
        compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
        positions = torch.arange(40)[None]
        found, wanted = (each(torch.zeros(1), positions) for each in (compiled, whole))
        torch.testing.assert_close(found, wanted)
        torch.compiler.reset()


def rotates_in_float32(model):
    """Queries and keys are turned by float32 cos and sin and given back in the model's dtype."""
    model = model.to(torch.bfloat16)
    hf.apply_rope(model)  # transformers casts frequencies too
    before = output(model, IDS)
    hf.apply_rope(model, None, "float32")
    assert model.rope_precision_used == "float32"  # every family here; others may say `model`
    for module, _, kind in global_rotations(model):
        found = module(torch.zeros(1, dtype=torch.bfloat16), IDS, **of(kind))
        first = found if isinstance(found, torch.Tensor) else found[0]
        assert first.dtype in (torch.float32, torch.complex64)
    after = output(model, IDS)
    assert after.dtype == before.dtype
    # random weights amplify the rounding of bfloat16; another rotation differs by more than one
    assert float((after - before).abs().float().mean()) < 0.3 * float(before.abs().float().mean())
    hf.apply_rope(model)
    assert output(model, IDS).equal(before)
