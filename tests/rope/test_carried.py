"""What a method makes of the frequencies that a library computes for a module."""

import math

import pytest
import torch

from resonance_vllm.core import frequencies, phase
from resonance_vllm.core.spec import BASE_TYPES, STOCK_TYPES, RopeSpec

DIM = 32


def spec_of(name, *, resonance=False, **extra):
    method, _ = BASE_TYPES[name]
    known = {"original_max_position_embeddings": 4096}.items()
    given = {key: value for key, value in known if key in method.model_fields}
    given |= {**method.example(DIM), **extra}
    rope_type = name if not resonance else "resonance" + ("" if name == "default" else f"_{name}")
    return RopeSpec.from_dict({"rope_type": rope_type, "rope_theta": 10000.0, **given})


@pytest.mark.parametrize("name", sorted(BASE_TYPES))
@pytest.mark.parametrize("resonance", [False, True])
def test_rounding_of_a_library_is_refined_to_the_formula(name, resonance):
    spec = spec_of(name, resonance=resonance)
    exact = frequencies.inv_freq(spec_of(name), DIM)
    library = exact if name in STOCK_TYPES else frequencies.inv_freq(spec_of("default"), DIM)
    found = frequencies.base_frequencies(spec, (library * (1 + 1e-6)).to(torch.float32))
    assert found.equal(exact)
    assert frequencies.rotation(spec, found).inv_freq.equal(frequencies.inv_freq(spec, DIM))


@pytest.mark.parametrize("name", sorted(BASE_TYPES))
def test_what_a_family_computes_otherwise_is_kept(name):
    of_family = torch.tensor([0.7 ** (j + 1) for j in range(DIM // 2)], dtype=torch.float32)
    of_family[-4:] = 0
    found = frequencies.base_frequencies(spec_of(name), of_family)
    assert found.dtype == torch.float64
    assert found[-4:].tolist() == [0.0] * 4
    if name in STOCK_TYPES:
        assert found.equal(of_family.double())
    else:
        ratio = frequencies.inv_freq(spec_of(name), DIM) / frequencies.inv_freq(
            spec_of("default"), DIM
        )
        torch.testing.assert_close(found, of_family.double() * ratio, rtol=1e-15, atol=0)


def test_a_method_that_follows_the_length_is_refined_at_that_length():
    spec = spec_of("dynamic", original_max_position_embeddings=4096)
    library = frequencies.inv_freq(spec, DIM, 10000)
    rounded = library.to(torch.float32)
    assert frequencies.base_frequencies(spec, rounded).equal(rounded.double())
    assert frequencies.base_frequencies(spec, rounded, 10000).equal(library)


def test_a_feature_that_stands_still_stays_there_under_resonance():
    base = torch.tensor([1.0, 0.1, 0.0], dtype=torch.float64)
    for rule in ("integer", "prime_period"):
        spec = spec_of(
            "default", resonance=True, wavelengths=rule, original_max_position_embeddings=256
        )
        rotation = frequencies.rotation(spec, base)
        assert rotation.inv_freq[2] == 0
        assert rotation.periods[2] == 0
        assert math.isinf(rotation.wavelengths[2])
        assert phase.angles(torch.arange(9), rotation)[:, 2].tolist() == [0.0] * 9
        table = phase.cos_sin_table(rotation, 1.0, 300)
        assert table[:, 2].tolist() == [1.0] * 300
        assert table[:, 5].tolist() == [0.0] * 300


def test_rounding_refuses_float32():
    with pytest.raises(TypeError, match="float64"):
        frequencies.rotation(spec_of("yarn", resonance=True), torch.ones(2))


@pytest.mark.parametrize("name", ["default", "yarn"])
@pytest.mark.parametrize("rule", [None, "integer", "prime_period"])
def test_angles_compile_without_a_break(name, rule):
    extra = {} if rule is None else {"wavelengths": rule, "original_max_position_embeddings": 256}
    spec = spec_of(name, resonance=rule is not None, **extra)
    rotation = frequencies.formula(spec, DIM)

    def turned(positions):
        return phase.angles(positions, rotation).cos()

    positions = torch.arange(1000, 1100)[None]
    compiled = torch.compile(turned, fullgraph=True, backend="aot_eager")
    assert compiled(positions).equal(turned(positions))
