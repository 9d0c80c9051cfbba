"""A test that needs what is not there is deselected by name, not skipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "tests/data/test_hub.py"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_tests_of_documents_that_are_not_here_are_named(tmp_path: Path, processes: str) -> None:
    where = tmp_path / "nowhere"
    command = ["-q", "-n", processes, "-p", "no:cacheprovider", FILE, "-k", "fetch_keeps"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=ROOT,
        env={**os.environ, "LEVAL_TEST_DATA": str(where)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"they need the published documents ({where}); set LEVAL_TEST_DATA:" in done.stdout
    assert f"  {FILE}::test_fetch_keeps_what_it_has_and_names_what_is_missing\n" in done.stdout
    assert not re.search("skipped|passed|failed", done.stdout)
