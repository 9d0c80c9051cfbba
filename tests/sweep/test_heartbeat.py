"""A claim lives while its run makes progress, and not longer."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from leval_harness.sweep.answers import Answers
from leval_harness.sweep.claims import Claim, Folder
from leval_harness.sweep.groups import Group, grouped
from leval_harness.sweep.heartbeat import GAVE_UP, Heartbeat, LostClaimError
from leval_harness.sweep.run_record import RunRecord


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "sweep")


def begun(folder: Folder, **limits: float) -> tuple[Heartbeat, Claim]:
    claim = folder.claim("run")
    assert claim is not None
    log = folder.work / "logs" / "log.txt"
    log.write_text("what was printed")
    beat = Heartbeat(folder, log, **limits)
    beat.begin(claim)
    return beat, claim


def take_over(folder: Folder, claim: Claim) -> Claim:
    os.utime(claim.path, (1, 1))  # the owner was stopped, or its machine unreachable
    later = folder.claim("run")
    assert later is not None
    return later


def test_lost_claim_stops_at_the_next_answer(folder: Folder) -> None:
    beat, claim = begun(folder)
    beat.progress("answering")
    later = take_over(folder, claim)
    with pytest.raises(LostClaimError):
        beat.progress("answering")
    beat.end()
    assert folder.owns(later), "the late worker leaves the claim of the new one alone"


def test_lost_claim_is_not_kept_alive_by_its_former_owner(folder: Folder) -> None:
    beat, claim = begun(folder)
    later = take_over(folder, claim)
    folder.release(later.path)
    again = folder.claim("run")  # its file has the name of the first claim
    assert again is not None
    assert again.path == claim.path
    assert folder.owns(again)
    assert not folder.owns(claim)
    os.utime(again.path, (1, 1))
    beat._beat()
    assert again.path.stat().st_mtime == 1


def beaten(folder: Folder, limits: dict[str, float], seconds: float) -> int:
    """Exit code of a worker whose main thread hangs."""

    def work() -> None:
        beat, _ = begun(folder, **limits)
        beat.doing = "answering 3 requests of task from document d-1 on"
        time.sleep(seconds)
        beat._beat()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode or 0


def test_stall_limit_releases_the_claim_once_then_fails(folder: Folder) -> None:
    assert beaten(folder, {"stall_limit": 0.05}, 0.1) == GAVE_UP
    assert folder.state("run").is_open
    assert "no progress for 0.05 s while answering 3 requests" in folder.reason_of_retry("run")
    assert beaten(folder, {"stall_limit": 0.05}, 0.1) == GAVE_UP
    assert "from document d-1 on (the second time)" in str(folder.failure("run"))
    assert not folder.turns("run")


def test_time_limit_fails_at_once(folder: Folder) -> None:
    assert beaten(folder, {"time_limit": 0.05}, 0.1) == GAVE_UP
    assert str(folder.failure("run")).startswith("time_limit: no result after 0.05 s, while ans")
    assert (folder.path / "failed" / "run" / "log.txt").read_text() == "what was printed"


def test_limits_that_are_not_reached(folder: Folder) -> None:
    assert beaten(folder, {"time_limit": 60, "stall_limit": 60}, 0.05) == 0
    assert folder.failure("run") is None


PIPE = """
from leval_harness.sweep.progress import say
for number in range(2000):
    say(f"line {number}")
from pathlib import Path
import sys
Path(sys.argv[1]).write_text("the end")
"""


def test_closed_pipe_does_not_end_the_sweep(tmp_path: Path) -> None:
    end = tmp_path / "end"
    command = f"{sys.executable} -c '{PIPE}' {end} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "line 0\n"
    assert done.stderr == ""
    assert end.read_text() == "the end"


def record(name: str, length: int, gpus: int = 1, method: str = "rope") -> RunRecord:
    content: dict[str, Any] = {
        "schema_version": 1, "run_id": f"{name}-{length}-{method}", "model": {"name": name},
        "method": {"name": method}, "tasks": ["t"], "context_length": length,
    }  # fmt: skip
    return RunRecord(**content, group=name, gpus=gpus)


def test_groups_start_the_largest_and_longest_first() -> None:
    runs = [record("a", 10), record("a", 30), record("b", 50), record("c", 5, gpus=4)]
    groups = grouped([*runs, record("a", 20, method="reference")], ["0", "1", "2", "3"])
    assert [group.key for group in groups] == ["c", "a", "b"]
    of_a = next(group for group in groups if group.key == "a")
    assert isinstance(of_a, Group)
    assert [run.context_length for run in of_a.runs] == [20, 30, 10], "windows are read twice"


def request(kind: str = "loglikelihood") -> Instance:
    return Instance(kind, {"document_id": "d-7"}, ("text", "more"), 0, ("some_task", 7, 1))


def test_answers_without_arguments_are_not_stored(folder: Folder) -> None:
    """lm-eval's concurrent models pass parts of requests, which have no key."""
    beat, claim = begun(folder)
    run = record("a", 10).model_copy(update={"run_id": "run"})

    class Model:
        def loglikelihood(self, requests: list[Any]) -> list[Any]:
            self.cache_hook.add_partial("loglikelihood", None, (-1.0, False))  # type: ignore[attr-defined]
            return [(-1.0, False) for _ in requests]

    model = Model()
    with Answers(model, None, run, beat, claim.attempt):
        assert model.loglikelihood([request()]) == [(-1.0, False)]
