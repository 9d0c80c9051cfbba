"""Cells as they were written by earlier versions: the same record, the same id, so sweeps resume.

`python tests/sweep/test_golden_cells.py` writes the expected file anew; a difference in it means
that every sweep on somebody's disk is computed again.
"""

import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import pytest

from leval_harness.sweep import cells
from leval_harness.sweep.config import parse_config

EXPECTED = Path(__file__).with_name("golden_cells.jsonl")
VERSIONS = {"leval-harness": "1", "lm_eval": "2", "torch": "3"}

TASK = "task: own\nmetadata: {version: 3}\n"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIG = """
models:
  small:
    path: {root}/model
    backend: hf-long
    dtype: bfloat16
    args: {{attn_implementation: sdpa, dropped: null}}
    apply_chat_template: true
    batch_size: auto:4
    device: cpu
    methods: [rope, yarn, resonance_yarn, ntk, asis]
    tokens_per_second: 100
    resources: {{num_gpus: 0.5}}
  shipped: {{path: {root}/llama3, backend: vllm-long, name: Shipped llama3, methods: [asis, on_top],
    context_lengths: [null, 4096], args: {{peft: {root}/adapter}}}}
  served: {{path: org/served, backend: local-completions, methods: [asis],
    args: {{base_url: "http://localhost:8000", num_concurrent: 4}}}}
methods:
  rope: {{rope_type: default}}
  yarn: {{rope_type: yarn, factor: 2, original_max_position_embeddings: 4096}}
  resonance_yarn: {{rope_type: resonance_yarn, factor: 2, beta_fast: 16,
    original_max_position_embeddings: 4096}}
  ntk: {{rope_type: ntk_aware, factor: 4.0, base_scaling: paper, rope_theta: 10000.0,
    original_max_position_embeddings: 4096}}
  on_top: {{rope_type: resonance_llama3, factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0,
    original_max_position_embeddings: 8192}}
  asis: null
baseline: rope
rope_precision: float32
context_lengths: 2048
metadata: {{data_dir: {root}/data, own_data: true, truncation: left}}
gen_kwargs: {{max_gen_toks: 32, until: ["\\n"]}}
task_gen_kwargs: {{leval_closed_gsm: {{max_gen_toks: 128, temperature: 0.5}}}}
limit: 7
tasks:
  - leval_closed_gsm
  - tasks: [ppl_pydocs, posgen]
    metadata: {{context_length: [1024, 2048], num_docs: 2}}
    limit: null
    num_fewshot: 0
    context_lengths: [1024]
  - {root}/own.yaml
seed: 3
timeout: 60
jobs: 2
"""


def prepare(root: Path) -> None:
    """Checkpoints, documents and a task file, the same in every run."""
    llama = {"model_type": "llama", "rope_theta": 1e4, "max_position_embeddings": 4096,
             "hidden_size": 64, "num_attention_heads": 1}  # fmt: skip
    llama3 = {**llama, "rope_theta": 5e5, "max_position_embeddings": 131072, "rope_scaling": LLAMA3}
    for name, config in (("model", llama), ("llama3", llama3)):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
        (root / name / "model.safetensors").write_bytes(b"weights")
    (root / "adapter").mkdir()
    (root / "adapter" / "adapter.bin").write_bytes(b"adapter")
    (root / "data").mkdir()
    row = {"instructions": ["q"], "outputs": ["1"], "input": "text", "evaluation": "exam"}
    (root / "data" / "gsm100.jsonl").write_text(json.dumps(row) + "\n")
    (root / "own.yaml").write_text(TASK)


def planned(root: Path, patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Records of every cell, the folder left out of them."""
    import yaml

    from leval_harness.sweep import identity as module

    patch.setattr(module, "package_versions", lambda backend: dict(VERSIONS))
    patch.setattr(cells, "environment", lambda backend: {})
    patch.setattr(platform, "python_version", lambda: "3.11.0")
    patch.setenv("LEVAL_CACHE_DIR", str(root / "cache"))
    prepare(root)
    content = yaml.safe_load(CONFIG.format(root=root))
    # a folder is no part of an id, but a task file's path is, as are strings in model arguments
    patch.chdir(root)
    content["tasks"][2] = "own.yaml"
    content["models"]["shipped"]["args"] = {"peft": "adapter"}
    found = cells.plan(parse_config({"name": "golden", **content}))
    text = json.dumps([cell.record.written() for cell in found])
    return json.loads(text.replace(str(root.resolve()), "ROOT").replace(str(root), "ROOT"))


def test_the_cells_of_an_earlier_version_are_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [json.loads(line) for line in EXPECTED.read_text().splitlines()]
    now = planned(tmp_path, monkeypatch)
    assert [cell["cell_id"] for cell in now] == [cell["cell_id"] for cell in expected]
    for cell, before in zip(now, expected, strict=True):
        assert list(cell) == list(before), "another order of keys"
        assert cell == before


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patches:
        records = planned(Path(scratch), patches)
        EXPECTED.write_text("".join(json.dumps(record) + "\n" for record in records))
