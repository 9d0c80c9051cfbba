"""What a model will run with: the libraries build it, `check` tells what their modules hold."""

import json
import shlex
import subprocess
import sys

import pytest

import resonance_vllm.check
from leval_harness.cli.main import main
from resonance_vllm.check import report
from resonance_vllm.checkpoint.positions import PositionConfig
from resonance_vllm.common.errors import RopeConfigError

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 8,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.fixture
def check(capsys, without_vllm):
    """`check(*arguments)`: exit code, output and errors."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["check", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code, out, err

    return run


def saved(folder, **changes):
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_people_read(tmp_path, check):
    code, out, _ = check(saved(tmp_path), "--rope", "resonance_yarn:factor=4")
    assert code == 0
    for words in ("1024 tokens", "model.rotary_emb", "8 features", "exact phase            yes"):
        assert words in out
    assert "not installed: vllm is not installed" in out


def test_a_name_that_is_neither_a_folder_nor_of_the_hub(check):
    ended, out, err = check("nowhere")
    assert (ended, out) == (1, "")
    assert "no folder 'nowhere', and none on the hub" in err


@pytest.mark.parametrize("content", [None, "", "[]", "{", '"llama"', "{}"])
def test_a_config_that_is_none(content, tmp_path, check):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    code, _, err = check(tmp_path, "--rope", "yarn:factor=2")
    assert code == 2
    assert err.startswith("Error: ")


def test_a_length_that_is_none_is_named(tmp_path, check):
    code, _, err = check(saved(tmp_path, max_position_embeddings=0), "--rope", "yarn:factor=4")
    assert code == 2
    assert "max_position_embeddings: the model's config has none" in err


def looked(folder, monkeypatch, rope=None, held=(), **more):
    """The report on a model, where vLLM holds what is given, or raises it."""

    def vllm_report(*_):
        if isinstance(held, Exception):
            raise held
        return held

    monkeypatch.setattr(resonance_vllm.check, "is_installed", lambda library: True)
    monkeypatch.setattr("resonance_vllm.vllm.inspection.report_of_checkpoint", vllm_report)
    model = PositionConfig.from_dict(LLAMA)
    return report(str(saved(folder)), model, rope and model.complete(rope), **more).to_dict()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (RopeConfigError("told so"), "told so"),
    ],
)
def test_whatever_a_library_raises_is_a_reason(tmp_path, monkeypatch, error, words):
    facts = looked(tmp_path, monkeypatch, held=error)
    assert facts["vllm"]["refused"] == words
    assert facts["transformers"]["modules"][0]["inv_freq"][0] == 1.0


def test_the_command_of_a_server_is_one_for_a_shell(tmp_path, monkeypatch):
    facts = looked(tmp_path, monkeypatch, {"rope_type": "resonance_yarn", "factor": 2})
    command, _, path, flag, overrides, length, tokens = shlex.split(facts["vllm"]["serve"])
    assert (command, path, flag) == ("vllm", str(tmp_path), "--hf-overrides")
    assert json.loads(overrides) == facts["vllm"]["overrides"]
    assert json.loads(overrides)["rope_parameters"]["rope_type"] == "resonance_yarn"
    assert (length, tokens) == ("--max-model-len", "512")


def test_one_library_alone(tmp_path, monkeypatch):
    found = looked(tmp_path, monkeypatch, held=AssertionError(), libraries=("transformers",))
    assert found["vllm"] == {"not_asked": "by --library"}
    assert found["transformers"]["modules"]


def test_a_length_above_the_limit_names_it(tmp_path, check):
    """Qwen 2.5 with YaRN over 32,768 positions, as its model card has people write it."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    folder = saved(tmp_path, rope_parameters={**rope, "rope_theta": 1e4})
    code, _, err = check(folder, "--context-length", 1024)
    assert code == 2
    assert "above the limit of 256 tokens; allowed: up to 256" in err
    assert "or --rope yarn:factor=4, its own method (limit 1,024)" in err
    code, _, err = check(folder, "--context-length", 5000, "--rope", "yarn:factor=4")
    assert code == 2
    assert "limit of 1024 tokens" in err
    assert check(folder, "--context-length", 1024, "--rope", "yarn:factor=4")[0] == 0


@pytest.mark.slow(long=True)
@pytest.mark.engine("vllm")
def test_check_libraries_agree_and_print_json_alone(tmp_path):
    """In a process of its own, where vLLM sets up its log by itself."""
    command = [sys.executable, "-m", "leval_harness", "check", str(saved(tmp_path)), "--json"]
    command += ["--rope", "resonance_yarn:factor=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    (one,), (other,) = (facts[side]["modules"] for side in ("transformers", "vllm"))
    assert other["inv_freq"] == pytest.approx(one["inv_freq"], rel=1e-5)
    assert other["exact_phase"]
