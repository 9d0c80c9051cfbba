"""Every family in vLLM: its own modules with their wavelengths rounded, as on transformers.

All models are built in one process, without weights. Every family is asked for Resonance on what
it ships and for one of the methods, in turn; with FAMILIES_ALL=1 for all of them. Engines that run
them are in `tests/vllm/test_families_run.py`.
"""

import functools
import math
import os
import re
import zlib

import pytest
from families_record import folders, settle
from naive_maps import MAPS

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import BASE_TYPES, LENGTH, STOCK_TYPES, RopeRequest
from resonance_vllm.model_config.family import windowed
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides, vllm_hf_overrides

SERVED, FACTOR, HOUR = 1024, 4.0, 3600
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(HOUR)]  # the first test builds for all
ON_SHIPPED = "resonance"
# Those that follow a sequence are fixed at the served length in vLLM.
METHODS = [
    name
    for name, (method, _) in BASE_TYPES.items()
    if not method.follows_length and name not in MAPS
]


def name_of(base, *, resonance):
    if not resonance:
        return base
    return "resonance" if base == "default" else f"resonance_{base}"


def features(folder):
    """Features of the global rotation, as transformers builds them."""
    from resonance_vllm.hf.build import report_of_checkpoint

    try:
        return next(len(e.inv_freq) for e in report_of_checkpoint(str(folder)) if is_global(e))
    except (RopeConfigError, StopIteration):
        return None


def is_global(entry):
    return not windowed(entry.layer_type)


@functools.cache
def request(folder, name):
    """Complete settings of a method on a family, and its config; None where it has no RoPE."""
    try:
        model = ModelPositions.of_checkpoint(str(folder))
        if name == ON_SHIPPED:
            return model.complete(RopeRequest.parse(ON_SHIPPED)), model
        base = "default" if name == "resonance_default" else name.removeprefix("resonance_")
        method, _ = BASE_TYPES[base]
        keys = {k: v for k, v in method.example(2 * features(folder)).items() if k != "rope_theta"}
        keys |= {"factor": FACTOR} if "factor" in method.key_names() else {}
        keys |= {LENGTH: SERVED} if LENGTH in method.key_names() else {}
        own = name_of(base, resonance=name.startswith("resonance_"))
        return model.complete({"rope_type": own, **keys, "replace": True}), model
    except (RopeConfigError, TypeError):
        return None


@functools.cache
def looked_at():
    """What vLLM holds for every family: as shipped (None), and for every request."""
    from resonance_vllm.vllm.build import look_at

    asked, jobs = [], []
    for folder in folders():
        asked.append((folder, None))
        jobs.append({"model": str(folder), "hf_overrides": None, "max_model_len": None})
        mine = METHODS[zlib.crc32(folder.name.encode()) % len(METHODS)]
        turn = METHODS if os.environ.get("FAMILIES_ALL") else [mine]
        for name in [ON_SHIPPED, *turn, *(f"resonance_{name}" for name in turn)]:
            found = request(folder, name)
            if found is not None:
                spec, model = found
                overrides = vllm_hf_overrides(spec, model, SERVED)
                asked.append((folder, name))
                jobs.append(
                    {"model": str(folder), "hf_overrides": overrides, "max_model_len": SERVED}
                )
    return dict(zip(asked, look_at(jobs, timeout=HOUR), strict=True))


def held(folder, name):
    """What vLLM holds, or why the test has nothing to compare."""
    from resonance_vllm.verifier import RotaryReport

    answer = looked_at().get((folder, name))
    if answer is None or "refused" in answer:
        return None
    return [RotaryReport(**one) for one in answer["held"]]


def test_resonance_on_what_is_shipped_or_a_reason(family):
    shipped = looked_at()[family, None]
    asked = looked_at().get((family, ON_SHIPPED))
    if asked is None:
        with pytest.raises(RopeConfigError) as refused:
            ModelPositions.of_checkpoint(str(family)).complete(RopeRequest.parse(ON_SHIPPED))
        asked = {"refused": str(refused.value)}
    if "ImportError" in (reason := shipped.get("refused", "")) or "No module named" in reason:
        pytest.skip(f"not at hand: {reason}")
    settle("vllm", family, shipped.get("refused", asked.get("refused")))
    if "refused" in asked and "refused" not in shipped:
        # Resonance is no reason to refuse what vLLM builds, unless its model code is; or it runs
        # through transformers' modules, or has a base that no config says.
        reasons = "does not build with it|anew at each call|rope_theta: neither given"
        assert re.search(reasons, asked["refused"])


@pytest.mark.parametrize("name", [f"resonance_{name}" for name in METHODS])
def test_wavelengths_of_vllms_own_modules_are_rounded(family, name):
    """Against stock modules that vLLM builds without us, where it has the method."""
    base = name.removeprefix("resonance_")
    stock, ours = held(family, base), held(family, name)
    if base not in STOCK_TYPES or stock is None or ours is None:
        return
    for plain, rounded in zip(stock, ours, strict=True):
        assert plain.module == rounded.module
        assert not plain.exact_phase
        if not is_global(rounded):
            assert rounded.inv_freq == plain.inv_freq
            continue
        assert rounded.attention_factor == pytest.approx(plain.attention_factor, rel=1e-5)
        assert rounded.exact_phase
        if len(plain.inv_freq) != len(rounded.inv_freq):
            continue  # of a family whose still features vLLM's scaled types leave out
        for a, b in zip(plain.inv_freq, rounded.inv_freq, strict=True):
            if a == 0 or b == 0:
                assert a == b
                continue
            wave, integer = 2 * math.pi / a, 2 * math.pi / b
            assert integer == pytest.approx(round(integer), rel=1e-9)
            assert abs(integer - wave) <= 0.5 + 1e-5 * wave


@pytest.mark.parametrize("name", [ON_SHIPPED, *METHODS, *(f"resonance_{name}" for name in METHODS)])
def test_both_libraries_hold_the_same(family, name):
    from resonance_vllm.hf.build import report_of_checkpoint

    found = held(family, name)
    if found is None:
        return
    spec, model = request(family, name)
    try:
        theirs = report_of_checkpoint(str(family), hf_overrides(spec, model, SERVED))
    except (RopeConfigError, RuntimeError):
        return  # what transformers makes of it is its own tests' question
    reference = next(entry for entry in theirs if is_global(entry))
    stock = held(family, name.removeprefix("resonance_"))
    if stock and {len(e.inv_freq) for e in stock}.isdisjoint({len(reference.inv_freq)}):
        return  # the libraries' own types differ on this family, in how much of a head turns
    near = 1e-4 if name in STOCK_TYPES else 1e-5  # those are read off a table
    checked = [entry for entry in found if is_global(entry)] or found
    for entry in checked:
        assert entry.inv_freq == pytest.approx(reference.inv_freq, rel=near)
        assert entry.attention_factor == pytest.approx(reference.attention_factor, rel=near)
        assert entry.exact_phase == (spec.resonance is not None)
