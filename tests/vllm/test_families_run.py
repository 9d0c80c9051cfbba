"""Families in the real engine, eager, with the text model's logits beside transformers'.

SmolLM3 runs through transformers' modules. `pytest -m long` runs every family that is right in
vLLM.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families_record import RIGHT, folders, read

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "families" / "run_vllm.py"
NOT_RUN = {
    "gemma3n_e2b": "vLLM's code for its pictures does not run the language model alone",
    "kimi_k2": "transformers does not know it",
    "lfm2_12b": "vLLM on processors gives other numbers with plain RoPE too",
    "mimo_v2": "vLLM's code names plain RoPE, and its attention wants Triton",
    "ministral3_8b": "vLLM leaves out its scale of queries",
    "ministral3_text": "vLLM leaves out its scale of queries",
    "minimax_m2": "vLLM has no router with a sigmoid on processors",
}
APART = {"apertus": 1e-2}  # vLLM keeps two numbers of its activation in bfloat16
PLAIN_APART = {"cohere2_7b": 0.5, "gemma3_1b": 0.2, "gemma3_4b": 0.05, "granite33_8b": 0.2}
WITHOUT_YARN = ("gemma4", "gemma4_text")


USUAL = "smollm3"
TOGETHER = 7
"""Families that one process runs: the start of one takes longer than an engine."""
RUN = [
    folder.name
    for folder in folders()
    if read("vllm").get(folder.name, RIGHT) == RIGHT and folder.name not in (USUAL, *NOT_RUN)
]


def parameters() -> Iterator[Any]:
    """Families; what shares a process is in one group of pytest-xdist."""
    for turn, family in enumerate(RUN):
        group = pytest.mark.xdist_group(f"engines {turn // TOGETHER}")
        yield pytest.param(family, marks=[pytest.mark.long, group])
    yield USUAL


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What each family gave, as far as it was run."""
    return {}


def run_together(request: pytest.FixtureRequest, family: str, out: Path) -> dict[str, Any]:
    """Run the families of this run's tests that are in the group of one."""
    group = request.node.get_closest_marker("xdist_group")
    families = [
        item.callspec.params["family"]
        for item in request.session.items
        if group and group in item.iter_markers("xdist_group")
    ] or [family]
    command = [sys.executable, str(SCRIPT), str(out), *families]
    env = os.environ | {"PYTHONPATH": str(Path(sys.prefix) / "pictures")}
    seconds = 100 + 100 * len(families)
    run = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=seconds
    )
    lines = out.read_text().splitlines() if out.exists() else []
    without = {each: {"error": run.stderr[-2000:]} for each in families}
    return without | {found["family"]: found for found in map(json.loads, lines)}


@pytest.mark.timeout(0)  # the first one of a group runs all; the process has its own limit
@pytest.mark.parametrize("family", list(parameters()))
def test_the_engine_is_as_transformers(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runs: dict[str, Any],
    family: str,
) -> None:
    if family not in runs:
        runs |= run_together(request, family, tmp_path / "out.jsonl")
    found = runs[family]
    assert "error" not in found, found
    if found["dtype"] == "torch.bfloat16":
        assert found["mean"] < 0.04, found
        assert 1.5 * found["mean"] < found["plain_mean"], found
    else:
        assert found["apart"] < APART.get(family, 5e-3), found
        if family not in WITHOUT_YARN:
            assert found["plain_apart"] > PLAIN_APART.get(family, 1), found
