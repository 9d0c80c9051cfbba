"""Every family in vLLM: its modules turn as transformers', or it is refused with the reason.

All models are built in one process, without weights. The frequencies of every family under seven
methods are frozen (tests/frozen); engines that run families are in `tests/vllm`.
"""

import functools

import pytest
from families_record import RIGHT, folders, read, settle
from vllm_modules import looked_at

from resonance_vllm.config import ModelPositions, vllm_hf_overrides
from resonance_vllm.core.maps import MappedMethod
from resonance_vllm.core.spec import LENGTH, METHODS, RopeRequest
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import windowed
from resonance_vllm.verify import RotaryReport, differences

SERVED, FACTOR, HOUR = 1024, 4.0, 3600
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(HOUR)]  # the first test builds for all
ON_SHIPPED = "resonance"
# Those that follow a sequence are fixed at the served length in vLLM.
BASES = [
    name
    for name, method in METHODS.items()
    if not method.follows_length and not issubclass(method, MappedMethod)
]
RUNS = [
    f for f in folders() if {read(one).get(f.name) for one in ("vllm", "transformers")} == {RIGHT}
]
every = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one method", "all methods"]
)


def asked_of(folder, every):
    """Resonance on what is shipped, and all methods or that of a family's turn, with Resonance."""
    bases = BASES if every else [BASES[folders().index(folder) % len(BASES)]]
    return [
        ON_SHIPPED,
        *("resonance" if b == "default" else f"resonance_{b}" for b in bases),
        *bases,
    ]


@functools.cache
def request(folder, name):
    """Complete settings of a method on a family, and its config."""
    model = ModelPositions.of_checkpoint(str(folder))
    if name == ON_SHIPPED:
        return model.complete(RopeRequest.parse(ON_SHIPPED)), model
    method = METHODS[name.removeprefix("resonance_")]
    keys = {k: v for k, v in method.example(2 * features(folder)).items() if k != "rope_theta"}
    keys |= {"factor": FACTOR} if "factor" in method.key_names() else {}
    keys |= {LENGTH: SERVED} if LENGTH in method.key_names() else {}
    return model.complete({"rope_type": name, **keys}), model


def features(folder):
    """Features of the global rotation, as transformers builds them."""
    return len(next(one for one in in_transformers(folder, None) if is_global(one)).inv_freq)


@functools.cache
def in_transformers(folder, name):
    """What transformers' modules turn by; None where it refuses, as its own tests say."""
    from resonance_vllm.hf import report_of_checkpoint

    spec = None if name is None else request(folder, name)[0]
    try:
        return report_of_checkpoint(str(folder), spec, None if name is None else SERVED)
    except (RopeConfigError, RuntimeError):
        return None


def is_global(entry):
    return not windowed(entry.layer_type)


@functools.cache
def answers(*, every):
    """What vLLM holds for every family, as shipped (None) and for every request; or a reason."""
    jobs, refused = {}, {}
    for folder in folders():
        jobs[folder, None] = {"model": str(folder)}
        for name in asked_of(folder, every):
            try:
                overrides = vllm_hf_overrides(*request(folder, name), SERVED)
            except (RopeConfigError, StopIteration, TypeError) as error:
                refused[folder, name] = {"refused": str(error)}
            else:
                given = {"hf_overrides": overrides, "max_model_len": SERVED}
                jobs[folder, name] = {"model": str(folder), **given}
    return refused | dict(zip(jobs, looked_at(list(jobs.values()), HOUR), strict=True))


def test_resonance_on_what_is_shipped_or_a_reason(family):
    shipped, asked = (answers(every=False)[family, name] for name in (None, ON_SHIPPED))
    settle("vllm", family, shipped.get("refused", asked.get("refused")))


@every
@pytest.mark.parametrize("family", RUNS, ids=lambda folder: folder.name)
def test_both_libraries_turn_alike(family, every):
    compared = []
    for name in asked_of(family, every):
        answer, theirs = answers(every=every)[family, name], in_transformers(family, name)
        if "held" not in answer:
            assert answer["refused"]  # our sentence, or vLLM's own
        elif theirs is not None:
            held = [RotaryReport(**one) for one in answer["held"]]
            reference = next(one for one in theirs if is_global(one))
            for entry in [entry for entry in held if is_global(entry)] or held:
                if name in METHODS and len(entry.inv_freq) != len(reference.inv_freq):
                    continue  # the libraries' own types differ in how much of a head turns
                close = 1e-4 if name in METHODS else 1e-5  # those are read off a table
                assert not differences(entry.turns, reference.turns, close=close), name
                assert entry.exact_phase == name.startswith("resonance")
            compared.append(name)
    assert ON_SHIPPED in compared
