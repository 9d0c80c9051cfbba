"""Embeddings that the plugin builds, without an engine, against independent references."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from resonance_vllm.core.phase import cos_sin
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec, RopeType

pytestmark = pytest.mark.vllm

HEAD = 64
THETA = 100_000.0
ORIGINAL = 256
COMMON = {"rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
FACTORS = [1.0 + j / 16 for j in range(HEAD // 2)]
TYPES: dict[str, dict[str, Any]] = {
    "resonance": {"rope_theta": THETA},
    "resonance_linear": COMMON,
    "ntk_aware": COMMON,
    "resonance_ntk_aware": COMMON,
    "resonance_yarn": COMMON,
    "yarn_wavelength": COMMON,
    "resonance_yarn_wavelength": COMMON,
    "resonance_llama3": {**COMMON, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "resonance_longrope": {
        "rope_theta": THETA,
        "original_max_position_embeddings": ORIGINAL,
        "factor": 4.0,
        "short_factor": FACTORS,
        "long_factor": [2 * factor for factor in FACTORS],
    },
}


@pytest.fixture(autouse=True)
def _plugin() -> Iterator[None]:
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from resonance_vllm.vllm_plugin import register

    register()
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        yield


@pytest.mark.parametrize("rope_type", OWN_TYPES)
def test_every_type_of_ours_has_a_table_of_its_values(rope_type: str) -> None:
    from vllm.model_executor.layers import rotary_embedding

    method = RopeType.read(rope_type).method
    rope = {"rope_type": rope_type, "rope_theta": THETA, **method.example(HEAD)}
    if "original_max_position_embeddings" in method.model_fields:
        rope |= {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    made = rotary_embedding.get_rope(HEAD, ORIGINAL, True, rope, dtype=torch.float32)
    assert isinstance(made, getattr(rotary_embedding, method.vllm_class))
    spec = RopeSpec.from_dict(rope)
    rows = len(made.cos_sin_cache)
    assert rows >= spec.method.length_limit(ORIGINAL)
    cos, sin = cos_sin(spec, HEAD, torch.arange(rows), torch.float32, seq_len=rows)
    torch.testing.assert_close(made.cos_sin_cache, torch.cat((cos, sin), -1), atol=2e-3, rtol=0)


def get_rope(rope_type: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": rope_type, **TYPES.get(rope_type, COMMON), **changes}
    return rotary_embedding.get_rope(HEAD, max_position=ORIGINAL, rope_parameters=rope, dtype=dtype)


def closed_form(rope_type: str) -> tuple[list[float], float]:
    """Frequencies and attention factor written out feature by feature, by another route."""
    base = rope_type.removeprefix("resonance_") if rope_type != "resonance" else "default"
    s, b, d, length = 4.0, THETA, HEAD, ORIGINAL
    result = []
    for j in range(d // 2):
        plain = b ** (-2 * j / d)
        wave = 2 * math.pi / plain
        if base == "linear":
            wave *= s
        elif base == "ntk_aware":
            wave = 2 * math.pi * (b * s ** (d / (d - 2))) ** (2 * j / d)
        elif base == "yarn_wavelength":
            gamma = min(max((length / wave - 1) / 31, 0.0), 1.0)
            wave = (1 - gamma) * s * wave + gamma * wave
        elif base == "yarn":
            first, last = (
                d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(b))
                for turns in (32, 1)
            )
            low, high = max(math.floor(first), 0), min(math.ceil(last), d - 1)
            mix = min(max((j - low) / (high - low), 0.0), 1.0)
            wave = 2 * math.pi / (mix * plain / s + (1 - mix) * plain)
        elif base == "llama3":
            smooth = min(max((length / wave - 1) / 3, 0.0), 1.0)
            wave = 2 * math.pi / ((1 - smooth) * plain / s + smooth * plain)
        elif base == "longrope":  # the served length is past the original one
            wave *= 2 * FACTORS[j]
        result.append(float(round(wave)) if rope_type.startswith("resonance") else wave)
    factor = {
        "yarn": 0.1 * math.log(s) + 1,
        "yarn_wavelength": 0.1 * math.log(s) + 1,
        "longrope": math.sqrt(1 + math.log(s) / math.log(length)),
    }.get(base, 1.0)
    return [2 * math.pi / wave for wave in result], factor


@pytest.mark.parametrize("rope_type", TYPES)
def test_table_holds_the_closed_form(rope_type: str) -> None:
    table = get_rope(rope_type).cos_sin_cache
    frequencies, factor = closed_form(rope_type)
    rows = ORIGINAL if rope_type == "resonance" else 4 * ORIGINAL
    assert table.shape == (rows, HEAD)
    for n in (0, 1, 100, ORIGINAL - 1, rows - 1):
        expected = [factor * math.cos(n * w) for w in frequencies]
        expected += [factor * math.sin(n * w) for w in frequencies]
        torch.testing.assert_close(table[n], torch.tensor(expected), atol=2e-4, rtol=0)


@pytest.mark.parametrize("rope_type", [name for name in TYPES if name.startswith("resonance")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_one_wavelength_apart_are_equal_bit_for_bit(
    rope_type: str, dtype: torch.dtype
) -> None:
    table = get_rope(rope_type, dtype).cos_sin_cache
    assert table.dtype is dtype
    for j, w in enumerate(closed_form(rope_type)[0]):
        period = min(round(2 * math.pi / w), len(table))
        for column in (j, HEAD // 2 + j):
            values = table[:, column]
            assert torch.equal(values[period:], values[: len(values) - period])


def test_resonance_yarn_is_vllms_yarn_class_with_another_table() -> None:
    from vllm.model_executor.layers.rotary_embedding import YaRNScalingRotaryEmbedding

    from resonance_vllm.vllm_rotary import ResonanceYaRNRotaryEmbedding

    ours = get_rope("resonance_yarn")
    assert type(ours) is ResonanceYaRNRotaryEmbedding
    assert isinstance(ours, YaRNScalingRotaryEmbedding)
    stock = get_rope("yarn")
    assert type(stock) is YaRNScalingRotaryEmbedding
    assert stock.cos_sin_cache.shape == ours.cos_sin_cache.shape
    assert not torch.allclose(stock.cos_sin_cache, ours.cos_sin_cache, atol=1e-2)
    assert type(ours).forward_cpu is type(stock).forward_cpu
    assert type(ours).forward_native is type(stock).forward_native


def test_table_of_the_plain_methods_is_vllms_own() -> None:
    """At float32 the non-resonance tables of ours equal vLLM's, where vLLM has the method."""
    from resonance_vllm.vllm_rotary import build

    for rope_type in ("linear", "yarn"):
        stock = get_rope(rope_type)
        ours = build(
            RopeSpec.from_dict({"rope_type": rope_type, **COMMON}),
            head_size=HEAD,
            rotary_dim=HEAD,
            max_position=ORIGINAL,
            is_neox_style=True,
            dtype=torch.float32,
            served_length=None,
        )
        torch.testing.assert_close(ours.cos_sin_cache, stock.cos_sin_cache, atol=2e-4, rtol=0)


@pytest.mark.parametrize("neox", [True, False])
def test_rotation_is_the_definition(neox: bool) -> None:
    """vLLM's kernel with our table turns pairs by position * frequency."""
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": "resonance_yarn", **COMMON}
    module = rotary_embedding.get_rope(HEAD, ORIGINAL, neox, rope, dtype=torch.float32)
    frequencies, factor = closed_form("resonance_yarn")
    torch.manual_seed(0)
    positions = torch.tensor([0, 3, 500, 1023])
    query, key = torch.randn(4, 2 * HEAD), torch.randn(4, HEAD)
    expected = query.clone().view(4, 2, HEAD)
    for t, n in enumerate(positions.tolist()):
        for j, w in enumerate(frequencies):
            a, b = (j, j + HEAD // 2) if neox else (2 * j, 2 * j + 1)
            x, y = query.view(4, 2, HEAD)[t, :, a], query.view(4, 2, HEAD)[t, :, b]
            expected[t, :, a] = factor * (x * math.cos(n * w) - y * math.sin(n * w))
            expected[t, :, b] = factor * (y * math.cos(n * w) + x * math.sin(n * w))
    for forward in (module.forward_native, module.forward_cpu):
        rotated, _ = forward(positions, query.clone(), key.clone())
        torch.testing.assert_close(rotated.view(4, 2, HEAD), expected, atol=1e-4, rtol=0)


def test_layers_share_one_table() -> None:
    assert get_rope("resonance_yarn") is get_rope("resonance_yarn")
    assert get_rope("resonance_yarn") is not get_rope("resonance_yarn", beta_fast=16.0)
    assert get_rope("resonance_yarn") is not get_rope("resonance_yarn", torch.bfloat16)


def test_partial_rotation_keeps_the_rest_of_the_head() -> None:
    module = get_rope("resonance_yarn", partial_rotary_factor=0.5)
    assert module.cos_sin_cache.shape == (4 * ORIGINAL, HEAD // 2)
    query, key = torch.ones(2, HEAD), torch.ones(2, HEAD)
    rotated, _ = module.forward_native(torch.tensor([5, 900]), query.clone(), key.clone())
    assert torch.equal(rotated[:, HEAD // 2 :], query[:, HEAD // 2 :])
    assert not torch.allclose(rotated[:, : HEAD // 2], query[:, : HEAD // 2])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": None}, "rope_theta: missing"),
        ({"factor": 0.5}, "factor: 0.5 is not allowed"),
        ({"beta_quick": 3}, "beta_quick: 3 is not a setting.*beta_fast"),
        ({"original_max_position_embeddings": None}, "original_max_position_embeddings: missing"),
        ({"rope_type": "resonance_yarm"}, "unknown type 'resonance_yarm'.*resonance_yarn"),
        ({"rope_type": "resonance_ntk"}, "did you mean 'ntk_aware'"),
        ({"mrope_section": [8, 12, 12]}, "mrope_section"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": "resonance_yarn", **COMMON, **changes}
    with pytest.raises(ValueError, match=says):
        rotary_embedding.get_rope(HEAD, ORIGINAL, True, rope)


def test_dual_chunk_attention_is_refused() -> None:
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": "resonance_yarn", **COMMON}
    with pytest.raises(ValueError, match="dual_chunk_attention_config"):
        rotary_embedding.get_rope(
            HEAD, ORIGINAL, True, rope, dual_chunk_attention_config={"chunk_size": 64}
        )
