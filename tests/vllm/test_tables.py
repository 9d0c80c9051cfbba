"""Embeddings that the plugin makes, without an engine, against closed forms."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from naive_maps import MOVING
from torch import nn
from turned import cos_sin

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, RopeSpec, RopeType
from resonance_vllm.vllm import register
from resonance_vllm.vllm.embeddings import resonance_yarn_class
from resonance_vllm.vllm.requests import LayerRequest
from resonance_vllm.vllm.stock_view import stock_settings
from resonance_vllm.vllm.tables import table_of, verify_model

pytestmark = pytest.mark.engine("vllm")

HEAD, THETA, ORIGINAL = 64, 100_000.0, 256
SERVED = 4 * ORIGINAL
COMMON = {"rope_theta": THETA, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    register()
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        yield


def asked(name: str, **changes: Any) -> RopeSpec:
    """The settings of a type, at the served length."""
    method = RopeType.parse(name).method
    keys = {**method.example_settings(HEAD), **COMMON, **changes}
    known = {key: value for key, value in keys.items() if key in method.model_fields}
    spec = RopeSpec.from_dict({"rope_type": name, **known})
    return RopeSpec(spec.method.at_length(SERVED), spec.resonance)


def got(rope: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """What vLLM's `get_rope` makes of a dictionary."""
    from vllm.model_executor.layers import rotary_embedding

    return rotary_embedding.get_rope(HEAD, ORIGINAL, True, rope, dtype=dtype)


def made(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The same of what a model file sees in place of a request, the model's own keys in it."""
    own = {key: value for key, value in changes.items() if key.startswith("mrope")}
    spec = asked(name, **{key: changes[key] for key in changes.keys() - own.keys()})
    return got(stock_settings(own, spec, SERVED, "default"), dtype)


@pytest.mark.parametrize("name", [name for name in OWN_TYPES if name not in MOVING])
def test_get_rope_table_equals_the_closed_form(name: str) -> None:
    spec = asked(name)
    _, table = table_of(made(name))
    assert len(table) >= max(SERVED, spec.method.length_limit(ORIGINAL))
    wanted = torch.cat(cos_sin(spec, HEAD, torch.arange(len(table))), -1).float()
    torch.testing.assert_close(table, wanted, atol=2e-3, rtol=0)


def test_resonance_yarn_class_is_a_subclass_of_yarn() -> None:
    from vllm.model_executor.layers import rotary_embedding

    own, stock = made("resonance_yarn"), got({"rope_type": "yarn", **COMMON})
    assert type(own) is resonance_yarn_class()
    assert type(stock) is rotary_embedding.YaRNScalingRotaryEmbedding in type(own).__mro__
    assert stock.cos_sin_cache.shape == own.cos_sin_cache.shape
    assert not torch.allclose(stock.cos_sin_cache, own.cos_sin_cache, atol=1e-2)
    assert type(own).forward_cpu is type(stock).forward_cpu


def test_get_rope_shares_tables_of_equal_requests() -> None:
    own = made("ntk_aware")
    assert made("ntk_aware") is own
    assert made("ntk_aware", factor=2.0) is not own
    assert made("ntk_aware", torch.bfloat16) is not own
    seen = stock_settings({}, asked("ntk_aware"), SERVED, "default")
    plain = got({**seen, "rope_theta": THETA})
    assert plain is not own
    assert not torch.equal(plain.cos_sin_cache, own.cos_sin_cache[:ORIGINAL])


@pytest.mark.parametrize("name", ["resonance", "resonance_yarn"])
def test_get_rope_with_positions_of_several_axes(name: str) -> None:
    sections = [8, 12, 12]
    several = made(name, mrope_section=sections)
    one_row = table_of(made(name))[1]
    axes = torch.stack([torch.arange(5), torch.arange(5) * 2, torch.arange(5) * 3])
    query = torch.randn(5, HEAD, generator=torch.Generator().manual_seed(0))
    found, _ = several.forward_native(axes, query.clone(), query.clone())
    cos, sin = one_row[axes].chunk(2, dim=-1)  # [axes, tokens, features]
    of_axis = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    cos, sin = (each[of_axis, :, torch.arange(HEAD // 2)].T for each in (cos, sin))
    a, b = query.chunk(2, dim=-1)
    expected = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{"factor": 8.0}, {"attention_factor": 2.0}])
def test_get_rope_ignores_keys_of_model_files(changes: Any) -> None:
    seen = {**stock_settings({}, asked("resonance_yarn"), SERVED, "default"), **changes}
    assert got(seen).cos_sin_cache.equal(made("resonance_yarn").cos_sin_cache)


def test_verify_model_refuses_settings_of_another_type() -> None:
    factors = {"full_attention": 4.0, "linear_attention": 2.0}
    config = SimpleNamespace(layer_types=list(factors))
    requests = {
        layer_type: LayerRequest(asked("ntk_aware", factor=factor), {})
        for layer_type, factor in factors.items()
    }
    modules = [made("ntk_aware", factor=factor) for factor in factors.values()]

    def model(*rotary: Any) -> nn.Module:
        layers = nn.ModuleList(nn.ModuleDict({"rotary": module}) for module in rotary)
        return nn.ModuleDict({"layers": layers})

    verify_model(model(*modules), config, requests)
    with pytest.raises(RopeConfigError, match=r"layers.0.rotary.*made for .*'factor': 2.0"):
        verify_model(model(*reversed(modules)), config, requests)
