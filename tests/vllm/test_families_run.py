"""A family that vLLM runs through transformers' modules, in the real engine, compiled by default.

`tests/families/run_vllm.py` runs any others; docs/vllm.md has what was run.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "families" / "run_vllm.py"


def test_transformers_modules_are_right_in_compiled_mode(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(SCRIPT), str(out), "compiled", "smollm3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert out.exists(), run.stderr[-2000:]
    (found,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert found["apart"] < 5e-3 < 1 < found["plain_yarn_apart"], found
