"""Every family in vLLM: its own modules with their wavelengths rounded, as on transformers.

All models are built in one process, without weights. Every family is asked for Resonance on what
it ships and for one of the methods, in turn; the tests marked `long` ask for all of them. Engines
that run them are in `tests/vllm/test_families_run.py`.
"""

import functools
import math
import re

import pytest
from families_record import RIGHT, folders, read, settle
from naive_maps import MAPS

from resonance_vllm.config import ModelPositions, hf_overrides, vllm_hf_overrides
from resonance_vllm.core.spec import LENGTH, STOCK_TYPES, RopeRequest
from resonance_vllm.core.spec import METHODS as EVERY_METHOD
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import windowed

SERVED, FACTOR, HOUR = 1024, 4.0, 3600
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(HOUR)]  # the first test builds for all
ON_SHIPPED = "resonance"
# Those that follow a sequence are fixed at the served length in vLLM.
METHODS = [
    name for name, method in EVERY_METHOD.items() if not method.follows_length and name not in MAPS
]


def families_right_in(*libraries):
    """By the records, and those that have no note yet."""
    notes = [read(library) for library in libraries]
    right = [f for f in folders() if {note.get(f.name, RIGHT) for note in notes} == {RIGHT}]
    return pytest.mark.parametrize("family", right, ids=lambda folder: folder.name)


one_method_or_all = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one method", "all methods"]
)


def name_of(base, *, resonance):
    if not resonance:
        return base
    return "resonance" if base == "default" else f"resonance_{base}"


def features(folder):
    """Features of the global rotation, as transformers builds them."""
    from resonance_vllm.hf.build import report_of_checkpoint

    return next(len(e.inv_freq) for e in report_of_checkpoint(str(folder)) if is_global(e))


def is_global(entry):
    return not windowed(entry.layer_type)


@functools.cache
def request(folder, name):
    """Complete settings of a method on a family, and its config."""
    model = ModelPositions.of_checkpoint(str(folder))
    if name == ON_SHIPPED:
        return model.complete(RopeRequest.parse(ON_SHIPPED)), model
    base = "default" if name == "resonance_default" else name.removeprefix("resonance_")
    method = EVERY_METHOD[base]
    keys = {k: v for k, v in method.example(2 * features(folder)).items() if k != "rope_theta"}
    keys |= {"factor": FACTOR} if "factor" in method.key_names() else {}
    keys |= {LENGTH: SERVED} if LENGTH in method.key_names() else {}
    own = name_of(base, resonance=name.startswith("resonance_"))
    return model.complete({"rope_type": own, **keys}), model


def methods_of(folder, every):
    """All methods, or the one of a family's turn."""
    return METHODS if every else [METHODS[folders().index(folder) % len(METHODS)]]


@functools.cache
def looked_at(*, every):
    """What vLLM holds for every family: as shipped (None), and for every request; or a reason."""
    from resonance_vllm.vllm.build import look_at

    jobs, refused = {}, {}
    for folder in folders():
        model, methods = str(folder), methods_of(folder, every)
        jobs[folder, None] = {"model": model, "hf_overrides": None, "max_model_len": None}
        for name in [ON_SHIPPED, *methods, *(f"resonance_{name}" for name in methods)]:
            try:
                overrides = vllm_hf_overrides(*request(folder, name), SERVED)
            except (RopeConfigError, StopIteration) as error:
                refused[folder, name] = {"refused": str(error)}
            else:
                jobs[folder, name] = {
                    "model": model, "hf_overrides": overrides, "max_model_len": SERVED
                }  # fmt: skip
    answers = look_at(list(jobs.values()), timeout=HOUR)
    return refused | dict(zip(jobs, answers, strict=True))


def held(answer):
    """What vLLM has built; None where it refuses."""
    from resonance_vllm.verify import RotaryReport

    return [RotaryReport(**one) for one in answer["held"]] if "held" in answer else None


def test_resonance_on_what_is_shipped_or_a_reason(family):
    shipped, asked = (looked_at(every=False)[family, name] for name in (None, ON_SHIPPED))
    settle("vllm", family, shipped.get("refused", asked.get("refused")))
    if "refused" in asked and "refused" not in shipped:
        # Resonance is no reason to refuse what vLLM builds, unless its model code is; or it runs
        # through transformers' modules, or has a base that no config says.
        reasons = (
            "does not build with it|does not turn by the frequencies|rope_theta: neither given"
        )
        assert re.search(reasons, asked["refused"])


@one_method_or_all
@families_right_in("vllm", "transformers")
def test_wavelengths_of_vllms_own_modules_are_rounded(family, every):
    """Against modules without Resonance; or a method is refused, with the reason."""
    for base in methods_of(family, every):
        answers = [looked_at(every=every)[family, name] for name in (base, f"resonance_{base}")]
        stock, ours = map(held, answers)
        if stock and ours:
            for plain, rounded in zip(stock, ours, strict=True):
                same_but_rounded(plain, rounded)
        else:
            assert "rope_type: " in "".join(answer.get("refused", "") for answer in answers)


def same_but_rounded(plain, rounded):
    assert plain.module == rounded.module
    assert not plain.exact_phase
    if not is_global(rounded):
        assert rounded.inv_freq == plain.inv_freq
        return
    assert rounded.attention_factor == pytest.approx(plain.attention_factor, rel=1e-5)
    assert rounded.exact_phase
    if len(plain.inv_freq) != len(rounded.inv_freq):
        return  # of a family whose still features vLLM's scaled types leave out
    for a, b in zip(plain.inv_freq, rounded.inv_freq, strict=True):
        if a == 0 or b == 0:
            assert a == b
            continue
        wave, integer = 2 * math.pi / a, 2 * math.pi / b
        assert integer == pytest.approx(round(integer), rel=1e-9)
        assert abs(integer - wave) <= 0.5 + 1e-5 * wave


@one_method_or_all
@families_right_in("vllm", "transformers")
def test_both_libraries_hold_the_same(family, every):
    answers = {name: held(a) for (of, name), a in looked_at(every=every).items() if of == family}
    compared = []
    for name, found in answers.items():
        reference = name and found and in_transformers(family, name)
        stock = name and answers.get(name.removeprefix("resonance_"))
        # The libraries' own types differ on some families, in how much of a head turns.
        if reference and (not stock or turned(reference) <= turned(*stock)):
            near = 1e-4 if name in STOCK_TYPES else 1e-5  # those are read off a table
            for entry in [entry for entry in found if is_global(entry)] or found:
                assert entry.inv_freq == pytest.approx(reference.inv_freq, rel=near)
                assert entry.attention_factor == pytest.approx(reference.attention_factor, rel=near)
                assert entry.exact_phase == name.startswith("resonance")
            compared.append(name)
    assert ON_SHIPPED in compared


def in_transformers(folder, name):
    """The global rotation there; None where it refuses the request, as its own tests say."""
    from resonance_vllm.hf.build import report_of_checkpoint

    spec, model = request(folder, name)
    try:
        report = report_of_checkpoint(str(folder), hf_overrides(spec, model, SERVED))
    except (RopeConfigError, RuntimeError):
        return None
    return next(entry for entry in report if is_global(entry))


def turned(*entries):
    return {len(entry.inv_freq) for entry in entries}
