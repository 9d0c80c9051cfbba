"""What the plugin does to vLLM: registration, length limits, refusals. No engine is started."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resonance_vllm import config as settings
from resonance_vllm.config import ModelPositions, length_limit

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
    assert found.value == "resonance_vllm.vllm.plugin:register"


@pytest.mark.long
def test_registering_twice_wraps_once_and_reaches_earlier_imports() -> None:
    script = """
import vllm.model_executor.layers.rotary_embedding as rope
from vllm.model_executor.models import llama
stock = rope.get_rope
assert llama.get_rope is stock
from resonance_vllm.vllm.plugin import register
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


@pytest.mark.parametrize(
    ("module", "name", "replacement", "says"),
    [
        ("layers.rotary_embedding", "_ROPE_DICT", None, "_ROPE_DICT is no dictionary"),
        ("layers.rotary_embedding", "YaRNScalingRotaryEmbedding", None, "is no class"),
        (
            "layers.rotary_embedding",
            "get_rope",
            lambda head_size: None,
            "get_rope has no parameter rope_parameters",
        ),
        ("model_loader.utils", "initialize_model", None, "initialize_model does not exist"),
    ],
)
def test_every_difference_of_the_interface_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, replacement: Any, says: str
) -> None:
    import importlib

    from resonance_vllm.vllm.plugin import interface_problems

    assert interface_problems() == []
    owner = importlib.import_module(f"vllm.model_executor.{module}")
    monkeypatch.setattr(owner, name, replacement)
    assert [problem for problem in interface_problems() if says in problem]


def test_a_vllm_that_differs_serves_all_models_but_ours(edited: Edit) -> None:
    """`get_rope` with a parameter of another name, in a process of its own."""
    script = f"""
import vllm.model_executor.layers.rotary_embedding as rope
stock = rope.get_rope
def renamed(head_size, max_position, is_neox_style=True, rope_settings=None, dtype=None):
    return stock(head_size, max_position, is_neox_style, rope_settings, dtype)
rope.get_rope = renamed
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
def config(**overrides):
    return EngineArgs(model={str(edited())!r}, skip_tokenizer_init=True, hf_overrides=overrides,
                      dtype="float32").create_model_config()
yarn = {{**{ROPE!r}, "rope_type": "yarn"}}
print("served", config(rope_parameters=yarn, max_position_embeddings=512).max_model_len)
ours = {{**{ROPE!r}, "rope_type": "resonance_yarn"}}
with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
    print("built", type(rope.get_rope(64, 512, True, yarn)).__name__)
    for ask in (lambda: config(rope_parameters=ours), lambda: rope.get_rope(64, 512, True, ours)):
        try:
            ask()
        except ValueError as error:
            print("refused", repr(str(error)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    lines = [
        line for line in run.stdout.splitlines() if line.split()[:1] in (["served"], ["built"])
    ]
    assert lines == ["served 512", "built YaRNScalingRotaryEmbedding"], run.stderr[-2000:]
    refused = [line for line in run.stdout.splitlines() if line.startswith("refused")]
    assert len(refused) == 2
    assert all("get_rope has no parameter rope_parameters" in line for line in refused)
    assert "Models that do not ask for its rope types run as always" in run.stdout + run.stderr


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
                "model_type": "granitemoehybrid",
                "layer_types": ["mamba", "attention"],
                "num_hidden_layers": 2,
                "position_embedding_type": "nope",
            },
            "'granitemoehybrid' has no RoPE",
        ),
    ],
)
def test_model_without_rope_is_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    import json

    from transformers import AutoConfig

    name = {"gpt2": "GPT2LMHeadModel", "granitemoehybrid": "GraniteMoeHybridForCausalLM"}
    model_type = config.pop("model_type")
    made = AutoConfig.for_model(model_type, **config, architectures=[name[model_type]])
    (tmp_path / "config.json").write_text(json.dumps(made.to_dict()))
    with pytest.raises(ValueError, match=says):
        model_config(tmp_path, rope_parameters={"rope_type": "resonance_yarn", **ROPE})


def test_an_override_keeps_what_belongs_to_the_model(edited: Edit) -> None:
    """vLLM replaces the whole dictionary; the rotated share and foreign keys are put back."""
    shipped = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    path = edited(rope_parameters={**shipped, "mrope_section": [8, 4, 4]})
    made = model_config(path, rope_parameters={"rope_type": "resonance_yarn", **ROPE})
    expected = {"rope_type": "resonance_yarn", **ROPE, "mrope_section": [8, 4, 4]}
    assert made.hf_text_config.rope_parameters == {**expected, "partial_rotary_factor": 0.5}
    assert made.uses_mrope


NESTED = {
    "model_type": "llava",
    "architectures": ["LlamaForCausalLM"],  # that of Llava needs torchvision
    "text_config": {
        "model_type": "llama",
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            **ROPE},
    },
    "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 1},
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True], ids=["at the top", "in text_config"])
def test_an_override_reaches_a_nested_language_model(tmp_path: Path, nested: bool) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps(NESTED))
    rope = {"rope_parameters": {"rope_type": "resonance_yarn", **ROPE}}
    made = model_config(tmp_path, **({"text_config": rope} if nested else rope))
    assert made.hf_text_config.rope_parameters == rope["rope_parameters"]
    assert not hasattr(made.hf_config, "rope_parameters")
    assert made.max_model_len == 512


@pytest.mark.parametrize(
    ("speculative", "allowed"),
    [
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}, True),
        ({"num_speculative_tokens": 2}, False),
    ],
    ids=["ngram", "draft model"],
)
def test_no_draft_model_runs_without_the_settings(
    edited: Edit, speculative: dict[str, Any], allowed: bool
) -> None:
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    path = str(edited())
    for rope_type in ("resonance_yarn", "yarn"):
        arguments = EngineArgs(
            model=path,
            skip_tokenizer_init=True,
            hf_overrides={"rope_parameters": {"rope_type": rope_type, **ROPE}},
            dtype="float32",
            speculative_config=speculative if allowed else {**speculative, "model": path},
        )
        target = arguments.create_model_config()
        if allowed or rope_type == "yarn":
            created = arguments.create_speculative_config(target, ParallelConfig())
            assert created.method == speculative.get("method", "draft_model")
        else:
            with pytest.raises(ValueError, match=r"^speculative_config: the draft model"):
                arguments.create_speculative_config(target, ParallelConfig())


@pytest.mark.parametrize("rope_type", ["ntk", "dynamic"])
def test_vllms_own_meaning_of_a_name_is_pointed_out_once(
    edited: Edit,
    rope_type: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from resonance_vllm.vllm import hooks as vllm_hooks

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm_hooks._warn_once.cache_clear()
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
    from resonance_vllm.vllm import hooks as vllm_hooks

    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm_hooks._warn_once.cache_clear()
    rope = {"rope_type": "linear", "factor": 2.0}
    model_config(edited(), rope_parameters=rope)
    assert "without rope_theta" in caplog.text


@pytest.mark.long
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
