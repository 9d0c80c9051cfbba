"""The needle grid on both engines with the small real model: same prompts, same answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True)]

SWEEP = """
models:
  transformers: {{path: {model}, backend: hf-long, dtype: float32}}
  vllm: {{path: {model}, backend: vllm-long, dtype: float32}}
methods:
  rope: {{rope_type: default}}
baseline: rope
context_lengths: [2048]
tasks:
  - tasks: retrieval_niah_single
    metadata: {{context_length: [1024, 2048], num_samples: 1}}
    gen_kwargs: {{max_gen_toks: 12}}
"""


def answers_of(run: Path) -> dict[str, Any]:
    """Prompt and answer of each sample of a run, by place."""
    answers: dict[str, Any] = {}
    for file in run.glob("samples_*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            answers[row["doc"]["cluster"]] = (
                row["arguments"]["gen_args_0"]["arg_0"],
                row["filtered_resps"][0],
            )
    return answers


def test_needles_are_answered_alike_by_both_engines(smollm2: Path, tmp_path: Path) -> None:
    config = tmp_path / "needles.yaml"
    config.write_text(SWEEP.format(model=smollm2))
    command = [sys.executable, "-m", "leval_harness", "sweep", str(config)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers: dict[str, Any] = {}
    for run in (tmp_path / "out").glob("*/runs/*"):
        record = json.loads((run / "run.json").read_text())
        answers[record["model"]["name"]] = answers_of(run)
    assert len(answers["transformers"]) == 6
    assert answers["transformers"] == answers["vllm"]
