"""What a model will run with: the libraries build it, `check` tells what their modules hold."""

import json
import shlex
import subprocess
import sys

import pytest

import resonance_vllm.check
from leval_harness.cli.main import main
from resonance_vllm.check import report
from resonance_vllm.config import ModelPositions
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.verify import RotaryReport

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


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--context-length", "0"), 2, "--context-length"),
        (
            ("--rope", "yarn:factor=4", "--context-length", "5000"),
            2,
            "limit of 1024 tokens; allowed: up to 1024, or",
        ),
        (("--rope", "nope"), 2, "rope_type: unknown type 'nope'"),
    ],
)
def test_wrong_usage(arguments, code, words, tmp_path, check):
    ended, _, err = check(saved(tmp_path), *arguments)
    assert ended == code
    assert words in err


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("./nowhere", 2, "there is no folder './nowhere'"),
        ("a/b/c", 2, "there is no folder 'a/b/c'"),
        ("nowhere", 1, "there is no folder 'nowhere', and the hub gives no such model"),
        ("nowhere/model", 1, "and the hub gives no such model"),
    ],
)
def test_neither_a_folder_nor_a_name_of_the_hub(path, code, words, check):
    ended, out, err = check(path)
    assert (ended, out) == (code, "")
    assert words in err


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


class Look:
    """Stands for the two libraries: what each of them holds, or how it refuses."""

    def __init__(self, monkeypatch, tmp_path):
        self.monkeypatch, self.path = monkeypatch, str(saved(tmp_path))
        monkeypatch.setattr(resonance_vllm.check, "installed", lambda library: True)

    def __call__(self, hf, vllm, rope=None, **changes):
        for name, answer in (("_hf_report", hf), ("_vllm_report", vllm)):
            self.monkeypatch.setattr(resonance_vllm.check, name, lambda *args, a=answer: _answer(a))
        model = ModelPositions.of({**LLAMA, **changes})
        return report(self.path, model, None if rope is None else model.complete(rope))


def _answer(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture
def look(monkeypatch, tmp_path):
    return Look(monkeypatch, tmp_path)


def held(layer_type=None, inv_freq=(1.0, 0.1), factor=1.0, *, exact=False, module="m"):
    return RotaryReport(module, layer_type, tuple(inv_freq), factor, exact)


SLIDING, FULL = held("sliding_attention"), held("full_attention", (0.5, 0.05))


@pytest.mark.parametrize(
    ("hf", "vllm", "words"),
    [
        ([held()], [held(module="a"), held(module="b")], []),
        ([held()], [held(inv_freq=(1.0, 0.101))], ["rotation: on vLLM 1 of 2 frequencies differ"]),
        ([held()], [held(factor=1.2)], ["rotation: on vLLM the attention factor is 1.2, not 1"]),
        ([held(exact=True)], [held()], ["rotation: exact phase on transformers alone"]),
        ([SLIDING, FULL], [FULL, SLIDING], []),
        (
            [SLIDING, FULL],
            [SLIDING, held("full_attention", (0.5, 0.07))],
            ["rotation of full_attention: on vLLM 1 of 2 frequencies differ"],
        ),
        ([held("full_attention")], [held()], []),
        ([held()], [held(), held(inv_freq=(1.0, 0.2), module="b")], ["rotation: on vLLM"]),
        ([held()], ValueError("why"), ["refused: transformers alone runs it"]),
        (ValueError("why"), [held()], ["refused: vllm alone runs it"]),
        (ValueError("why"), ValueError("why not"), []),
    ],
)
def test_disagreements_follow_from_what_the_modules_hold(look, hf, vllm, words):
    lines = look(hf, vllm)["disagreements"]
    assert len(lines) == len(words), lines
    assert all(line.startswith(start) for line, start in zip(lines, words, strict=True))


def test_whatever_a_library_raises_is_a_reason(look):
    facts = look(ZeroDivisionError("by zero"), RopeConfigError("told so"))
    assert facts["transformers"] == {
        "refused": "ZeroDivisionError: by zero", "limit": 256, "overrides": {}
    }  # fmt: skip
    assert facts["vllm"]["refused"] == "told so"


def test_the_command_of_a_server_is_one_for_a_shell(look):
    facts = look([held()], [held()], {"rope_type": "resonance_yarn", "factor": 2})
    command, _, path, flag, overrides, length, tokens = shlex.split(facts["vllm"]["serve"])
    assert (command, path, flag) == ("vllm", look.path, "--hf-overrides")
    assert json.loads(overrides) == facts["vllm"]["overrides"]
    assert json.loads(overrides)["rope_parameters"]["rope_type"] == "resonance_yarn"
    assert (length, tokens) == ("--max-model-len", "512")


def test_a_length_above_the_limit_names_it(tmp_path, check):
    """Qwen 2.5 with YaRN over 32,768 positions, as its model card has people write it."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    folder = saved(tmp_path, rope_parameters={**rope, "rope_theta": 1e4})
    code, _, err = check(folder, "--context-length", 1024)
    assert code == 2
    assert "above the limit of 256 tokens; allowed: up to 256, or a --rope" in err
    assert check(folder, "--context-length", 1024, "--rope", "yarn:factor=4")[0] == 0


def test_what_vllm_does_otherwise_is_said(look, monkeypatch):
    lines = look([held()], [held()], {"rope_type": "dynamic", "factor": 2})["disagreements"]
    assert any("dynamic on transformers, ntk_aware on vLLM" in line for line in lines)
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    lines = look([held()], [held()], {"rope_type": "resonance_yarn", "factor": 2})["disagreements"]
    assert any("VLLM_PLUGINS='another'" in line for line in lines)
    assert look([held()], [held()], {"rope_type": "yarn", "factor": 2})["disagreements"] == []


def test_one_library_alone(monkeypatch, look):
    monkeypatch.setattr(resonance_vllm.check, "_hf_report", lambda *_: [held()])
    monkeypatch.setattr(resonance_vllm.check, "_vllm_report", pytest.fail)
    found = report(look.path, ModelPositions.of(LLAMA), None, libraries=("transformers",))
    assert found["vllm"] == {"not_asked": "by --library"}
    assert found["disagreements"] == []
    assert found["transformers"]["modules"][0]["inv_freq"] == [1.0, 0.1]


@pytest.mark.vllm
def test_both_libraries_hold_the_same_and_standard_output_is_the_json_alone(tmp_path):
    """In a process of its own, where vLLM sets up its log by itself."""
    command = [sys.executable, "-m", "leval_harness", "check", str(saved(tmp_path)), "--json"]
    command += ["--rope", "resonance_yarn:factor=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["disagreements"] == []
    (one,), (other,) = (facts[side]["modules"] for side in ("transformers", "vllm"))
    assert other["inv_freq"] == pytest.approx(one["inv_freq"], rel=1e-5)
    assert other["exact_phase"]
