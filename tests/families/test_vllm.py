"""Every family in vLLM: its modules rotate like those of transformers, or it is refused with a reason.

All models are built in one process, without weights. The frequencies of every family under seven
methods are frozen (tests/frozen); engines that run families are in `tests/vllm`.
"""

import functools

import pytest
from families_record import RIGHT, folders, said, settle
from vllm_modules import looked_at

from resonance_vllm.checkpoint.overrides import vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.checkpoint.rope_dict import is_windowed
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.verify import RotaryReport, compare_states

SERVED, HOUR = 1024, 3600
pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True), pytest.mark.timeout(HOUR)]
RUNS = [f for f in folders() if said("vllm", f) == said("transformers", f) == RIGHT]


def resonance(folder):
    """Resonance on what a family ships, and its config."""
    model = PositionConfig.from_checkpoint(str(folder))
    return model.complete({"rope_type": "resonance"}), model


@functools.cache
def answers():
    """What vLLM holds for every family unmodified, and with Resonance; or a reason."""
    jobs, refused = {}, {}
    for folder in folders():
        jobs[folder, False] = {"model": str(folder)}
        try:
            overrides = vllm_hf_overrides(*resonance(folder), SERVED)
        except RopeConfigError as error:
            refused[folder, True] = {"refused": str(error)}
        else:
            given = {"hf_overrides": overrides, "max_model_len": SERVED}
            jobs[folder, True] = {"model": str(folder), **given}
    return refused | dict(zip(jobs, looked_at(list(jobs.values()), HOUR), strict=True))


def test_report_of_family_is_right_or_refused(family):
    shipped, asked = (answers()[family, own] for own in (False, True))
    settle("vllm", family, shipped.get("refused", asked.get("refused")))


@pytest.mark.parametrize("family", RUNS, ids=lambda folder: folder.name)
def test_reports_of_both_libraries_agree(family):
    from resonance_vllm.hf.inspection import report_of_checkpoint

    reports = report_of_checkpoint(str(family), resonance(family)[0], SERVED)
    reference = next(one for one in reports if not is_windowed(one.layer_type))
    held = [RotaryReport(**one) for one in answers()[family, True]["held"]]
    for entry in [one for one in held if not is_windowed(one.layer_type)] or held:
        assert not compare_states(entry.state, reference.state, close=1e-5)
        assert entry.exact_phase
