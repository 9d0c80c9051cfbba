"""The first command of a newcomer, on CPUs with and without instructions for bfloat16."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("config", ["quickstart", "quickstart-small"])
@pytest.mark.parametrize("bfloat16", ["", "avx512_bf16"])
def test_make_leaderboard_is_valid_shell(config, bfloat16):
    """A comma in a text once ended make's `if`, and the shell met half a string."""
    # `make test` runs this test: what it says to its own children would be printed, too.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    recipe = subprocess.run(
        ["make", "--dry-run", "leaderboard", f"CONFIG={config}", f"BFLOAT16={bfloat16}"],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    checked = subprocess.run(
        ["bash", "-n"], input=recipe, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    sweep = recipe.splitlines()[-1]
    assert sweep.split()[:3] == [".venv/bin/leval-harness", "sweep", config]
    is_slow = config == "quickstart" and not bfloat16
    assert ("dtype=float32" in sweep) == is_slow
    assert ("takes float32" in recipe) == is_slow
