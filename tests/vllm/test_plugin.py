"""What the plugin does to vLLM: registration, length limits, refusals. No engine is started."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resonance_vllm import settings
from resonance_vllm.limits import length_limit
from resonance_vllm.positions import ModelPositions

pytestmark = pytest.mark.vllm

ROPE = {"rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 256}
Edit = Callable[..., Path]


def model_config(path: Path, max_model_len: int | None = None, **overrides: Any) -> Any:
    """What vLLM makes of a checkpoint; creating the arguments loads the plugins."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        max_model_len=max_model_len,
        hf_overrides=overrides,
        dtype="float32",
    ).create_model_config()


def test_entry_point_is_installed_under_our_name() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="resonance_rope")
    assert found.value == "resonance_vllm.vllm_plugin:register"


def test_registering_twice_wraps_once_and_reaches_earlier_imports() -> None:
    script = """
import vllm.model_executor.layers.rotary_embedding as rope
from vllm.model_executor.models import llama
stock = rope.get_rope
assert llama.get_rope is stock
from resonance_vllm.vllm_plugin import register
register()
ours = rope.get_rope
assert ours is not stock and ours.__wrapped__ is stock
assert llama.get_rope is ours
register()
assert rope.get_rope is ours and llama.get_rope is ours
print("fine")
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip().endswith("fine"), result.stderr[-2000:]


def test_untested_version_is_said_and_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import vllm

    from resonance_vllm import vllm_plugin

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm_plugin._check_version()
    assert caplog.records == []
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    vllm_plugin._check_version()
    assert "0.99.0 is not in the list of tested versions (0.32.0)" in caplog.text


@pytest.mark.parametrize(
    ("name", "replacement", "says"),
    [
        ("_ROPE_DICT", None, "_ROPE_DICT is no dictionary"),
        ("YaRNScalingRotaryEmbedding", None, "YaRNScalingRotaryEmbedding does not exist"),
        (
            "Llama3RotaryEmbedding",
            type("Other", (), {}),
            "Llama3RotaryEmbedding has no parameter head_size",
        ),
        ("get_rope", lambda head_size: None, "get_rope has no parameter rope_parameters"),
    ],
)
def test_other_interface_is_refused_and_the_difference_named(
    monkeypatch: pytest.MonkeyPatch, name: str, replacement: Any, says: str
) -> None:
    from vllm.model_executor.layers import rotary_embedding

    from resonance_vllm.vllm_plugin import VLLMInterfaceError, check_interface

    check_interface()
    monkeypatch.setattr(rotary_embedding, name, replacement)
    with pytest.raises(VLLMInterfaceError, match=says):
        check_interface()


@pytest.mark.parametrize("written", [256, 512])
@pytest.mark.parametrize(
    "rope_type",
    ["resonance_linear", "ntk_aware", "resonance_ntk_aware", "resonance_yarn", "yarn_wavelength"],
)
def test_limit_does_not_depend_on_how_the_config_writes_it(
    edited: Edit, rope_type: str, written: int
) -> None:
    rope = {"rope_type": rope_type, **ROPE}
    path = edited(rope_parameters=rope, max_position_embeddings=written)
    assert model_config(path).max_model_len == 512
    assert model_config(path, 512).max_model_len == 512
    with pytest.raises(ValueError, match=r"original_max_position_embeddings \* factor=512"):
        model_config(path, 513)


def test_limit_of_overrides_is_that_of_the_config(edited: Edit) -> None:
    """With `hf_overrides` alone, and for `resonance`, which has no factor."""
    path = edited()
    rope = {"rope_type": "resonance_yarn", **ROPE}
    assert model_config(path, rope_parameters=rope).max_model_len == 512
    rope = {"rope_type": "resonance", "rope_theta": 10000.0}
    assert model_config(path, rope_parameters=rope).max_model_len == 256


def test_stock_types_keep_vllms_limit(edited: Edit) -> None:
    for rope_type, written, limit in (("yarn", 512, 512), ("linear", 256, 512)):
        rope = {"rope_type": rope_type, **ROPE}
        path = edited(rope_parameters=rope, max_position_embeddings=written)
        assert model_config(path).max_model_len == limit


@pytest.mark.parametrize(
    "rope_type", ["linear", "ntk_aware", "yarn", "resonance_yarn", "resonance"]
)
def test_adapter_writes_what_vllm_turns_into_the_designed_limit(
    edited: Edit, rope_type: str
) -> None:
    path = edited()
    asked = {"rope_type": rope_type} | ({} if rope_type == "resonance" else {"factor": 2})
    positions = ModelPositions.of_checkpoint(str(path))
    rope = positions.complete(asked)
    made = model_config(path, **settings.vllm_hf_overrides(rope, positions))
    assert made.max_model_len == length_limit(positions, rope)
    assert made.max_model_len == (256 if rope_type == "resonance" else 512)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": None}, "rope_theta: missing"),
        ({"factor": 0.5}, "factor: 0.5 is not allowed"),
        ({"beta_quick": 3}, "beta_quick"),
        ({"rope_type": "resonance_yarm"}, "unknown type 'resonance_yarm'"),
        ({"rope_type": "yarn", "ramp": "wavelength"}, "yarn_wavelength"),
    ],
)
def test_wrong_settings_are_refused_before_a_worker_starts(
    edited: Edit, changes: dict[str, Any], says: str
) -> None:
    rope = {"rope_type": "resonance_yarn", **ROPE, **changes}
    rope = {key: value for key, value in rope.items() if value is not None}
    with pytest.raises(ValueError, match=says):
        model_config(edited(), rope_parameters=rope)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt2"}, "'gpt2' has no RoPE"),
        (
            {
                "model_type": "deepseek_v2",
                "hidden_size": 128,
                "num_attention_heads": 2,
                "kv_lora_rank": 16,
                "qk_rope_head_dim": 16,
                "qk_nope_head_dim": 16,
                "v_head_dim": 16,
                "max_position_embeddings": 256,
            },
            "MLA",
        ),
    ],
)
def test_model_without_ordinary_rope_is_refused(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    import json

    from transformers import AutoConfig

    name = {"gpt2": "GPT2LMHeadModel", "deepseek_v2": "DeepseekV2ForCausalLM"}
    model_type = config.pop("model_type")
    made = AutoConfig.for_model(model_type, **config, architectures=[name[model_type]])
    (tmp_path / "config.json").write_text(json.dumps(made.to_dict()))
    with pytest.raises(ValueError, match=says):
        model_config(tmp_path, rope_parameters={"rope_type": "resonance_yarn", **ROPE})


def test_multi_axis_rope_is_refused(edited: Edit) -> None:
    rope = {"rope_type": "resonance_yarn", **ROPE, "mrope_section": [16, 24, 24]}
    with pytest.raises(ValueError, match="mrope_section"):
        model_config(edited(), rope_parameters=rope)


@pytest.mark.parametrize("rope_type", ["ntk", "dynamic"])
def test_vllms_own_meaning_of_a_name_is_pointed_out_once(
    edited: Edit,
    rope_type: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from resonance_vllm import vllm_plugin

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm_plugin._warn_once.cache_clear()
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0}
    for _ in range(2):
        assert model_config(edited(), rope_parameters=rope).max_model_len == 512
    # By identity: pytest also listens at loggers that did not propagate when the test began, so
    # that with propagation on one record comes twice.
    warnings = {id(record): record.getMessage() for record in caplog.records}.values()
    assert sum(f"rope_type {rope_type} is vLLM's own" in text for text in warnings) == 1


def test_stock_type_without_rope_theta_is_pointed_out(
    edited: Edit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from resonance_vllm import vllm_plugin

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm_plugin._warn_once.cache_clear()
    rope = {"rope_type": "linear", "factor": 2.0}
    model_config(edited(), rope_parameters=rope)
    assert "without rope_theta" in caplog.text


def test_excluded_plugin_leaves_our_types_unknown() -> None:
    script = """
from vllm.plugins import load_general_plugins
load_general_plugins()
import torch
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope
with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
    get_rope(64, 256, True, {"rope_type": "resonance_yarn", "rope_theta": 1e4, "factor": 2.0,
             "original_max_position_embeddings": 256}, dtype=torch.float32)
print("built")
"""
    import os

    results = {}
    for plugins in ("resonance_rope", "another_plugin"):
        results[plugins] = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "VLLM_PLUGINS": plugins},
        )
    assert results["resonance_rope"].stdout.strip().endswith("built")
    assert results["another_plugin"].returncode == 1
    assert "Unknown RoPE scaling type resonance_yarn" in results["another_plugin"].stderr
