"""Every family on transformers: its library's own modules with rounded wavelengths, or refused.

The frequencies of every family under seven methods are frozen (tests/frozen). Here small models
run: angles, exact phase, logits, and what is done with a model that has been loaded.
"""

import copy
import functools
import math

import pytest
import torch
from families_models import (
    answers,
    applied,
    asked,
    config_of,
    global_rotations,
    model_of,
    output,
    shipped_of,
)
from families_record import RIGHT, every, folders, said, settle
from transformers import PreTrainedConfig

from resonance_vllm import hf
from resonance_vllm.checkpoint.overrides import with_rope
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.rope_dict import rope_by_layer_type
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.hf.inspection import report_of_checkpoint

pytestmark = [pytest.mark.slow]

IDS = torch.randint(5, 100, (1, 40), generator=torch.Generator().manual_seed(1))
SWAPPED = ("yarn", "resonance_yarn", "linear", "default")


def refusal(folder):
    """Why a family cannot be asked for Resonance at all, by the way that every command goes."""
    try:
        spec = PositionConfig.from_checkpoint(str(folder)).complete({"rope_type": "resonance"})
        report_of_checkpoint(str(folder), spec)
    except RopeConfigError as error:
        return str(error)
    return None


RUNS = [f for f in folders() if (said("transformers", f) or refusal(f) or RIGHT) == RIGHT]
every_family_that_runs = pytest.mark.parametrize("family", every(8, RUNS))


def test_report_of_family_is_right_or_refused(family):
    refused = refusal(family)
    settle("transformers", family, refused)
    if refused is None:
        turns_like_the_library_with_rounded_wavelengths(family)


def turns_like_the_library_with_rounded_wavelengths(family):
    resonance_model, wanted = resonant(family), model_of(config_of(family))
    pairs = zip(global_rotations(resonance_model), global_rotations(wanted), strict=True)
    for (module, prefix, kind), (reference, _, _) in pairs:
        held, there = (getattr(each, f"{prefix}inv_freq") for each in (module, reference))
        lengths = (2 * math.pi / there.double()).round().clamp(min=1)
        rounded = torch.where(there > 0, 2 * math.pi / lengths, there.double())
        there.copy_(rounded)
        getattr(reference, f"{prefix}original_inv_freq").copy_(rounded)
        torch.testing.assert_close(held, there, rtol=1e-5, atol=0)
        near = list(range(40))
        for a, b in zip(*(answers(m, kind, near) for m in (module, reference)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
        fastest = round(2 * math.pi / float(held[0]))
        far = answers(module, kind, [5, 5 + fastest * 21845])[0]
        assert far[:, 0, 0].equal(far[:, 1, 0])
    a, b = output(resonance_model, IDS), output(wanted, IDS)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * float(b.abs().max()))


def resonant(family):
    """A model with Resonance on what the family ships."""
    config = config_of(family)
    shipped = shipped_of(config)
    base = str(shipped.get("rope_type", "default"))
    kind = "resonance" if base == "default" else f"resonance_{base}"
    settings = {key: value for key, value in shipped.items() if key != "type"}
    return applied(asked(config, {**settings, "rope_type": kind}))


def swappable(config):
    """The settings of `SWAPPED` that a small model of a family takes."""
    positions = PositionConfig.from_config(config)
    for name in SWAPPED:
        keys = {"original_max_position_embeddings": 1024} if name != "default" else {}
        factor = {"factor": 4.0} if name != "default" else {}
        try:
            yield positions.complete({"rope_type": name, **factor, **keys})
        except RopeConfigError:
            continue


@every_family_that_runs
def test_apply_rope_swap_equals_a_fresh_model(family):
    """yarn → resonance_yarn → linear → default → unmodified, each as in a model made with it."""
    config = config_of(family)
    model = model_of(config)
    shipped = output(model, IDS)
    for spec in swappable(config):
        try:
            hf.apply_rope(model, spec)
        except RopeConfigError:
            continue  # as frozen, or as the test of every method says
        fresh = with_rope(copy.deepcopy(config), spec.to_dict())
        made = model_of(fresh)
        hf.apply_rope(made)
        assert output(model, IDS).equal(output(made, IDS)), spec
    hf.apply_rope(model)
    assert output(model, IDS).equal(shipped)


@every_family_that_runs
def test_apply_rope_survives_saving_copying_and_casting(family, tmp_path):
    model = resonant(family)
    wanted = output(model, IDS)
    assert output(copy.deepcopy(model), IDS).equal(wanted)
    if type(model.config.get_text_config()).validate_rope is PreTrainedConfig.validate_rope:
        model.save_pretrained(tmp_path)  # other config classes name the types they allow (Phi 3)
        loaded = hf.load(str(tmp_path), auto_class=type(model), dtype=torch.float32)
        text = loaded.config.get_text_config()
        assert rope_by_layer_type(text) == rope_by_layer_type(model.config.get_text_config())
        torch.testing.assert_close(output(loaded, IDS), wanted, rtol=0, atol=1e-4)
    before = turned(model)
    torch.testing.assert_close(turned(model.to(torch.bfloat16).float()), before, rtol=0, atol=0)


def turned(model):
    """What the rotary modules answer."""
    return [module(torch.zeros(1), IDS, **of(kind)) for module, _, kind in global_rotations(model)]


def of(kind):
    return {} if kind is None else {"layer_type": kind}


@every_family_that_runs
def test_rotary_module_compiles_with_fullgraph(family):
    model = resonant(family)
    for module, _, kind in global_rotations(model):
        if any(getattr(hook, "at_length", None) for hook in module._forward_hooks.values()):
            continue  # a length that frequencies follow is looked at, by transformers too
        whole = functools.partial(module, **of(kind))
        compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
        positions = torch.arange(40)[None]
        found, wanted = (each(torch.zeros(1), positions) for each in (compiled, whole))
        torch.testing.assert_close(found, wanted)
        torch.compiler.reset()


@every_family_that_runs
def test_apply_rope_float32_on_family(family):
    """Queries and keys are rotated by float32 cos and sin and returned in the model's dtype."""
    model = resonant(family).to(torch.bfloat16)
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
