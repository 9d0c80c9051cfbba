"""Fine-tuning a tiny model: what is written, resuming, LoRA, and errors."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from leval_harness.training import finetune as module
from leval_harness.training.finetune import finetune, reading_order
from leval_harness.training.settings import FineTuneSettings, preset
from leval_harness.training.text import prepare_document
from leval_harness.training.trainer import made_by
from leval_tasks.posgen.sequences import build_tokenizer
from resonance_vllm.common.errors import SettingError, UserError
from resonance_vllm.common.yaml_files import packaged_configs
from resonance_vllm.hf import register

pytestmark = [pytest.mark.slow]

ROPE = {"rope_type": "resonance_yarn", "factor": 2}
TINY = {
    "rope": ROPE, "sequence_length": 32, "steps": 6, "held_out": 2, "bf16": False,
    "learning_rate": 1e-2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory, save_llama):
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, vocab_size=22, max_position_embeddings=64, eos_token_id=21)
    build_tokenizer(17).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "books.jsonl"
    generator = np.random.RandomState(0)
    licence = generator.randint(0, 17, 60)
    lines = []
    for _ in range(8):
        words = np.concatenate([licence, generator.randint(0, 17, 200)])
        lines.append(json.dumps({"text": " ".join(map(str, words))}))
    file.write_text("\n".join(lines))
    return str(file)


def test_finetune_shares_no_run_of_tokens_with_held_out_text(model, data):
    tokenizer = AutoTokenizer.from_pretrained(model)
    settings = FineTuneSettings(**{**TINY, "sequence_length": 1200})
    rows, held_out = prepare_document([data], tokenizer, settings)
    known = set()
    for document in held_out:
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        known |= {tuple(ids[i : i + 50]) for i in range(len(ids) - 49)}
    assert len(known) > 300  # the licence of 60 tokens is in each document
    for row in rows.tolist():
        assert not known & {tuple(row[i : i + 50]) for i in range(len(row) - 49)}


_SAVES = (module.Trainer, "_save_optimizer_and_scheduler")  # the weights are written by then


@pytest.mark.parametrize(
    ("rank", "where"),
    [
        pytest.param(0, (*_SAVES, 2), id="half-a-state"),
        pytest.param(2, (module, "_write_held_out"), id="before-the-result-lora"),
    ],
)
def test_finetune_saves_rope_settings_and_resumes(model, data, tmp_path, killed, rank, where):
    settings = FineTuneSettings(**TINY, lora_rank=rank, save_steps=2)
    whole = finetune(model, [data], tmp_path / "a", settings)
    assert whole["tokens"] == 6 * 32
    with killed(*where):
        finetune(model, [data], tmp_path / "b", settings)
    resumed = finetune(model, [data], tmp_path / "b", settings)
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {
        k: v for k, v in whole.items() if k != "seconds"
    }
    metrics = [(tmp_path / x / "metrics.csv").read_text() for x in ("a", "b")]
    steps = pd.read_csv(tmp_path / "a/metrics.csv").set_index("step")
    assert steps.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert metrics[0] == metrics[1]
    assert whole["mean_loss"] == pytest.approx(steps["loss"].mean())
    register()
    weights = [AutoModelForCausalLM.from_pretrained(tmp_path / x).state_dict() for x in ("a", "b")]
    untrained = AutoModelForCausalLM.from_pretrained(model).state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    for key, value in weights[0].items():
        assert torch.equal(value, weights[1][key]), key
    assert not torch.equal(weights[0][name], untrained[name])
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["rope_parameters"] == {
        "rope_type": "resonance_yarn",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    assert config["max_position_embeddings"] == 128
    assert len((tmp_path / "a/held_out/books.jsonl").read_text().splitlines()) == 2


def test_finetune_epoch_reads_every_row_once_in_its_own_order():
    rows = np.arange(10).reshape(5, 2)
    read = [row["input_ids"][0].item() // 2 for row in reading_order(rows, 12, seed=1)]
    assert sorted(read[:5]) == sorted(read[5:10]) == [0, 1, 2, 3, 4]
    assert read[:5] != read[5:10]
    assert len(set(read[10:])) == len(read[10:]) == 2


def test_finetune_in_bf16_without_gpu_leaves_no_states(model, data, tmp_path):
    finetune(model, [data], tmp_path / "a", FineTuneSettings(**{**TINY, "bf16": True, "steps": 2}))
    saved = json.loads((tmp_path / "a/config.json").read_text())
    assert saved["dtype"] == "bfloat16"
    assert not (tmp_path / "a/states").exists()


def test_finetune_errors_name_causes_and_finished_runs_stay(model, data, tmp_path):
    settings = FineTuneSettings(**TINY)
    first = finetune(model, [data], tmp_path / "a", settings)
    assert finetune(model, [data], tmp_path / "a", settings) == first
    with pytest.raises(UserError, match="a training with other settings"):
        finetune(model, [data], tmp_path / "a", settings.with_changes(steps=7))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    with pytest.raises(UserError, match="mine is not empty"):
        finetune(model, [data], tmp_path / "mine", settings)
    with pytest.raises(SettingError, match="sequence_length: 129 is above the 128 positions"):
        finetune(model, [data], tmp_path / "c", settings.with_changes(sequence_length=129))
    with pytest.raises(UserError, match="--data: missing; give a file or folder"):
        finetune(model, [], tmp_path / "c", settings)
    assert not (tmp_path / "c").exists(), "what cannot be done leaves no folder behind"
    hot = settings.with_changes(learning_rate=1e35)
    with pytest.raises(UserError, match="lower the learning rate"):
        finetune(model, [data], tmp_path / "e", hot)


@pytest.mark.parametrize("program", ["bin/leval-harness", "leval_harness/__main__.py"])
def test_finetune_records_a_command_that_can_be_repeated(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "posgen", "train", "--out", "my folder"])
    assert made_by()["command"] == "leval-harness posgen train --out 'my folder'"


def test_finetune_presets_are_those_of_the_papers():
    wanted = {name: preset(FineTuneSettings, name) for name in packaged_configs("train")}
    for size in ("7b-long", "7b-short", "13b-long", "13b-short"):
        of = wanted[f"llama2-{size}"]
        assert 4 * of.accumulation * of.steps * of.sequence_length == 104_857_600
        assert (of.learning_rate, of.weight_decay, of.warmup) == (2e-5, 0.01, 0.05)
    with pytest.raises(UserError, match="did you mean 'llama2-7b-long'"):
        preset(FineTuneSettings, "llama-7b-long")


@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero3"])
def test_accelerate_reads_every_key_of_shipped_configs(name):
    """`load_config_from_file` refuses keys that this version of accelerate does not know."""
    from accelerate.commands.config.config_args import load_config_from_file

    folder = files("harness_configs") / "train" / "accelerate"
    config = load_config_from_file(str(folder / f"{name}.yaml"))
    assert (config.num_processes, config.mixed_precision) == (4, "bf16"), "GPUs of the paper"


@pytest.mark.slow(long=True)
def test_finetune_in_two_processes_shares_the_work(model, data, tmp_path):
    """Data parallel on two CPU processes: one set of files, twice the tokens a step."""
    tools, out = Path(sys.executable).parent, tmp_path / "out"
    command = [tools / "torchrun", "--standalone", "--nproc-per-node", 2]
    command += [tools / "leval-harness", "finetune", model, "--data", data, "--out", out]
    command += ["--rope", "resonance_yarn:factor=2", "--sequence-length", 32, "--steps", 3]
    command += ["--held-out", 1, "--no-bf16"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((out / "finetune_result.json").read_text())["tokens"] == 3 * 2 * 32
    assert pd.read_csv(out / "metrics.csv")["step"].tolist() == [1, 2, 3]
    config = json.loads((out / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "resonance_yarn"
    assert (out / "model.safetensors").is_file()
