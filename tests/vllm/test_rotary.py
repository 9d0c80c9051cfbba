"""Embeddings that the plugin builds, without an engine, against independent references."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from naive_maps import MOVING

from resonance_vllm.core.phase import cos_sin
from resonance_vllm.core.spec import OWN_TYPES, STOCK_TYPES, RopeSpec, RopeType

pytestmark = pytest.mark.vllm

HEAD = 64
THETA = 100_000.0
ORIGINAL = 256
SERVED = 4 * ORIGINAL
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

    from resonance_vllm.vllm.plugin import register

    register()
    engine: Any = VllmConfig(device_config=DeviceConfig(device="cpu"))
    engine.model_config = SimpleNamespace(max_model_len=SERVED)
    with set_current_vllm_config(engine):
        yield


def table_of(module: Any) -> torch.Tensor:
    """Cos and sin by position; LongRoPE keeps those of long sequences behind the others."""
    from resonance_vllm.vllm import rotary as vllm_rotary

    _, table = vllm_rotary.table_of(module)
    return table[len(table) - module.resonance.rows :]


@pytest.mark.parametrize("rope_type", [t for t in OWN_TYPES if t not in MOVING])
def test_every_type_of_ours_has_a_table_of_its_values(rope_type: str) -> None:
    from vllm.model_executor.layers import rotary_embedding

    kind = RopeType.read(rope_type)
    rope = {"rope_type": rope_type, "rope_theta": THETA, **kind.method.example(HEAD)}
    if "original_max_position_embeddings" in kind.method.model_fields:
        rope |= {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    made = rotary_embedding.get_rope(HEAD, ORIGINAL, True, rope, dtype=torch.float32)
    spec = RopeSpec.from_dict(rope)
    table = table_of(made)
    assert len(table) >= max(SERVED, spec.method.length_limit(ORIGINAL))
    cos, sin = cos_sin(spec, HEAD, torch.arange(len(table)), torch.float32, seq_len=SERVED)
    torch.testing.assert_close(table, torch.cat((cos, sin), -1), atol=2e-3, rtol=0)


@pytest.mark.parametrize("rope_type", sorted(STOCK_TYPES - {"dynamic"}))
def test_the_class_is_the_one_that_vllm_builds_for_the_base_type(rope_type: str) -> None:
    from vllm.model_executor.layers import rotary_embedding

    method = RopeType.read(rope_type).method
    keys = {"rope_theta": THETA, **method.example(HEAD)}
    if "original_max_position_embeddings" in method.model_fields:
        keys |= {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    own = "resonance" if rope_type == "default" else f"resonance_{rope_type}"
    stock, ours = (
        rotary_embedding.get_rope(HEAD, ORIGINAL, True, {"rope_type": name, **keys})
        for name in (rope_type, own)
    )
    assert type(stock) in type(ours).__mro__


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
    table = table_of(get_rope(rope_type))
    frequencies, factor = closed_form(rope_type)
    assert table.shape == (SERVED, HEAD)
    for n in (0, 1, 100, ORIGINAL - 1, SERVED - 1):
        expected = [factor * math.cos(n * w) for w in frequencies]
        expected += [factor * math.sin(n * w) for w in frequencies]
        torch.testing.assert_close(table[n], torch.tensor(expected), atol=2e-4, rtol=0)


@pytest.mark.parametrize("rope_type", [name for name in TYPES if name.startswith("resonance")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_one_wavelength_apart_are_equal_bit_for_bit(
    rope_type: str, dtype: torch.dtype
) -> None:
    table = table_of(get_rope(rope_type, dtype))
    assert table.dtype is dtype
    for j, w in enumerate(closed_form(rope_type)[0]):
        period = min(round(2 * math.pi / w), len(table))
        for column in (j, HEAD // 2 + j):
            values = table[:, column]
            assert torch.equal(values[period:], values[: len(values) - period])


def test_resonance_yarn_is_vllms_yarn_class_with_another_table() -> None:
    from vllm.model_executor.layers.rotary_embedding import YaRNScalingRotaryEmbedding

    from resonance_vllm.vllm.rotary import ResonanceYaRNRotaryEmbedding

    ours = get_rope("resonance_yarn")
    assert type(ours) is ResonanceYaRNRotaryEmbedding
    assert isinstance(ours, YaRNScalingRotaryEmbedding)
    stock = get_rope("yarn")
    assert type(stock) is YaRNScalingRotaryEmbedding
    assert stock.cos_sin_cache.shape == ours.cos_sin_cache.shape
    assert not torch.allclose(stock.cos_sin_cache, ours.cos_sin_cache, atol=1e-2)
    assert type(ours).forward_cpu is type(stock).forward_cpu
    assert type(ours).forward_native is type(stock).forward_native


@pytest.mark.parametrize("rope_type", ["linear", "yarn"])
def test_without_resonance_the_table_is_vllms_own(rope_type: str) -> None:
    """Where vLLM has the method; ours is asked for by the base that carries it."""
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm.request import tagged_stock

    stock = get_rope(rope_type)
    rope = {"rope_type": rope_type, **COMMON}
    carrying = tagged_stock(rope, RopeSpec.from_dict(rope), ORIGINAL)
    ours = rotary_embedding.get_rope(HEAD, ORIGINAL, True, carrying, dtype=torch.float32)
    assert ours is not stock
    torch.testing.assert_close(ours.cos_sin_cache, stock.cos_sin_cache, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_type": "default"}, "RotaryEmbedding of type 'default' in vLLM turns by"),
        ({"factor": 8.0}, "frequencies differ.*attention factor"),
        ({"attention_factor": 2.0}, "the attention factor is 2, not 1.13863"),
    ],
)
def test_a_model_file_that_builds_something_else_is_noticed(
    changes: dict[str, Any], says: str
) -> None:
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm import rotary as vllm_rotary
    from resonance_vllm.vllm.request import tagged_stock

    spec = RopeSpec.from_dict({"rope_type": "resonance_yarn", **COMMON})
    rope = {**tagged_stock({}, spec, ORIGINAL), **changes}
    call = {"head_size": HEAD, "max_position": ORIGINAL, "rope_parameters": rope}
    original = rotary_embedding.get_rope.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=says):
        vllm_rotary.build(original, {**call, "dtype": torch.float32}, SERVED)


def test_a_long_table_of_vllm_is_never_computed() -> None:
    """Only its first rows are looked at; ours has as many as that would have."""
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm import rotary as vllm_rotary

    seen = []
    stock = rotary_embedding.YaRNScalingRotaryEmbedding
    real = stock._compute_cos_sin_cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stock,
            "_compute_cos_sin_cache",
            lambda self: seen.append(len(real(self))) or real(self),
        )
        made = get_rope("resonance_yarn", factor=64.0)
    assert max(seen) == vllm_rotary.ROWS_FOR_A_LOOK
    assert len(made.cos_sin_cache) == 64 * ORIGINAL


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
        ({"original_max_position_embeddings": None}, "original_max_position_embeddings: missing"),
        ({"rope_type": "resonance_yarm"}, "unknown type 'resonance_yarm'.*resonance_yarn"),
        ({"rope_type": "resonance_ntk"}, "did you mean 'ntk_aware'"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": "resonance_yarn", **COMMON, **changes}
    with pytest.raises(ValueError, match=says):
        rotary_embedding.get_rope(HEAD, ORIGINAL, True, rope)


def test_what_belongs_to_the_model_stays_in_the_dictionary() -> None:
    from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding

    made = get_rope("resonance_yarn", mrope_section=[8, 12, 12])
    assert type(made) is MRotaryEmbedding
    assert len(made.cos_sin_cache) == 4 * 4 * ORIGINAL  # video positions, as vLLM keeps them
    plain = get_rope("resonance_yarn")
    assert torch.equal(made.cos_sin_cache[:SERVED], plain.cos_sin_cache)


@pytest.mark.parametrize("rope_type", TYPES)
def test_positions_of_several_axes_turn_the_features_of_their_axis(rope_type: str) -> None:
    """vLLM has a module for them under `default` and `yarn` alone."""
    sections = [8, 12, 12]
    made = get_rope(rope_type, mrope_section=sections)
    plain = get_rope(rope_type)
    one_row = table_of(plain)
    axes = torch.stack([torch.arange(5), torch.arange(5) * 2, torch.arange(5) * 3])
    query = torch.randn(5, HEAD, generator=torch.Generator().manual_seed(0))
    found, _ = made.forward_native(axes, query.clone(), query.clone())
    rows = one_row[axes]  # [axes, tokens, cos and sin]
    cos, sin = rows.chunk(2, dim=-1)
    of_axis = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    cos, sin = (each[of_axis, :, torch.arange(HEAD // 2)].T for each in (cos, sin))
    a, b = query.chunk(2, dim=-1)
    wanted = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_vllms_own_yarn_on_several_axes_takes_four_times_the_trained_length() -> None:
    """docs/reports/vllm.md has the numbers. Our types take the length itself; vLLM's is refused."""
    from resonance_vllm.verify import differences
    from resonance_vllm.vllm.rotary import held_turns

    keys = {"rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    several = {"mrope_section": [16, 24, 24]}
    made = {"head_size": 128, "max_position": 32768, "dtype": torch.float32}
    from vllm.model_executor.layers import rotary_embedding

    stock, one_axis = (
        held_turns(rotary_embedding.get_rope(**made, rope_parameters={"rope_type": "yarn", **each}))
        for each in ({**keys, **several}, keys)
    )
    method = RopeSpec.from_dict({"rope_type": "yarn", **keys}).method
    assert not differences(one_axis, method)
    longer = {**keys, "original_max_position_embeddings": 4 * 32768}
    assert not differences(stock, RopeSpec.from_dict({"rope_type": "yarn", **longer}).method)
    assert differences(stock, method) == ["23 of 64 frequencies differ"]
    assert float((stock[0] / one_axis[0]).max()) == pytest.approx(2.235, abs=1e-3)


def test_dual_chunk_attention_is_refused() -> None:
    from vllm.model_executor.layers import rotary_embedding

    rope = {"rope_type": "resonance_yarn", **COMMON}
    with pytest.raises(ValueError, match="dual_chunk_attention_config"):
        rotary_embedding.get_rope(
            HEAD, ORIGINAL, True, rope, dual_chunk_attention_config={"chunk_size": 64}
        )


def test_layers_with_a_rotation_of_their_own_have_a_row_for_every_position() -> None:
    """vLLM makes their table as long as the config, which holds the trained length."""
    from resonance_vllm.vllm.request import shown_as_stock

    sliding = {"rope_type": "default", "rope_theta": 10000.0}
    rope = {"sliding_attention": sliding, "full_attention": {"rope_type": "ntk_aware", **COMMON}}
    config = SimpleNamespace(rope_parameters=rope, max_position_embeddings=ORIGINAL)
    with shown_as_stock(config, SERVED):
        assert config.max_position_embeddings == SERVED
        assert config.rope_parameters["sliding_attention"] == sliding
        assert config.rope_parameters["full_attention"]["rope_type"] == "default"
    assert config.max_position_embeddings == ORIGINAL
    assert config.rope_parameters is rope
