"""The shipped accelerate configs, read by accelerate itself; and two processes on one run."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from leval_tasks.posgen.vocabulary import build_tokenizer

pytestmark = pytest.mark.hf

FOLDER = Path(str(files("harness_configs"))) / "train" / "accelerate"


@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero3"])
def test_accelerate_reads_every_key(name):
    """`load_config_from_file` refuses keys that this version of accelerate does not know."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.num_processes == 4, "as many GPUs as in the paper"
    assert config.mixed_precision == "bf16"


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path, save_llama):
    """Data parallel on two CPU processes: one set of files, twice the tokens a step."""
    model = save_llama(
        tmp_path / "model", vocab_size=22, max_position_embeddings=64, eos_token_id=21
    )
    build_tokenizer(17).save_pretrained(model)
    numbers = np.random.default_rng(0).integers(0, 17, (4, 400)).tolist()
    lines = [json.dumps({"text": " ".join(map(str, row))}) for row in numbers]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    tools = Path(sys.executable).parent
    command = [tools / "torchrun", "--standalone", "--nproc-per-node", "2"]
    command += [tools / "leval-harness", "finetune", model, "--data", tmp_path / "text.jsonl"]
    command += ["--rope", "resonance_yarn:factor=2", "--sequence-length", "32", "--steps", "3"]
    command += ["--held-out", "1", "--no-bf16", "--out", tmp_path / "out"]
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "out/finetune_result.json").read_text())
    assert result["tokens"] == 3 * 2 * 32
    rows = (tmp_path / "out/metrics.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["step", "1", "2", "3"]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "resonance_yarn"
    assert (tmp_path / "out/model.safetensors").is_file()
