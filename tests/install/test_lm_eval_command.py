"""`leval-harness lm-eval`: lm-eval's own command line, with our things in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks
from golden_access import TOKENIZER
from lm_eval_asked import asked, settings_of

from leval_harness.cli.lm_eval import lm_eval, parsed
from leval_harness.cli.lm_eval_run import requests_cache
from resonance_vllm.common.errors import SettingError

pytestmark = pytest.mark.slow


@pytest.fixture
def tokenizer_folder() -> Path:
    return TOKENIZER


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


def test_lm_eval_gets_its_own_arguments_in_order(model: Path) -> None:
    theirs = [f"--model_args=pretrained={model}", "--tasks", "mmlu", "arc", "-L", "1"]
    rope = ["--rope", "yarn:factor=2"]
    words = ["run", *rope, *theirs[:2], "--context-length=99", *theirs[2:]]
    assert lm_eval.make_context("lm-eval", words).params["arguments"] == ("run", *theirs)
    config = asked(*rope, *theirs, "--context-length=99")
    assert config.model_args["max_length"] == config.metadata["max_length"] == 99
    assert (config.model, config.tasks, config.limit) == ("hf", ["mmlu", "arc"], 1)
    assert asked("--model_args", "a=1", "b=2").model_args == {
        "a": 1, "b": 2, "rope_precision": "float32",
    }  # fmt: skip


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
def test_rope_adds_to_model_args(model: Path, form: Any, backend: str) -> None:
    rope = "resonance_yarn:factor=2"
    args = asked("--model", backend, *form(model), "--rope", rope, "-L", "1").model_args
    assert args["dtype"] == "float32"
    rope = (args["hf_overrides"] if "vllm" in backend else args)["rope_parameters"]
    assert rope["rope_type"] == "resonance_yarn"
    assert rope["rope_theta"] == 100000.0
    assert rope["original_max_position_embeddings"] == 8192
    assert args["max_model_len" if "vllm" in backend else "max_length"] == 16384


ROPE, OF_MODEL = ["--rope", "yarn:factor=2"], "--model_args=pretrained=M"
LINES: dict[str, tuple[list[str], str]] = {
    "no model": (ROPE, "pretrained"),
    "two lengths": (
        [*ROPE, "--context-length=8", f"{OF_MODEL},max_length=9"],
        "--rope sets max_length=8, but --model_args has max_length=9",
    ),
    "above the limit": ([*ROPE, f"{OF_MODEL},max_length=16385"], "above the limit"),
    "a misspelt setting": (["--metadata", "trunctation=left"], r"metadata\.trunctation: unknown"),
}
"""Mistakes on the command line, and what is said of them; M is a checkpoint."""

FILES: dict[str, tuple[str, str]] = {
    "a misspelt setting": ("metadata: {num_dosc: 3}", r"metadata\.num_dosc: unknown"),
    "a setting of our task": (
        "{tasks: leval_closed_gsm, metadata: {truncation: centre}}",
        r"metadata\.truncation: .*'centre' given",
    ),
    "a credential": (
        "model_args: {token: hf_s3cr3t}", r"model_args\.token: (?!.*s3cr3t).*HF_TOKEN"
    ),
    "a list of arguments": ("model_args: [a, b]", r"model_args: \['a', 'b'\] is not allowed"),
    "a misspelt key": ("modle: hf", r"'modle' is not allowed; .*did you mean 'model'"),
}  # fmt: skip
"""Config files of lm-eval, and what is said of them."""


@pytest.mark.parametrize("name", LINES)
def test_complete_names_a_mistake_on_the_command_line(model: Path, name: str) -> None:
    arguments, says = LINES[name]
    arguments = [each.replace("pretrained=M", f"pretrained={model}") for each in arguments]
    with pytest.raises(SettingError, match=says):
        asked("--tasks", "mmlu", *arguments)


@pytest.mark.parametrize("name", FILES)
def test_complete_names_a_mistake_in_a_config_file(tmp_path: Path, name: str) -> None:
    text, says = FILES[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=says):
        asked("--config", str(path))


def test_rope_adds_to_the_model_of_a_config_file(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    lines = ("model: vllm", f"model_args: {{pretrained: {model}}}", "tasks: [leval_closed_quality]")
    path.write_text("\n".join(lines))
    config = asked("-C", str(path), "--rope", "yarn:factor=2")
    assert config.model == "vllm"
    assert config.model_args["hf_overrides"]["rope_parameters"]["factor"] == 2
    assert config.tasks == ["leval_closed_quality"]
    shortened = asked(
        "--model", "vllm", "--model_a", f"pretrained={model}", "--rope", "yarn:factor=2"
    )
    assert (shortened.model, shortened.model_args) == ("vllm", config.model_args)


INNER = {
    "JSON": '{"b": 1, "c": {"d": false, "e": null}}',
    "Python": "{'b': 1, 'c': {'d': False, 'e': None}}",
}


@pytest.mark.parametrize(
    "option", ["--model_args", "-a", "--model_args=", "--metadata", "--gen_kwargs"]
)
@pytest.mark.parametrize("quotes", INNER)
@pytest.mark.parametrize("form", ["a=X", "z=1,a=X,y=2", "z=1 a=X", "JSON"])
def test_dictionary_in_any_spelling_is_read(form: str, quotes: str, option: str) -> None:
    """lm-eval's parser asks for double quotes where they are, and reads some spellings as text."""
    inner = INNER[quotes]
    text = form.replace("X", inner) if form != "JSON" else f'{{"a": {INNER["JSON"]}}}'
    # words of a shell: one for each argument
    values = ["z=1", f"a={inner}"] if form == "z=1 a=X" else [text]
    words = [option, *values]
    if option.endswith("="):
        words = [option + values[0], *values[1:]]
    name = {"-a": "model_args"}.get(option, option.strip("-="))
    settings = parsed(["run", *words, "--tasks", "mmlu"])
    assert getattr(settings, name)["a"] == {"b": 1, "c": {"d": False, "e": None}}
    assert settings.tasks == ["mmlu"]
    if "z=1" in form:
        assert getattr(settings, name)["z"] == 1


@pytest.mark.parametrize("text", ["a={'b': 1", "a={b: 1}", "{b: 1}", "a={1}x"])
def test_dictionary_that_cannot_be_read_is_shown_written(text: str) -> None:
    with pytest.raises(SettingError, match=r"^--model_args.*text: a=1,b=2 or '\{\"a\": 1"):
        parsed(["run", "--model_args", text])


@pytest.mark.parametrize(
    ("model_type", "arguments", "precision"),
    [
        ("hf", [], "float32"),
        ("huggingface", [], "float32"),
        ("hf-long", [], "float32"),
        ("hf", ["--rope", "yarn:factor=2"], "float32"),
        ("hf-long", ["--rope", "yarn:factor=2"], "float32"),
        ("hf", ["--rope-precision", "model"], "model"),
        ("hf", ["--rope-precision", "model", "--rope", "yarn:factor=2"], "model"),
        ("hf", ["--model_args", "rope_precision=model"], "model"),
        ("hf", ["--model_args", "rope_precision=model", "--rope", "yarn:factor=2"], "model"),
        ("vllm", [], None),
        ("vllm-long", [], None),
        ("dummy", [], None),
    ],
)
def test_rope_precision_is_that_of_runs_without_rope(
    model: Path, model_type: str, arguments: list[str], precision: str | None
) -> None:
    words = ["--model", model_type, "--model_args", f"pretrained={model}", *arguments]
    assert asked(*words).model_args.get("rope_precision") == precision


def test_rope_precision_mistakes_are_named(model: Path) -> None:
    at = ["--model_args", f"pretrained={model},rope_precision=model"]
    with pytest.raises(SettingError, match="--rope-precision: float32, but --model_args has"):
        asked(*at, "--rope-precision", "float32")
    with pytest.raises(SettingError, match="--rope-precision: vllm rotates in the model's own"):
        asked("--model", "vllm", "--rope-precision", "float32")


def test_nan_answer_ends_the_run(
    save_llama: Any, tokenizer_folder: Path, forks: Forks, tmp_path: Path
) -> None:
    """It would become a score: lm-eval averages NaN, and counts NaN choices as answers."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(tokenizer_folder, folder)
    save_llama(folder, vocab_size=50_000, max_position_embeddings=256)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.dumps({"context_length": 64, "num_docs": 1})
    words = ["--model_args", f"pretrained={folder}", "--tasks", "ppl_pydocs"]
    ended = forks.command("lm-eval", "run", "--model", "hf", *words, "--metadata", settings)
    assert ended.returncode == 1, ended.stderr + ended.stdout
    assert "ppl_pydocs, document" in ended.stderr
    assert "NaN" in ended.stderr.splitlines()[-1]


def test_help_has_both_commands_options(forks: Forks) -> None:
    result = forks.command("lm-eval", "run", "--help")
    assert result.returncode == 0, result.stderr
    assert "--rope TYPE:key=value" in result.stdout
    assert "--num_fewshot" in result.stdout


def test_caches_are_of_one_model_and_method(model: Path) -> None:
    """lm-eval's own keys know neither: the second method would get the answers of the first."""
    from lm_eval.caching import cache

    def kept(*arguments: str) -> tuple[str, str]:
        settings, values = settings_of("--use_cache=X", "--cache_requests=true", *arguments)
        with requests_cache(values):
            return settings.use_cache, cache.PATH

    at = f"pretrained={model}"
    runs = [
        ("--model_args", at),
        ("--model_args", at, "--rope", "yarn:factor=2"),
        ("--model_args", at, "--rope", "linear:factor=8"),
        ("--model_args", f"{at},dtype=float32", "--rope", "yarn:factor=2"),
        ("--model_args", at, "--model", "hf-long"),
    ]
    found = [kept(*run) for run in runs]
    assert found == [kept(*run) for run in runs]
    assert all(answers.startswith("X-") for answers, _ in found)
    assert len({answers for answers, _ in found}) == len(runs)
    assert len({requests for _, requests in found}) == 4, "the backend makes no other documents"
    assert asked("--model_args", at).use_cache is None
    (model / "model.safetensors").write_bytes(b"trained on")
    assert kept(*runs[0])[0] != found[0][0], "weights of the same folder"
