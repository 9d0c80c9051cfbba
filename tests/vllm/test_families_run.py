"""Families whose logits depend on more than a table of frequencies, in the real engine.

SmolLM3 runs through transformers' modules, compiled by default; Ministral 3 scales its queries by
their positions.

`tests/families/run_vllm.py` runs any others; docs/vllm.md has what was run.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "families" / "run_vllm.py"


@pytest.mark.parametrize(
    ("family", "mode"), [("smollm3", "compiled"), ("ministral3_text", "eager")]
)
def test_the_engine_is_as_transformers(tmp_path: Path, family: str, mode: str) -> None:
    out = tmp_path / "out.jsonl"
    command = [sys.executable, str(SCRIPT), str(out), mode, family]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert out.exists(), run.stderr[-2000:]
    (found,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert found["apart"] < 5e-3 < 1 < found["plain_yarn_apart"], found
