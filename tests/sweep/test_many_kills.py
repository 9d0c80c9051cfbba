"""Hundreds of kills of a real sweep and its cells, in forks so that a cell starts at once.

`SWEEP_KILLS` (default 25, for CI) says how many, `SWEEP_KILL_SEED` where. The full run:
`SWEEP_KILLS=200 pytest tests/sweep/test_many_kills.py -s`
"""

import contextlib
import fcntl
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leval_sweep.cell_files import why_not_done

KILLS = int(os.environ.get("SWEEP_KILLS", "25"))
SEED = int(os.environ.get("SWEEP_KILL_SEED", "20240"))
# More changes of the folder than either process makes: some runs are not killed.
LAST_CHANGE = {"sweep": 17, "cell": 21}
VOLATILE = {
    "created", "command", "seconds", "telemetry", "date", "start_time", "end_time", "files",
    "total_evaluation_time_seconds", "pretty_env_info", "host", "git_hash", "upper_git_hash",
}  # fmt: skip

pytestmark = [pytest.mark.hf, pytest.mark.slow]


class Forks:
    """A process that forks sweeps on request."""

    def __init__(self, scratch: Path) -> None:
        self.log = scratch / "sweep.log"
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "faults" / "forks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(
        self,
        config: Path,
        out: Path,
        fault: str = "none:none:0",
        after: float | None = None,
        victim: str = "sweep",
    ) -> int:
        """One sweep; with `after`, its process or its cell's is killed after so many seconds."""
        request = {"arguments": [str(config), "--out", str(out)], "fault": fault}
        request |= {"root": str(out), "log": str(self.log)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pid = int(self.read().removeprefix("pid "))
        if after is not None:
            killer = threading.Timer(after, kill, (pid, victim))
            killer.start()
        ended = int(self.read().removeprefix("ended "))
        if after is not None:
            killer.cancel()
        return ended

    def said(self) -> str:
        return self.log.read_text()


def kill(sweep: int, victim: str) -> None:
    with contextlib.suppress(OSError):
        if victim == "sweep":
            os.kill(sweep, 9)
            return
        for word in Path(f"/proc/{sweep}/task/{sweep}/children").read_text().split():
            os.kill(int(word), 9)


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(tmp_path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: without_times(v) for k, v in content.items() if k not in VOLATILE}
    return [without_times(each) for each in content] if isinstance(content, list) else content


def cells(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/cell.json"))


def results(folder: Path) -> dict[str, Any]:
    found = {}
    for cell in cells(folder):
        assert why_not_done(cell, cell.name) is None
        assert not [path for path in cell.iterdir() if path.name.startswith(("partial", ".done"))]
        named = set(json.loads((cell / "done.json").read_text())["files"])
        assert {path.name for path in cell.iterdir()} - {"done.json", ".lock"} == named
        for path in sorted(cell.glob("*.json*")):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            kind = path.name.split("_20")[0]
            found[f"{cell.name}/{kind}"] = [without_times(json.loads(line)) for line in lines]
    return found


def finished(folder: Path) -> dict[str, bytes]:
    whole = [cell for cell in cells(folder) if why_not_done(cell, cell.name) is None]
    return {cell.name: (cell / "done.json").read_bytes() for cell in whole}


def wait_until_nobody_computes(folder: Path) -> None:
    """A cell holds its lock until it is gone; with its sweep dead it must go at once."""
    until = time.monotonic() + 5
    for lock in folder.glob("*/.lock"):
        with lock.open() as handle:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                assert time.monotonic() < until, "a cell outlived its sweep"
                time.sleep(0.01)


def test_no_kill_changes_a_result_or_repeats_a_cell(
    tiny: Path, tmp_path: Path, forks: Forks
) -> None:
    dice = random.Random(SEED)
    config = tiny / "sweep.yaml"
    began = time.monotonic()
    assert forks.run(config, tmp_path / "quiet") == 0, forks.said()
    quiet, usual = results(tmp_path / "quiet" / "sweep"), time.monotonic() - began
    assert len(cells(tmp_path / "quiet" / "sweep")) == 2
    done = {"sweep": 0, "cell": 0}
    rounds, out, known = 0, tmp_path / "round0", {}
    while sum(done.values()) < KILLS:
        victim = dice.choice(["sweep", "cell"])
        if dice.random() < 0.6:
            number = dice.randint(1, LAST_CHANGE[victim])
            code = forks.run(config, out, fault=f"{victim}:kill:{number}")
            how = f"at change {number}"
        else:
            moment = dice.uniform(0, usual)
            code = forks.run(config, out, after=moment, victim=victim)
            how = f"after {moment:.3f} s"
        hit = code == -9 if victim == "sweep" else "(killed)" in forks.said()
        done[victim] += hit
        line = f"{sum(done.values())}/{KILLS} {victim} {how}: {'killed' if hit else 'had ended'}"
        print(line)  # noqa: T201
        assert code in (0, 1, -9), forks.said()
        wait_until_nobody_computes(out / "sweep")
        now = finished(out / "sweep")
        assert known.items() <= now.items(), f"a finished cell was lost or repeated: {line}"
        known = now
        if len(known) == 2:
            assert forks.run(config, out) == 0
            assert "2 done, 0 to do" in forks.said()
            assert results(out / "sweep") == quiet, line
            rounds += 1
            out, known = tmp_path / f"round{rounds}", {}
    assert forks.run(config, out) == 0, forks.said()
    assert finished(out / "sweep").items() >= known.items()
    assert results(out / "sweep") == quiet
    assert done["sweep"] > KILLS // 5
    assert done["cell"] > KILLS // 5
    print(f"seed {SEED}: {done} kills in {rounds + 1} sweeps")  # noqa: T201
