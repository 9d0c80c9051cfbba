"""What the plugin does to vLLM: registration, length limits, refusals. No engine is started."""

import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from naive_maps import MOVING
from vllm_modules import looked_at

from resonance_vllm.checkpoint.limits import length_limit
from resonance_vllm.checkpoint.overrides import VERIFY_ROPE_KEY, vllm_hf_overrides
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import ROPE_TYPES, RopeType
from resonance_vllm.vllm import plugin, requests, worker

pytestmark = pytest.mark.engine("vllm")

CONFIGS = Path(__file__).parents[1] / "families" / "configs"
LENGTH = "original_max_position_embeddings"
SCALED = {"rope_theta": 10000.0, "factor": 2.0, LENGTH: 256}
YARN = {"rope_type": "resonance_yarn", **SCALED}
LLAMA3 = {
    "rope_type": "resonance_llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SCALED
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32",
}  # fmt: skip
LONGER = LLAMA | {"max_position_embeddings": 2048}
SHIPPED = LONGER | {"rope_parameters": {**LLAMA3, "rope_type": "llama3", "factor": 8.0}}
PLAIN = {"rope_type": "resonance", "rope_theta": 10000.0}
NESTED = {
    "model_type": "llava", "architectures": ["LlamaForCausalLM"],  # that of Llava needs pictures
    "text_config": {k: v for k, v in LLAMA.items() if k != "architectures"},
    "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 1},
}  # fmt: skip

WINDOWED = LLAMA | {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 64,
    "layer_types": ["sliding_attention"] * 2, "num_key_value_heads": 1, "head_dim": 64,
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0}
        for kind in ("full_attention", "sliding_attention")
    },
}  # fmt: skip
TWO_KEYS = LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def global_settings(rope: dict[str, Any]) -> dict[str, Any]:
    """Overrides that give a method to the layers of Gemma 3 without a window."""
    return {"rope_parameters": {**WINDOWED["rope_parameters"], "full_attention": rope}}


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_register_is_the_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="resonance_rope")
    assert found.value == "resonance_vllm.vllm:register"


def test_plugin_import_loads_no_vllm() -> None:
    script = (
        "import sys, resonance_vllm.vllm.plugin; "
        "print([name for name in ('vllm', 'transformers') if name in sys.modules])"
    )
    assert run(script).stdout.strip() == "[]"


@pytest.mark.slow(long=True)
def test_register_wraps_once_and_reaches_earlier_imports() -> None:
    script = """
import vllm.model_executor.layers.rotary_embedding as rope
from vllm.model_executor.models import llama
from vllm.v1.engine.core import EngineCore
stock = rope.get_rope
assert llama.get_rope is stock
from resonance_vllm.vllm.plugin import register
register()
wrapper, rpc = rope.get_rope, EngineCore.collective_rpc
assert wrapper is not stock and wrapper.__wrapped__ is stock
assert llama.get_rope is wrapper
register()
assert rope.get_rope is wrapper and llama.get_rope is wrapper and EngineCore.collective_rpc is rpc
print("fine")
"""
    done = run(script)
    assert done.stdout.strip().endswith("fine"), done.stderr[-2000:]


@pytest.mark.parametrize(
    "request_",
    [
        "linear:factor=2", "ntk_aware:factor=2", "yarn:factor=2", "resonance_yarn:factor=2",
        "resonance_linear:factor=3.7", "resonance", "llama31_8b resonance",
        "gemma3_1b resonance_yarn:factor=2", "qwen3_8b resonance_yarn:factor=1.5",
    ],
)  # fmt: skip
def test_overrides_give_vllm_the_limit_of_the_settings(tmp_path: Path, request_: str) -> None:
    """No function of vLLM's is changed for it: the JSON that we write has the length."""
    from vllm.engine.arg_utils import EngineArgs

    from resonance_vllm.core.spec import RopeRequest

    family, _, text = request_.rpartition(" ")
    path = CONFIGS / family if family else tmp_path
    if not family:
        (path / "config.json").write_text(json.dumps(LLAMA))
    model = PositionConfig.from_checkpoint(str(path))
    spec = model.complete(RopeRequest.parse(text))
    made = EngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        hf_overrides=vllm_hf_overrides(spec, model),
        max_model_len=length_limit(model, spec),
    ).create_model_config()
    assert made.max_model_len == length_limit(model, spec)


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "as vllm serve": (LLAMA, {"rope_parameters": YARN}, None),
    "in config.json": (LLAMA | {"rope_parameters": YARN}, {}, None),
    "at the top of a nested one": (NESTED, {"rope_parameters": YARN}, None),
    "no base": (LLAMA, {"rope_parameters": {**YARN, "rope_theta": None}}, None),
    "factor": (LLAMA, {"rope_parameters": {**YARN, "factor": 0.5}}, None),
    "a key": (LLAMA, {"rope_parameters": {**YARN, "beta_quick": 3}}, None),
    "a type": (LLAMA, {"rope_parameters": {**YARN, "rope_type": "resonance_yarm"}}, None),
    "too long": (LLAMA | {"rope_parameters": YARN, "max_position_embeddings": 512}, {}, None),
    "shorter": (LLAMA | {"rope_parameters": YARN, "max_position_embeddings": 512}, {}, 512),
    "llama3 by hand": (LONGER, {"rope_parameters": LLAMA3}, None),
    "llama3 in time": (LONGER, {"rope_parameters": LLAMA3}, 2048),
    "plain on a longer one": (SHIPPED, {"rope_parameters": PLAIN}, None),
    "plain, extrapolated": (SHIPPED, {"rope_parameters": PLAIN}, 2048),
    "position remapping": (
        LLAMA,
        {"rope_parameters": {"rope_type": "self_extend", "group_size": 4, "window_size": 64,
                             **SCALED}},
        None,
    ),
    "vLLM's own business": (LLAMA, {"rope_parameters": {**SCALED, "rope_type": "dynamic"}}, None),
    "windowed layers alone": (WINDOWED, global_settings(YARN), None),
    "windowed layers alone, stock type": (
        WINDOWED, {**global_settings({**YARN, "rope_type": "yarn"}), VERIFY_ROPE_KEY: True}, None,
    ),
    "two dictionaries": (TWO_KEYS, {"rope_parameters": YARN}, None),
    "no RoPE": (
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1},
        {"rope_parameters": YARN}, 512,
    ),
}  # fmt: skip
SAYS = {
    "at the top of a nested one": "which nests its language model; allowed: the --hf-overrides",
    "no base": "rope_theta: missing",
    "factor": r"factor: .* \(0\.5 given\)",
    "a key": "beta_quick: unknown setting; allowed: ",
    "a type": "unknown type 'resonance_yarm'",
    "too long": r"max_model_len: 1024 is above the limit of 512 .* --max-model-len 512",
    "llama3 by hand": r"max_model_len: 4096 is above the limit of 2048 .* --max-model-len 2048",
    "plain on a longer one": r"2048 is above the limit of 256 .* --max-model-len 256",
    "position remapping": "vLLM's attention sees every key at its own position",
    "windowed layers alone": "layers 0 to 1 are sliding_attention",
    "windowed layers alone, stock type": "layers 0 to 1 are sliding_attention",
    "two dictionaries": "rope_scaling: .* is given beside rope_parameters",
    "no RoPE": "GPT2LMHeadModel has no rotary module in vLLM",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM builds for each of `ASKED`, or how that is refused."""
    jobs = []
    for config, overrides, length in ASKED.values():
        folder = tmp_path_factory.mktemp("asked")
        (folder / "config.json").write_text(json.dumps(config))
        jobs.append({"model": str(folder), "hf_overrides": overrides, "max_model_len": length})
    return dict(zip(ASKED, looked_at(jobs), strict=True))


@pytest.mark.parametrize("name", [name for name in ASKED if name not in SAYS])
def test_requests_reach_the_modules(built: dict[str, Any], name: str) -> None:
    (module,) = built[name]["held"]
    assert module["exact_phase"] == (name != "vLLM's own business")
    if module["exact_phase"] and not {"llama3", "plain"} & set(re.findall(r"\w+", name)):
        assert module["attention_factor"] == pytest.approx(1.069315, rel=1e-5)


@pytest.mark.parametrize("name", SAYS)
def test_requests_are_refused_with_a_remedy(built: dict[str, Any], name: str) -> None:
    assert re.search(SAYS[name], built[name].get("refused", "it was built"))


def test_set_rope_without_the_plugin_says_what_to_do(monkeypatch):
    monkeypatch.setattr(worker, "register", functools.cache(lambda: None))  # not called
    with pytest.raises(RopeConfigError, match="name it in VLLM_PLUGINS or install"):
        worker.RopeWorker().set_rope(None)


MISSING = """
import sys
from resonance_vllm.vllm.inspection import report_of_checkpoint
for package in sys.argv[2].split(","):
    sys.modules[package] = None
try:
    report_of_checkpoint(sys.argv[1])
except ValueError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow(long=True)
@pytest.mark.parametrize("family", ["qwen3_vl_8b", "qwen25_vl"])
def test_report_names_the_package_that_is_missing(family: str) -> None:
    """Families with parts for images, where torchvision is not installed."""
    pytest.importorskip("vllm")
    if importlib.util.find_spec("torchvision"):
        pytest.skip("torchvision is installed here")
    done = subprocess.run(
        [sys.executable, "-c", MISSING, str(CONFIGS / family), "torchvision"],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("RopeConfigError vLLM cannot import its code of Qwen"), last
    assert "torchvision" in last


def test_architecture_failure_names_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.models import ModelRegistry

    from resonance_vllm.vllm.inspection import architecture_failure

    class Unimportable:
        def load_model_cls(self) -> None:
            raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision.ops")

    name = "Qwen3VLForConditionalGeneration"
    monkeypatch.setitem(ModelRegistry.models, name, Unimportable())
    error = ValueError(f"Model architectures ['{name}'] failed to be inspected. Check the logs")
    assert architecture_failure(error) == (
        f"vLLM cannot import its code of {name}: ModuleNotFoundError: No module named "
        "'torchvision'; install torchvision"
    )


def test_architecture_failure_is_none_for_other_errors() -> None:
    from resonance_vllm.vllm.inspection import architecture_failure

    assert architecture_failure(ValueError("max_model_len is too large")) is None


def test_log_settings_names_method_and_version(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm.distributed.parallel_state.is_global_first_rank", lambda: True)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="vllm.resonance_vllm"):
        plugin.log_settings({"rope_type": "resonance_yarn", "factor": 4.0})
        plugin.log_settings(None)
        plugin._log_own_settings(SimpleNamespace(rope_parameters={"rope_type": "linear"}))
        plugin._log_own_settings(SimpleNamespace())  # of a model without RoPE
    version = importlib.metadata.version("leval-harness")
    first, second, third = caplog.messages
    assert third.endswith(
        f"rope_type=linear (not verified, resonance_vllm of leval-harness {version})"
    )
    assert "rope_type=resonance_yarn, factor=4.0" in first
    assert "as in config.json" in second
    assert first.endswith(f"(resonance_vllm of leval-harness {version})")


@pytest.mark.parametrize("name", [name for name in ROPE_TYPES if name not in MOVING])
def test_complete_settings_as_the_command_line_does(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A swap takes what `--rope` takes, and turns it into what `--hf-overrides` takes."""
    from transformers import LlamaConfig

    shipped = LlamaConfig(max_position_embeddings=256, rope_theta=10000.0, head_dim=64)
    monkeypatch.setattr(requests, "shipped_text_config", lambda model_config: shipped)
    engine = SimpleNamespace(max_model_len=512)
    positions = PositionConfig.from_config(shipped)
    method = RopeType.parse(name).method
    settings = {**method.example_settings(64), "factor": 2.0}
    known = {key: value for key, value in settings.items() if key in method.model_fields}
    short = {"rope_type": name, **known}
    short.pop(LENGTH, None)
    spec = positions.complete(short)
    expected = vllm_hf_overrides(spec, positions, 512)["rope_parameters"]
    assert requests.complete_settings(short, engine) == expected
    complete = {"rope_theta": 10000.0, LENGTH: 256, **short}
    assert requests.complete_settings(complete, engine) is complete


@pytest.mark.parametrize(
    "rope",
    [
        None,
        {"rope_type": "deepseek_yarn", "factor": 2.0},  # of vLLM alone
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}},
    ],
)
def test_complete_settings_leaves_other_forms(rope: Any) -> None:
    assert requests.complete_settings(rope, SimpleNamespace(max_model_len=512)) is rope
