"""Resonance: integer wavelengths, exact phase, and the feature gap that Theorem 1 promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resonance_vllm.core import frequencies
from resonance_vllm.core.features import angular_gap, feature_gap
from resonance_vllm.core.methods import Yarn
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.core.spec import RopeSpec

BASES = st.floats(50.0, 1e7)
DIMS = st.integers(2, 64).map(lambda half: 2 * half)
FACTORS = st.floats(1.0, 64.0)


def resonance_yarn(base=10000.0, factor=8.0, original=4096, *, resonance=True):
    yarn = Yarn(rope_theta=base, factor=factor, original_max_position_embeddings=original)
    return RopeSpec(yarn, resonance)


def table(spec, dim, rows, dtype=torch.float32):
    rotation = frequencies.closed_form_rotation(spec, dim)
    return cos_sin_table(rotation, spec.method.compute_attention_factor(), rows, dtype=dtype)


def cache_gap(cache, original):
    """Distance of the stored pairs to the nearest trained one: 0 only if it is bitwise the same.

    `cache` holds cos of every feature, then sin; rows below `original` are training positions.
    """
    cos, sin = cache.to(torch.float64).chunk(2, dim=-1)
    return torch.stack([pair_gap(cos[:, j], sin[:, j], original) for j in range(cos.shape[1])])


def pair_gap(cos, sin, original):
    pairs = torch.stack([cos, sin], dim=-1)
    trained, tested = pairs[:original].unique(dim=0), pairs[original:].unique(dim=0)
    if len(tested) == 0:
        return cos.new_zeros(())
    order = torch.atan2(trained[:, 1], trained[:, 0]).argsort()
    trained = trained[order]
    angles = torch.atan2(trained[:, 1], trained[:, 0])
    found = torch.searchsorted(angles, torch.atan2(tested[:, 1], tested[:, 0]))
    count = len(trained)
    # Neighbours on both sides; rounding can give two stored pairs the same angle, hence three.
    candidates = trained[torch.stack([found - 1, found, found + 1]) % count]
    distances = (candidates - tested).pow(2).sum(-1).sqrt()
    return distances.min(dim=0).values.max()


@given(BASES, DIMS, FACTORS)
def test_resonance_wavelengths_are_integers_and_idempotent(base, dim, factor):
    spec = resonance_yarn(base, factor)
    lengths = frequencies.closed_form_rotation(spec, dim).wavelengths
    assert lengths.equal(lengths.round())
    frequency = frequencies.closed_form_inv_freq(spec, dim)
    assert frequencies.rotation_from_base(spec, frequency).wavelengths.equal(lengths)
    plain = frequencies.closed_form_rotation(
        resonance_yarn(base, factor, resonance=False), dim
    ).wavelengths
    assert bool(((lengths - plain).abs() <= 0.5 + 1e-9 * plain).all())


@given(BASES, DIMS, FACTORS, st.sampled_from([torch.float32, torch.bfloat16]), st.data())
@settings(max_examples=25, deadline=None)
def test_resonance_gap_before_critical_dimension_is_zero(base, dim, factor, dtype, data):
    original = data.draw(st.integers(16, 512))
    spec = resonance_yarn(base, factor, original)
    critical = frequencies.critical_dimension(
        frequencies.closed_form_rotation(spec, dim).wavelengths, original
    )
    cache = table(spec, dim, 4 * original, dtype)
    assert cache_gap(cache, original)[:critical].tolist() == [0.0] * critical


@given(BASES, DIMS, FACTORS, st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=4, deadline=None)
def test_resonance_angles_repeat_bitwise_to_a_million(base, dim, factor, dtype):
    rows = 2**20
    spec = resonance_yarn(base, factor)
    lengths = frequencies.closed_form_rotation(spec, dim).periods
    features = sorted({0, dim // 4, dim // 2 - 1})
    cache = table(spec, dim, rows, dtype)
    positions = torch.arange(rows)
    for feature in features:
        first = positions % lengths[feature]
        for column in (cache[:, feature], cache[:, dim // 2 + feature]):
            assert column.equal(column[first])


def test_resonance_gap_without_exact_phase_is_not_zero():
    spec = resonance_yarn()
    inv_freq = frequencies.closed_form_inv_freq(spec, 128).to(torch.float32)
    angles = torch.arange(131072)[:, None] * inv_freq
    gaps = cache_gap(torch.cat((angles.cos(), angles.sin()), -1)[:, [0, 1, 64, 65]], 4096)
    assert float(gaps.max()) > 1e-4


@pytest.mark.parametrize("resonance", [False, True])
def test_gap_equals_its_definition_worked_out_by_hand(resonance):
    spec = resonance_yarn(100.0, 2.0, 16, resonance=resonance)
    theta = frequencies.closed_form_inv_freq(spec, 8).tolist()
    expected = [
        max(min(2 * abs(math.sin((m - n) * t / 2)) for m in range(16)) for n in range(16, 48))
        for t in theta
    ]
    found = feature_gap(spec, 8, 16, 3).tolist()
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(0, 6.28), min_size=1), st.lists(st.floats(0, 6.28), min_size=1))
def test_gap_of_angles_is_circular(trained, tested):
    expected = max(min(2 * abs(math.sin((a - b) / 2)) for a in trained) for b in tested)
    as_tensor = [torch.tensor(values, dtype=torch.float64) for values in (trained, tested)]
    assert float(angular_gap(*as_tensor)) == pytest.approx(expected, abs=1e-9)
