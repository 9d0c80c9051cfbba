"""A hub that cannot be reached."""

import os
import subprocess
import sys

import pytest

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("offline", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_hub_out_of_reach_is_one_line_at_once(tmp_path, offline):
    ours = ("HF_HUB_OFFLINE", "LEVAL_DATA_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"HF_ENDPOINT": NOBODY, "HF_HOME": str(tmp_path), **offline}
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "dummy", "--tasks", "leval_closed"],
        capture_output=True, text=True, env=environment, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Retry" not in done.stderr  # the client's five attempts take half a minute
    line = done.stderr.splitlines()[-1]
    assert ": LEval/Exam/coursera.jsonl of the hub's data set" in line
    assert "data_dir: sample" in line
