"""Hundreds of kills of a real sweep and its cells, in forks so that a cell starts at once.

`SWEEP_KILLS` (default 4) says how many of each kind, `SWEEP_KILL_SEED` where; on Ray, where
nothing can be forked, it is `SWEEP_RAY_KILLS` (default 1). The full run, in parts of other seeds:
`SWEEP_KILLS=160 SWEEP_RAY_KILLS=20 pytest tests/sweep/test_many_kills.py -s`
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
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks, forked, kill

from leval_harness.sweep.cell_files import why_not_done

KILLS = int(os.environ.get("SWEEP_KILLS", "4"))
RAY_KILLS = int(os.environ.get("SWEEP_RAY_KILLS", "1"))
SEED = int(os.environ.get("SWEEP_KILL_SEED", "20240"))
# More changes of the folder than either process makes: some runs are not killed.
LAST_CHANGE = {"sweep": 40, "cell": 24}
VOLATILE = {
    "created", "command", "seconds", "telemetry", "date", "start_time", "end_time", "files",
    "total_evaluation_time_seconds", "pretty_env_info", "host", "git_hash", "upper_git_hash",
}  # fmt: skip

pytestmark = [pytest.mark.hf, pytest.mark.slow]


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
    """A cell holds its lock until it is gone, which with its sweep dead is soon."""
    until = time.monotonic() + 60
    for lock in folder.glob("*/.lock"):
        with lock.open() as handle:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                assert time.monotonic() < until, "a cell outlived its sweep"
                time.sleep(0.01)


METHODS = (
    "methods={rope: {rope_type: default}, yarn: {rope_type: yarn, factor: 2}, "
    "pi: {rope_type: linear, factor: 2}, ntk: {rope_type: ntk_aware, factor: 2}}"
)
"""Four cells, so that two processes have two each."""


class Trial:
    """Sweeps that are killed in some way, again and again, each until it is done."""

    def __init__(self, tiny: Path, scratch: Path, *options: str) -> None:
        self.config, self.scratch = tiny / "sweep.yaml", scratch
        self.options = (f"--set={METHODS}", *options)
        self.dice = random.Random(SEED)
        self.kills, self.rounds = 0, 0
        self.out, self.known = scratch / "round0", dict[str, bytes]()
        self.quiet: dict[str, Any] = {}

    def measure(self, sweep: Forks) -> float:
        """Results of a run that nobody disturbs, and how many seconds it takes."""
        began = time.monotonic()
        assert sweep.run(self.config, self.scratch / "quiet", *self.options) == 0, sweep.said()
        self.quiet = results(self.scratch / "quiet" / "sweep")
        assert len(cells(self.scratch / "quiet" / "sweep")) == 4
        return time.monotonic() - began

    def disturb(self, sweep: Forks, usual: float, *options: str) -> None:
        """One run in which something is killed, perhaps after its end."""
        victim = self.dice.choice(["sweep", "cell"])
        given = (*self.options, *options)
        if self.dice.random() < 0.6:
            number = self.dice.randint(1, LAST_CHANGE[victim])
            code = sweep.run(self.config, self.out, *given, fault=f"{victim}:kill:{number}")
            how = f"at change {number}"
        else:
            moment = self.dice.uniform(0, usual)
            code = sweep.run(self.config, self.out, *given, after=moment, victim=victim)
            how = f"after {moment:.3f} s"
        hit = code == -9 if victim == "sweep" else "(killed)" in sweep.said()
        self.kills += hit
        print(f"{self.kills} {victim} {how}: {'killed' if hit else 'had ended'}")  # noqa: T201
        assert code in (0, 1, -9), sweep.said()

    def check(self, sweep: Forks, last: bool = False) -> None:
        """No finished cell was lost or repeated; a sweep that is done has the quiet results."""
        wait_until_nobody_computes(self.out / "sweep")
        now = finished(self.out / "sweep")
        assert self.known.items() <= now.items(), "a finished cell was lost or repeated"
        self.known = now
        if len(now) < 4 and not last:
            return
        assert sweep.run(self.config, self.out, *self.options) == 0, sweep.said()
        assert last or "4 done, 0 to do" in sweep.said()
        assert finished(self.out / "sweep").items() >= now.items()
        assert results(self.out / "sweep") == self.quiet
        self.rounds += 1
        self.out, self.known = self.scratch / f"round{self.rounds}", {}


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_no_kill_changes_a_result_or_repeats_a_cell(
    tiny: Path, forks: Forks, tmp_path: Path, jobs: int
) -> None:
    trial = Trial(tiny, tmp_path, f"--set=jobs={jobs}")
    usual = trial.measure(forks)
    while trial.kills < KILLS:
        trial.disturb(forks, usual)
        trial.check(forks)
    trial.check(forks, last=True)
    print(f"seed {SEED}, jobs {jobs}: {trial.kills} kills in {trial.rounds} sweeps")  # noqa: T201


@pytest.mark.long
def test_no_kill_of_a_shard_changes_a_result_or_repeats_a_cell(tiny: Path, tmp_path: Path) -> None:
    """Two shards on one folder, one of them killed; both start and end when they will."""
    trial = Trial(tiny, tmp_path)
    with forked(tmp_path, "one") as one, forked(tmp_path, "two") as two:
        usual = trial.measure(one)
        while trial.kills < KILLS:
            shards = [(one, "--shard=1/2"), (two, "--shard=2/2")]
            trial.dice.shuffle(shards)
            (killed, mine), (other, theirs) = shards
            late = trial.dice.uniform(0, usual / 2)

            def beside(other: Forks = other, theirs: str = theirs, late: float = late) -> None:
                time.sleep(late)
                other.run(trial.config, trial.out, *trial.options, theirs)

            thread = threading.Thread(target=beside)
            thread.start()
            trial.disturb(killed, usual, mine)
            thread.join()
            trial.check(one)
        trial.check(one, last=True)
    print(f"seed {SEED}, shards: {trial.kills} kills in {trial.rounds} sweeps")  # noqa: T201


@pytest.mark.long
@pytest.mark.ray
def test_no_kill_on_ray_changes_a_result_or_repeats_a_cell(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    """Whole processes: the sweep with its cluster, or a cell."""
    trial = Trial(tiny, tmp_path)
    trial.measure(forks)
    start = "from leval_harness.cli.main import main; main()"
    words = ["sweep", str(trial.config), *trial.options, "--executor", "ray"]
    while trial.kills < RAY_KILLS:
        command = [sys.executable, "-c", start, *words, "--out", str(trial.out)]
        process = subprocess.Popen(
            command,
            env={**os.environ, "RAY_ADDRESS": "local"},  # not that of another test
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        victim, moment = trial.dice.choice(["sweep", "cell"]), trial.dice.uniform(5, 40)
        killer = threading.Timer(moment, kill, (process.pid, victim, trial.out))
        killer.start()
        said, _ = process.communicate(timeout=900)
        killer.cancel()
        ended = process.returncode
        trial.kills += ended == -9 or b"(killed)" in said
        print(f"{trial.kills} ray {victim} after {moment:.1f} s: {ended}")  # noqa: T201
        assert ended in (0, 1, -9), said.decode()
        trial.check(forks)
    trial.check(forks, last=True)
    print(f"seed {SEED}, ray: {trial.kills} kills in {trial.rounds} sweeps")  # noqa: T201
