"""What a rotary module may hold, over the modules of all families."""

import pytest
import torch
from families_record import folders

from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.verify import RotaryState, compare_states, frequency_problems

FINE = [1.0, 0.5, 0.25, 0.25, 0.0]


def state(values):
    return RotaryState(torch.tensor(values), 1.0)


@pytest.mark.parametrize(
    ("feature", "value", "words"),
    [
        (2, float("nan"), "feature 2, nan, is not finite"),
        (1, float("inf"), "feature 1, inf, is not finite"),
        (3, -0.1, "feature 3, -0.1, is negative"),
        (1, 1e-9, "feature 2, 0.25, is larger than the one before it"),
        (0, 0.0, "feature 1, 0.5, is larger than the one before it"),
    ],
)
def test_frequency_problems_name_the_feature(feature, value, words):
    assert frequency_problems(state(FINE)) == []
    values = FINE.copy()
    values[feature] = value
    assert any(words in clause for clause in frequency_problems(state(values)))
    assert compare_states(state(values), state(FINE))


def test_frequency_problems_of_zeros():
    assert frequency_problems(state([0.0] * 4)) == ["all inverse frequencies are zero"]
    assert frequency_problems(state([])) == []


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_frequency_problems_in_no_family(folder):
    """What transformers builds of a published config is never refused."""
    from resonance_vllm.hf.inspection import report_of_checkpoint

    try:
        reports = report_of_checkpoint(str(folder))
    except RopeConfigError:
        return
    has_axes = "mrope_section" in PositionConfig.from_checkpoint(str(folder)).rope
    for report in reports:
        assert frequency_problems(report.state, ordered=not has_axes) == []
