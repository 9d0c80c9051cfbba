"""Frequencies in closed form; `tests/vectors` has those of published configs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resonance_vllm.core import frequencies
from resonance_vllm.core.method import ScaledMethod
from resonance_vllm.core.spec import METHODS, RopeSpec

BASES = st.floats(100.0, 1e7)
DIMS = st.integers(2, 64).map(lambda half: 2 * half)
FACTORS = st.floats(1.0, 64.0)
LENGTHS = st.integers(64, 32768)


def closed(base, dim):
    return [base ** (-2 * j / dim) for j in range(dim // 2)]


def spec(method, *, base=10000.0, factor=8.0, original=4096, resonance=False, **extra):
    given_keys = METHODS[method].example_settings(128)
    if method != "default":
        given_keys |= {"factor": factor, "original_max_position_embeddings": original}
    rope_type = (
        method if not resonance else "resonance" if method == "default" else f"resonance_{method}"
    )
    return RopeSpec.from_dict({"rope_type": rope_type, "rope_theta": base, **given_keys, **extra})


@given(BASES, DIMS.filter(lambda d: d >= 4), FACTORS)
def test_ntk_aware_in_closed_form(base, dim, factor):
    exact = frequencies.closed_form_inv_freq(spec("ntk_aware", base=base, factor=factor), dim)
    assert exact[0] == 1.0
    slowest = closed(base, dim)[-1] / factor
    assert float(exact[-1]) == pytest.approx(slowest, rel=1e-9)
    paper = spec("ntk_aware", base=base, factor=factor, base_scaling="paper")
    expected = closed(base * factor, dim)
    assert frequencies.closed_form_inv_freq(paper, dim).tolist() == pytest.approx(
        expected, rel=1e-9
    )


@given(BASES, DIMS.filter(lambda d: d >= 4), st.floats(1.0, 8.0), st.integers(1, 200000))
def test_dynamic_is_ntk_aware_at_the_current_length(base, dim, factor, length):
    scale = max(factor * length / 4096 - (factor - 1), 1.0)
    dynamic = frequencies.closed_form_inv_freq(
        spec("dynamic", base=base, factor=factor), dim, length
    )
    static = frequencies.closed_form_inv_freq(spec("ntk_aware", base=base, factor=scale), dim)
    torch.testing.assert_close(dynamic, static, rtol=1e-9, atol=0)


def test_yarn_over_wavelengths_is_the_papers_formula():
    ours = spec("yarn", ramp="wavelength")
    found = frequencies.closed_form_rotation(ours, 128).wavelengths
    for j in range(64):
        plain = 2 * math.pi * 10000 ** (2 * j / 128)
        gamma = min(1.0, max(0.0, (4096 / plain - 1) / (32 - 1)))
        expected = (1 - gamma) * 8 * plain + gamma * plain
        assert float(found[j]) == pytest.approx(expected, rel=1e-12)
    by_dimension = frequencies.closed_form_rotation(spec("yarn"), 128).wavelengths
    assert not torch.allclose(found, by_dimension, rtol=1e-2)


SCALED = [method for method in METHODS.values() if issubclass(method, ScaledMethod)]
# A method at factor 1, and with a formula of another paper.
IDENTITIES = [(method.name, {}) for method in SCALED]
IDENTITIES += [("yarn", {"ramp": "wavelength"}), ("ntk_aware", {"base_scaling": "paper"})]


@pytest.mark.parametrize(("method", "extra"), IDENTITIES)
@given(BASES, DIMS.filter(lambda d: d >= 4), LENGTHS)
def test_factor_1_is_the_identity(method, extra, base, dim, original):
    one = spec(method, base=base, factor=1.0, original=original, **extra)
    expected = torch.tensor(closed(base, dim), dtype=torch.float64)
    torch.testing.assert_close(
        frequencies.closed_form_inv_freq(one, dim), expected, rtol=1e-12, atol=0
    )
    assert one.method.compute_attention_factor() == 1.0


@pytest.mark.parametrize("method", ["default", "linear", "ntk_aware", "yarn", "llama3"])
@pytest.mark.parametrize("resonance", [False, True])
def test_fastest_and_slowest_feature(method, resonance):
    found = frequencies.closed_form_inv_freq(spec(method, resonance=resonance), 128)
    factor = {"default": (1, 1), "linear": (8, 8)}.get(method, (1, 8))
    plain = closed(10000.0, 128)
    expected = [plain[0] / factor[0], plain[-1] / factor[1]]
    if resonance:
        expected = [2 * math.pi / round(2 * math.pi / e) for e in expected]
    assert [float(found[0]), float(found[-1])] == pytest.approx(expected, rel=1e-12)
    assert bool((found[1:] <= found[:-1]).all())


def test_critical_dimension_of_the_papers_example():
    lengths = frequencies.closed_form_rotation(spec("default"), 64).wavelengths
    assert frequencies.critical_dimension(lengths, 64) == 9
    assert frequencies.critical_dimension(lengths, 10**9) == 32


def test_longrope_divides_by_another_list_beyond_its_length():
    ours = spec("longrope", short_factor=(1.0,) * 2, long_factor=(4.0,) * 2)
    plain = pytest.approx(closed(10000.0, 4))
    for length, divisor in ((None, 1.0), (4096, 1.0), (4097, 4.0)):
        assert (divisor * frequencies.closed_form_inv_freq(ours, 4, length)).tolist() == plain
    assert ours.method.switch_length == 4096
    one_list = spec("longrope", short_factor=(2.0,) * 2, long_factor=(2.0,) * 2)
    assert one_list.method.switch_length is None
    assert ours.method.compute_attention_factor() == pytest.approx(
        math.sqrt(1 + 3 / 12)
    )  # 8 and 4096 are powers of 2


def test_longrope_refuses_a_list_of_the_wrong_length():
    ours = spec("longrope", short_factor=(1.0,) * 3, long_factor=(1.0,) * 3)
    with pytest.raises(ValueError, match="3 numbers given; allowed: 64"):
        frequencies.closed_form_inv_freq(ours, 128)
