"""A run of pytest can be stopped after a test in which a command failed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUITE = """
import time
from pathlib import Path

import pytest

from leval_harness.cli.main import main


def test_a_command_fails():
    with pytest.raises(SystemExit) as ended:
        main(["table", "absent"])
    assert ended.value.code == 2


def test_the_next_one_takes_long():
    Path("reached").touch()
    time.sleep(300)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, pytest.ExitCode.INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM)],
)
def test_a_signal_ends_the_suite(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_suite.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as suite:
        try:
            while not (tmp_path / "reached").exists():
                assert suite.poll() is None
                time.sleep(0.05)
            suite.send_signal(number)
            assert suite.wait(60) == code
        finally:
            suite.kill()
