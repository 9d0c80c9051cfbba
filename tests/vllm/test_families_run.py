"""Families in the real engine, with the text model's logits beside transformers'.

SmolLM3 runs through transformers' modules. `pytest -m long` runs every family
that is right in vLLM, in both modes; docs/reports/vllm.md has the results.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from families_record import RIGHT, folders, read

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "families" / "run_vllm.py"
NOT_RUN = {
    "kimi_k2": "transformers does not know it",
    "lfm2_12b": "vLLM on processors gives other numbers with plain RoPE too",
    "mimo_v2": "vLLM's code names plain RoPE, and its attention wants Triton",
    "minimax_m2": "vLLM has no router with a sigmoid on processors",
}
APART = {"apertus": 1e-2}  # vLLM keeps two numbers of its activation in bfloat16
PLAIN_APART = {"cohere2_7b": 0.5, "gemma3_1b": 0.2, "gemma3_4b": 0.05, "granite33_8b": 0.2}
WITHOUT_YARN = ("gemma4", "gemma4_text")


USUAL = ("smollm3", "eager")
CASES = [
    (folder.name, mode)
    for folder in folders()
    for mode in ("eager", "compiled")
    if read("vllm").get(folder.name, RIGHT) == RIGHT and folder.name not in NOT_RUN
]


@pytest.mark.parametrize(
    ("family", "mode"),
    [pytest.param(*case, marks=() if case == USUAL else pytest.mark.long) for case in CASES],
)
def test_the_engine_is_as_transformers(tmp_path: Path, family: str, mode: str) -> None:
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(SCRIPT), str(out), mode, family]
    env = os.environ | {"PYTHONPATH": str(Path(sys.prefix) / "pictures")}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=800)
    assert out.exists(), run.stderr[-2000:]
    (found,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert "error" not in found, found
    if found["dtype"] == "torch.bfloat16":
        assert found["mean"] < 0.04 < 1.5 * found["mean"] < found["plain_mean"], found
    else:
        assert found["apart"] < APART.get(family, 5e-3), found
        if family not in WITHOUT_YARN:
            assert found["plain_apart"] > PLAIN_APART.get(family, 1), found
