"""`leval-harness lm-eval`: lm-eval's own command line, with our things in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leval_border.errors import SettingError
from leval_harness.lm_eval import check_gen_kwargs, with_rope


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {
        "model_type": "llama",
        "max_position_embeddings": 8192,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from leval_harness.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def merged(arguments: list[str]) -> dict[str, Any]:
    result = with_rope(arguments)
    assert result.count("--model_args") == 1
    loaded: dict[str, Any] = json.loads(result[result.index("--model_args") + 1])
    return loaded


def test_options_of_ours_are_taken_out_and_the_rest_kept_in_order(model: Path) -> None:
    ours = ["--rope", "yarn:factor=2", f"--model_args=pretrained={model}", "--context-length=99"]
    result = with_rope(["run", *ours[:2], "--tasks", "a", "b", *ours[2:], "-L", "1", "--x={}"])
    assert result[:7] == ["run", "--tasks", "a", "b", "-L", "1", "--x={}"]
    assert result[7:10] == ["--model", "hf", "--model_args"]
    assert json.loads(result[10])["max_length"] == 99
    untouched = ["run", "--model", "hf", "--model_args", "a=1", "b=2", "--tasks", "a", "-L", "-1"]
    assert with_rope(untouched) == untouched


@pytest.mark.parametrize(
    "form",
    [
        lambda path: ["--model_args", f"pretrained={path},dtype=float32"],
        lambda path: ["--model_args", f"pretrained={path}", "dtype=float32"],
        lambda path: [f"--model_args=pretrained={path},dtype=float32"],
        lambda path: ["-a", json.dumps({"pretrained": str(path), "dtype": "float32"})],
    ],
)
@pytest.mark.parametrize("backend", ["hf", "hf-long", "vllm", "vllm-long"])
def test_rope_settings_join_the_model_args(model: Path, form: Any, backend: str) -> None:
    args = merged(
        ["run", "--model", backend, *form(model), "--rope", "resonance_yarn:factor=2", "-L", "1"]
    )
    assert args["dtype"] == "float32"
    rope = (args["hf_overrides"] if "vllm" in backend else args)["rope_parameters"]
    assert rope["rope_type"] == "resonance_yarn"
    assert rope["rope_theta"] == 100000.0
    assert rope["original_max_position_embeddings"] == 8192
    assert args["max_model_len" if "vllm" in backend else "max_length"] == 16384


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rope"], "--rope: expected one argument"),
        (["--rope-precision", "model"], "go with --rope"),
        (["--rope", "yarn:factor=2"], "pretrained"),
        (["--rope", "yarn:factor=2", "--rope-precision", "half"], "half"),
        (["--rope", "yarn:factor=2", "--context-length", "long"], "long"),
        (["--rope", "yarn:factor=2", "--model_args", "pretrained=M,max_length=9"], "max_length"),
    ],
)
def test_wrong_usage_is_named(model: Path, arguments: list[str], says: str) -> None:
    arguments = [a.replace("pretrained=M", f"pretrained={model}") for a in arguments]
    with pytest.raises(SettingError, match=says):
        merged(arguments)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["do_sample=maybe"], r"--gen_kwargs\.do_sample: 'maybe' is not allowed; allowed: true"),
        (["top_k=2", "temperature=warm"], r"--gen_kwargs\.temperature: 'warm' is not allowed"),
        (["temperature=0.5,max_gen_toks=-3"], r"--gen_kwargs\.max_gen_toks: -3"),
        (['{"max_gen_toks": 0}'], r"--gen_kwargs\.max_gen_toks: 0"),
        (["max_gen_toks"], r"--gen_kwargs: expected `key=value`"),
    ],
)
def test_generation_settings_that_nobody_can_mean_are_named(given: list[str], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        check_gen_kwargs(["run", "--tasks", "a", "--gen_kwargs", *given, "--limit", "-1"])
    check_gen_kwargs(["run", "--gen_kwargs", "temperature=0", "until=['a,b']", "best_of=x"])


def test_wrong_settings_end_without_traceback(model: Path) -> None:
    arguments = ["run", "--model_args", f"pretrained={model}", "--tasks", "leval_closed"]
    result = run("lm-eval", *arguments, "--rope", "yarn:factor=0.5")
    assert result.returncode == 2
    assert "Error: factor: 0.5 is not allowed" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_is_lm_evals_with_ours_on_top() -> None:
    result = run("lm-eval", "run", "--help")
    assert result.returncode == 0, result.stderr
    assert "--rope TYPE:key=value" in result.stdout
    assert "--num_fewshot" in result.stdout


MARK = "s3cr3t-mark"


@pytest.mark.hf
@pytest.mark.slow
def test_what_lm_eval_prints_and_saves_is_without_credentials(
    tmp_path: Path, save_llama: Any
) -> None:
    model = save_llama(tmp_path / "model", vocab_size=1500, max_position_embeddings=512)
    for file in (Path(__file__).parents[1] / "golden" / "tokenizer").iterdir():
        shutil.copy(file, model)
    config = tmp_path / "config.yaml"
    config.write_text(f"limit: 1\nmodel_args: {{token: {MARK}-1}}\n")
    settings = {"data_dir": "sample", "context_length": 512, "auth_token": f"{MARK}-2"}
    result = run(
        *("lm-eval", "run", "--config", str(config), "--tasks", "leval_closed_gsm"),
        *("--model_args", f"pretrained={model},token={MARK}-3,trust_remote_code=False"),
        *("--metadata", json.dumps(settings), "--gen_kwargs", "max_gen_toks=2"),
        *("--show_config", "--log_samples", "--output_path", str(tmp_path / "out")),
        ATEN_CPU_CAPABILITY="avx2",
        TORCH_ACCESS_TOKEN=f"{MARK}-4",
    )
    assert result.returncode == 0, result.stderr
    assert MARK not in result.stdout + result.stderr
    assert "***" in result.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert [path for path in files if MARK in path.read_text()] == []
    (written,) = (tmp_path / "out").rglob("results_*.json")
    called = json.loads(written.read_text())["config"]
    assert called["environment"] == {"ATEN_CPU_CAPABILITY": "avx2"}


def test_what_lm_eval_prints_does_not_steer_the_terminal() -> None:
    result = run("lm-eval", "run", f"a\x1b[31mb\x07{MARK}", f"--model_args=token={MARK}")
    assert result.returncode == 2
    assert r"unrecognized arguments: a\x1b[31mb\x07***" in result.stderr
