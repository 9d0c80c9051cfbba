"""Rational wavelengths: which ones the rules choose, and what Theorem 1 promises for them."""

import itertools
import math
from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.features import feature_gap
from resonance_vllm.core.spec import ROPE_TYPES, RopeSpec, RopeType
from resonance_vllm.core.wavelengths import COPRIME_BOUND, Resonance, choose_wavelengths
from resonance_vllm.errors import RopeConfigError

RULES = get_args(Resonance.model_fields["wavelengths"].annotation)
OF_PROJECT = [rule for rule in RULES if rule != "integer"]
BASES = st.floats(50.0, 1e7)
DIMS = st.integers(2, 128).map(lambda half: 2 * half)
LENGTHS = st.integers(64, 512)


def plain(base, dim):
    return [2 * math.pi * base ** (2 * j / dim) for j in range(dim // 2)]


def rope(rule, base=10000.0, original=64, rope_type="resonance", **extra):
    return RopeSpec.from_dict(
        {
            "rope_type": rope_type,
            "rope_theta": base,
            "wavelengths": rule,
            "original_max_position_embeddings": original,
            **extra,
        }
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("integer", "6 8 11 15 20 26 35 47 63"),
        ("coprime", "7 8 11 15 19 29 37 47 61"),
        ("prime_period", "31/5 41/5 23/2 29/2 59/3 53/2 37 47 61"),
        ("rational", "44/7 42/5 56/5 15 20 53/2 35 47 63"),
    ],
)
def test_wavelengths_of_the_papers_small_model(rule, expected):
    chosen = choose_wavelengths(rule, plain(10000.0, 64), 64)
    written = [str(period) if turns == 1 else f"{period}/{turns}" for period, turns in chosen]
    assert " ".join(written[:9]) == expected
    if rule != "integer":
        assert chosen[9:] == [(0, 0)] * 23


@given(BASES, DIMS, st.integers(64, 100_000))
@settings(max_examples=25, deadline=None)
def test_rational_wavelengths_are_as_near_as_the_best_continued_fraction(base, dim, original):
    lengths = plain(base, dim)
    for (period, turns), length in zip(
        choose_wavelengths("rational", lengths, original), lengths, strict=True
    ):
        if length >= original:
            assert (period, turns) == (0, 0)
            continue
        best = 1 / Fraction(1 / length).limit_denominator(original)
        assert period <= original
        assert abs(math.log(period / turns / length)) <= abs(math.log(best / length)) + 1e-15


def test_coprime_integers_are_the_best_of_all():
    lengths = plain(10000.0, 64)[:9]
    near = [[n for n in range(2, 65) if max(n / x, x / n) <= COPRIME_BOUND] + [0] for x in lengths]

    def best(feature, chosen):
        if feature == len(lengths):
            return 0.0, ()
        sums = []
        for n in near[feature]:
            if all(math.gcd(n, other) == 1 for other in chosen if other) or n == 0:
                error = math.log(n / lengths[feature] if n else COPRIME_BOUND) ** 2
                rest, others = best(feature + 1, (*chosen, n))
                sums.append((error + rest, (n, *others)))
        return min(sums)

    _, expected = best(0, ())
    assert [n for n, _ in choose_wavelengths("coprime", lengths, 64)] == list(expected)


@pytest.mark.parametrize("rule", OF_PROJECT)
@given(BASES, DIMS, LENGTHS, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_theorem_1_holds_for_every_pre_critical_feature(rule, base, dim, original, multiple):
    spec = rope(rule, base, original)
    rotation = frequencies.formula(spec, dim)
    critical = frequencies.critical_dimension(rotation.wavelengths, original)
    assert bool((rotation.periods[:critical] > 0).all())
    assert int(rotation.periods.max()) <= original
    gaps = feature_gap(spec, dim, original, 1 + multiple)
    assert gaps[:critical].tolist() == [0.0] * critical
    before = torch.tensor(plain(base, dim), dtype=torch.float64)
    slow = rotation.periods == 0
    assert slow.equal(before >= original)
    torch.testing.assert_close(rotation.wavelengths[slow], before[slow], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(BASES, DIMS, LENGTHS)
@settings(max_examples=10, deadline=None)
def test_a_period_apart_table_and_module_are_equal_to_the_bit(rule, dtype, base, dim, original):
    rotation = frequencies.formula(rope(rule, base, original), dim)
    rows = 8 * original
    table = phase.cos_sin_table(rotation, 1.25, rows, dtype=dtype)
    positions = torch.arange(rows)
    turned = phase.angles(positions, rotation)
    module = torch.cat(((turned.cos() * 1.25).to(dtype), (turned.sin() * 1.25).to(dtype)), -1)
    torch.testing.assert_close(table, module, rtol=0, atol=1e-7 if dtype == torch.float32 else 0)
    for feature, period in enumerate(rotation.periods.tolist()):
        if 0 < period < rows:
            for column in (feature, dim // 2 + feature):
                for values in (table[:, column], module[:, column]):
                    assert values[period:].equal(values[:-period])


@pytest.mark.parametrize("rule", RULES)
def test_far_positions_have_the_phase_of_whole_numbers(rule):
    rotation = frequencies.formula(rope(rule, 1e5, 8192), 64)
    far = torch.tensor([10_000_019, 2**30 + 7])
    turned = phase.angles(far, rotation)
    for row, position in zip(turned.tolist(), far.tolist(), strict=True):
        for angle, period, turns in zip(
            row, rotation.periods.tolist(), rotation.turns.tolist(), strict=True
        ):
            if period:
                exact = 2 * math.pi * (turns * position % period) / period
                assert angle == pytest.approx(exact, abs=1e-12)


@given(BASES, DIMS, st.integers(64, 100_000))
@settings(max_examples=25, deadline=None)
def test_prime_periods_are_distinct_and_near_where_there_are_enough(base, dim, original):
    lengths = plain(base, dim)
    chosen = choose_wavelengths("prime_period", lengths, original)
    exact = [(p, q, x) for (p, q), x in zip(chosen, lengths, strict=True) if p]
    assert all(math.gcd(p, q) == 1 and p <= original for p, q, _ in exact)
    # Of two neighbouring integers one is within 1/2x of a wavelength x, and fractions are nearer.
    assert all(abs(math.log(p / q / x)) <= math.log(1.05) + 0.5 / x for p, q, x in exact)
    if original >= 4096:
        primes = [p for p, _, _ in exact]
        assert len(set(primes)) == len(primes)
        assert all(math.gcd(a, b) == 1 for a, b in itertools.combinations(primes, 2))


def test_more_features_than_primes_get_the_nearest_fraction():
    lengths = plain(10000.0, 256)
    chosen = choose_wavelengths("prime_period", lengths, 64)
    near = [turn for turn in chosen if turn[0]]
    assert len(near) == 33
    fallen_back = [
        (p, q, x)
        for (p, q), x in zip(near, lengths, strict=False)
        if p < 3 or any(p % n == 0 for n in range(2, math.isqrt(p) + 1))
    ]
    assert len(fallen_back) >= 15
    for p, q, x in fallen_back:
        nearest = min(
            abs(math.log(period / turns / x))
            for period in range(1, 65)
            for turns in [max(round(period / x), 1)]
        )
        assert abs(math.log(p / q / x)) == pytest.approx(nearest, abs=1e-15)


@pytest.mark.parametrize("rope_type", [t for t in ROPE_TYPES if t.startswith("resonance")])
@pytest.mark.parametrize("rule", RULES)
def test_every_resonance_type_has_the_setting(rope_type, rule):
    example = RopeType.read(rope_type).method.example(16)
    spec = rope(rule, original=4096, rope_type=rope_type, **{**example, "wavelengths": rule})
    written = spec.to_dict()
    assert written.get("wavelengths", "integer") == rule
    assert ("wavelengths" in written) == (rule != "integer")
    assert RopeSpec.from_dict(written) == spec
    rotation = frequencies.formula(spec, 16)
    assert bool((rotation.periods > 0).any())


@pytest.mark.parametrize("rule", OF_PROJECT)
def test_a_length_that_would_fill_the_memory_is_refused(rule):
    with pytest.raises(
        RopeConfigError, match=r"1000000000000 is not allowed with.*up to 16,777,216"
    ):
        frequencies.wavelengths(rope(rule, original=10**12), 16)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"wavelengths": "prime_period"}, "original_max_position_embeddings: missing"),
        ({"wavelengths": "primes"}, "wavelengths: 'primes'.*prime_period"),
        ({"wavelengths": 3}, "wavelengths: 3"),
        ({"rope_type": "default", "wavelengths": "coprime"}, "wavelengths: 'coprime' is not a"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings: 0"),
    ],
)
def test_wrong_settings_of_resonance_are_named(settings, words):
    with pytest.raises(RopeConfigError, match=words):
        RopeSpec.from_dict({"rope_type": "resonance", "rope_theta": 1e4, **settings})


@pytest.mark.hf
@pytest.mark.parametrize("rule", RULES)
def test_transformers_turns_by_them_through_save_and_reload(tiny, tmp_path, rule):
    from transformers import AutoModelForCausalLM

    settings = {"rope_type": "resonance", "rope_theta": 10000.0, "wavelengths": rule}
    settings["original_max_position_embeddings"] = 64
    model = tiny("llama", settings, head_dim=64, max_position_embeddings=64)
    model.save_pretrained(tmp_path)
    rotation = frequencies.formula(RopeSpec.from_dict(settings), 64)
    positions = torch.arange(512)[None]
    for each in (model, AutoModelForCausalLM.from_pretrained(tmp_path)):
        cos, sin = each.model.rotary_emb(torch.zeros(1), positions)
        angles = phase.angles(positions, rotation)
        torch.testing.assert_close(cos, torch.cat((angles, angles), -1).cos().float())
        for feature, period in enumerate(rotation.periods.tolist()[:9]):
            for values in (cos[0, :, feature], sin[0, :, feature]):
                assert values[period:].equal(values[:-period])


@pytest.mark.vllm
@pytest.mark.parametrize("rule", RULES)
def test_vllms_table_turns_by_them(rule):
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm.plugin import register

    register()
    settings = {"rope_type": "resonance_yarn", "rope_theta": 1e4, "factor": 4.0}
    settings |= {"original_max_position_embeddings": 64, "wavelengths": rule}
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        made = rotary_embedding.get_rope(64, 256, True, settings, dtype=torch.float32)
    spec = RopeSpec.from_dict(settings)
    rotation = frequencies.formula(spec, 64)
    expected = phase.cos_sin_table(rotation, spec.method.scale(), 256)
    torch.testing.assert_close(made.cos_sin_cache, expected, atol=1e-6, rtol=0)
    for feature, period in enumerate(rotation.periods.tolist()):
        if 0 < period < 256:
            values = made.cos_sin_cache[:, feature]
            assert values[period:].equal(values[:-period])
