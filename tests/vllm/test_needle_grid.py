"""The needle grid on both engines with the small real model: same prompts, same answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks

pytestmark = [pytest.mark.engine("vllm"), pytest.mark.slow(long=True)]

SWEEP = """
models:
  transformers: {{path: {model}, backend: hf-long, dtype: float32}}
  vllm: {{path: {model}, backend: vllm-long, dtype: float32}}
methods:
  rope: {{rope_type: default}}
  yarn: {{rope_type: yarn, factor: 2.0}}
baseline: rope
context_lengths: [2048]
tasks:
  - tasks: [retrieval_niah_single, retrieval_niah_multiquery]
    metadata: {{context_length: [1024, 2048], num_samples: 1}}
    gen_kwargs: {{max_gen_toks: 24}}
"""


def answers_of(run: Path) -> dict[str, Any]:
    """Prompt and answer of each sample of a run, by task and place."""
    answers = {}
    for file in run.glob("samples_*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            place = (file.name.split("_2")[0], row["doc"]["cluster"])
            answers[place] = (row["arguments"]["gen_args_0"]["arg_0"], row["filtered_resps"][0])
    return answers


def test_needles_are_answered_alike_by_both_engines(
    smollm2: Path, forks: Forks, tmp_path: Path
) -> None:
    config = tmp_path / "needles.yaml"
    config.write_text(SWEEP.format(model=smollm2))
    assert forks.sweep(config, tmp_path / "out") == 0, forks.said()
    answers: dict[str, dict[str, Any]] = {}
    for run in (tmp_path / "out").glob("*/runs/*"):
        record = json.loads((run / "run.json").read_text())
        of_method = answers.setdefault(record["method"]["name"], {})
        of_method[record["model"]["name"]] = answers_of(run)
    assert set(answers) == {"rope", "yarn"}
    for name, of_method in answers.items():
        assert len(of_method["transformers"]) == 12, name
        assert of_method["transformers"] == of_method["vllm"], name
