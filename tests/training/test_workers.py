"""Processes that train side by side: same numbers, errors come back, nobody is left behind."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from leval_harness.training.posgen_train import in_processes

pytestmark = pytest.mark.hf

SLEEPING = """
import time
from leval_harness.training.posgen_train import in_processes
list(in_processes(time.sleep, [(300,), (300,)], 2))
"""


def test_what_calls_return_comes_one_by_one_and_an_error_ends_it():
    """Each process has its share of the cores."""
    cores = len(psutil.Process().cpu_affinity())
    calls = [(f"divmod({n}, 4) + (__import__('torch').get_num_threads(),)",) for n in (7, 13)]
    assert sorted(in_processes(eval, calls, jobs=max(2, cores))) == [1, 1, 1, 1, 3, 3]
    with pytest.raises(ZeroDivisionError):
        list(in_processes(divmod, [(7, 0)], jobs=2))


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_workers_end_with_the_one_that_started_them(how):
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPING], stderr=subprocess.PIPE,
        # A test in the background inherits an ignored SIGINT; a training in a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        workers = _wait_for(lambda: _workers(parent.pid), 60)
        parent.send_signal(how)
        parent.wait(180)
        assert _wait_for(lambda: not any(worker.is_running() for worker in workers), 60)
    finally:
        parent.kill()


def _workers(pid):
    """Both workers, once they have threads of their own: their set-up is over."""
    found = [p for p in psutil.Process(pid).children() if "spawn_main" in " ".join(p.cmdline())]
    return found if len(found) == 2 and all(p.num_threads() > 1 for p in found) else None


def _wait_for(what, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")
