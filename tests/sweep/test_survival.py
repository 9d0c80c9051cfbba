"""A real sweep that is killed, starved and lied to: resumed, its results are those of a quiet run.

`SWEEP_KILL_POINTS` (default 2, for CI) says how many times to kill, `SWEEP_KILL_SEED` where; the
full run is `SWEEP_KILL_POINTS=100 pytest tests/sweep/test_survival.py -k killed -s`. Forks, which
start at once, are killed more often: `test_many_kills.py`.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Forks

from leval_harness.sweep.cell_files import why_not_done
from leval_harness.sweep.executors import LocalExecutor

FAULTS = Path(__file__).parent / "faults"
POINTS = int(os.environ.get("SWEEP_KILL_POINTS", "2"))
SEED = int(os.environ.get("SWEEP_KILL_SEED", "20240"))
# What tells two runs of the same cell apart without being a result.
VOLATILE = {
    "created", "command", "seconds", "telemetry", "date", "start_time", "end_time", "files",
    "total_evaluation_time_seconds", "pretty_env_info", "host", "git_hash", "upper_git_hash",
}  # fmt: skip

pytestmark = [pytest.mark.hf, pytest.mark.slow]


def sweep_command(config: Path, out: Path, *options: str) -> list[str]:
    """The command line of a sweep, as a process of its own."""
    start = "from leval_harness.cli.main import main; main()"
    return [sys.executable, "-c", start, "sweep", str(config), "--out", str(out), *options]


def run_sweep(
    config: Path, out: Path, *options: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a sweep to its end, however that is."""
    return subprocess.run(
        sweep_command(config, out, *options),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: without_times(v) for k, v in content.items() if k not in VOLATILE}
    return [without_times(each) for each in content] if isinstance(content, list) else content


def results(folder: Path) -> dict[str, Any]:
    """Everything a reader takes from a sweep's folder, by cell and kind of file."""
    found: dict[str, Any] = {}
    for cell in sorted(path for path in folder.iterdir() if (path / "cell.json").exists()):
        assert why_not_done(cell, cell.name) is None, cell
        named = set(json.loads((cell / "done.json").read_text())["files"])
        lying = {path.name for path in cell.iterdir()} - {"done.json", ".lock"}
        assert lying == named, "files that belong to no finished attempt"
        assert not list(cell.glob("partial*"))
        assert not (cell / "failed.json").exists()
        for path in sorted(cell.glob("*.json*")):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            kind = path.name.split("_20")[0]
            found[f"{cell.name}/{kind}"] = [without_times(json.loads(line)) for line in lines]
    return found


def finished(folder: Path) -> dict[str, bytes]:
    """Markers of the cells that are done and whole."""
    if not folder.is_dir():
        return {}
    cells = (path for path in folder.iterdir() if (path / "cell.json").exists())
    return {
        cell.name: (cell / "done.json").read_bytes()
        for cell in cells
        if why_not_done(cell, cell.name) is None
    }


@pytest.fixture(scope="module")
def quiet(tiny: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("quiet")
    assert forks.run(tiny / "sweep.yaml", out) == 0, forks.said()
    assert len(finished(out / "sweep")) == 2
    return results(out / "sweep")


@pytest.fixture(scope="module")
def changes(
    tiny: Path, quiet: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, int]:
    """How often each role changes the folder in a run that nobody disturbs."""
    out = tmp_path_factory.mktemp("changes")
    record = out / "counts"
    for role in ("sweep", "cell"):
        env = fault(f"{role}:count:0", out / role)
        ended = run_sweep(
            tiny / "sweep.yaml", out / role, env={**env, "SWEEP_FAULT_COUNT": str(record)}
        )
        assert "2 to do" in ended.stdout, ended.stderr
        assert results(out / role / "sweep") == quiet
    counts: dict[str, int] = {}
    for line in record.read_text().splitlines():
        role, number = line.split()
        counts[role] = max(counts.get(role, 0), int(number))
    return counts


def fault(text: str, out: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "SWEEP_FAULT": text, "SWEEP_FAULT_ROOT": str(out), **more}


def cells_running(out: Path) -> list[int]:
    """Process ids of cells that work below `out`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "leval_harness.sweep.cell_main" in words and any(
                w.startswith(str(out)) for w in words
            ):
                found.append(int(path.parent.name))
    return found


def kill_at_a_moment(config: Path, out: Path, victim: str, seconds: float) -> bool:
    """Kill the sweep or its cell after a time; False if it had ended before."""
    process = subprocess.Popen(
        sweep_command(config, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    targets = [process.pid] if victim == "sweep" else cells_running(out)
    alive = process.poll() is None and bool(targets)
    for pid in targets if alive else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(300)
    return alive


@pytest.mark.long
def test_killed_at_any_moment_and_resumed(
    tiny: Path, quiet: dict[str, Any], changes: dict[str, int], tmp_path: Path
) -> None:
    """Kill sweep and cells, half at a chosen change of the folder and half at a chosen time."""
    dice = random.Random(SEED)
    config, kills, rounds = tiny / "sweep.yaml", 0, 0
    out = tmp_path / "round0"
    known: dict[str, bytes] = {}
    print(f"seed {SEED}, {POINTS} kills, changes of the folder: {changes}")  # noqa: T201
    while kills < POINTS:
        role = dice.choice(["sweep", "cell"])
        if dice.random() < 0.5:
            moment = dice.uniform(0.0, 9.0)
            killed = kill_at_a_moment(config, out, role, moment)
            what = f"after {moment:.2f} s"
        else:
            number = dice.randint(1, changes[role])
            ended = run_sweep(config, out, env=fault(f"{role}:kill:{number}", out))
            killed = ended.returncode == -signal.SIGKILL or "SIGKILL" in ended.stdout
            what = f"at change {number}"
        kills += killed
        print(f"{kills}/{POINTS} {role} {what}: {'killed' if killed else 'it had ended'}")  # noqa: T201
        wait_for_orphans(out)
        now = finished(out / "sweep")
        assert known.items() <= now.items(), "a finished cell was computed again, or lost"
        known = now
        if len(known) == 2:
            ended = run_sweep(config, out)
            assert "2 done, 0 to do" in ended.stdout, ended.stderr
            assert results(out / "sweep") == quiet
            rounds += 1
            out, known = tmp_path / f"round{rounds}", {}
    run_sweep(config, out)
    assert finished(out / "sweep").items() >= known.items()
    assert results(out / "sweep") == quiet


def wait_for_orphans(out: Path) -> None:
    """A cell dies with its sweep; a busy machine takes its time."""
    until = time.monotonic() + 60
    while cells_running(out):
        assert time.monotonic() < until, "a cell outlived its sweep"
        time.sleep(0.05)


def test_a_disk_without_room_ends_the_sweep_and_costs_nothing(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    """The cell may write 3 kB a file: its log begins, its results do not fit."""
    config = tiny / "sweep.yaml"
    assert forks.run(config, tmp_path, SWEEP_FILE_LIMIT="3000") == 1
    assert "disk: " in forks.said()
    assert "1 cell not started: the disk is full" in forks.said()
    assert not finished(tmp_path / "sweep")
    assert forks.run(config, tmp_path) == 0, forks.said()
    assert results(tmp_path / "sweep") == quiet


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, made anew with a size."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)]
    subprocess.run(command, check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.needs("mount")
@pytest.mark.parametrize(
    "kib", [20, *(pytest.param(kib, marks=pytest.mark.long) for kib in (4, 40, 100))]
)
def test_a_really_full_disk_at_any_point_costs_nothing(
    tiny: Path, quiet: dict[str, Any], forks: Forks, small_disk: Path, kib: int
) -> None:
    """Room for not even the request; not for the results; not for the second cell; for no page."""
    config = tiny / "sweep.yaml"

    def room(size: str) -> None:
        remount = ["mount", "-o", f"remount,size={size}", str(small_disk)]
        subprocess.run(remount, check=True)

    room(f"{kib}k")
    ended = forks.command("sweep", config, "--out", small_disk)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    known = finished(small_disk / "sweep")
    told = "disk: " in ended.stderr and "not started: the disk is full" in ended.stderr
    assert told or "the results are there, the table is not" in ended.stderr, ended.stderr
    assert shutil.disk_usage(small_disk).free < 20_000, "the disk was never full"
    room("64m")
    if kib == 100:
        again = forks.command("sweep", config, "--out", small_disk)
        assert again.returncode == 0, again.stderr
        assert (small_disk / "sweep" / "page" / "index.html").is_file()
    else:
        assert forks.run(config, small_disk) == 0, forks.said()
    assert known.items() <= finished(small_disk / "sweep").items()
    assert results(small_disk / "sweep") == quiet


@pytest.mark.parametrize("damage", ["cut", "altered", "marker cut", "marker gone", "file gone"])
def test_a_damaged_cell_is_computed_again_and_only_that(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path, damage: str
) -> None:
    config = tiny / "sweep.yaml"
    assert forks.run(config, tmp_path) == 0, forks.said()
    before = finished(tmp_path / "sweep")
    victim, kept = sorted(before)
    folder = tmp_path / "sweep" / victim
    samples = next(folder.glob("samples_*.jsonl"))
    if damage == "cut":
        samples.write_bytes(samples.read_bytes()[:-40])
    elif damage == "altered":
        samples.write_bytes(samples.read_bytes().replace(b'"exact_match": 0', b'"exact_match": 1'))
    elif damage == "marker cut":
        (folder / "done.json").write_bytes((folder / "done.json").read_bytes()[:-30])
    elif damage == "marker gone":
        (folder / "done.json").unlink()
    else:
        next(folder.glob("results_*.json")).unlink()
    assert set(finished(tmp_path / "sweep")) == {kept}
    assert forks.run(config, tmp_path) == 0, forks.said()
    assert "1 done, 1 to do" in forks.said()
    if damage != "marker gone":
        assert "it is computed again" in forks.said()
    assert finished(tmp_path / "sweep")[kept] == before[kept]
    assert results(tmp_path / "sweep") == quiet


BAD = """
import os, signal, sys, time

def out_of_memory(docs):
    import torch
    return torch.empty(1 << 55, dtype=torch.uint8)

def hang(docs):
    print("about to hang", flush=True)
    time.sleep(3600)

def crash(docs):
    os.kill(os.getpid(), signal.SIGSEGV)

def wrong(docs):
    raise ValueError("these documents are not right")
"""


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("out_of_memory", "oom", "memory"),
        ("hang", "timeout", "not done after 10 s, so it was ended; last output: about to hang"),
        ("crash", "killed", "SIGSEGV"),
        ("wrong", "error", "ValueError: these documents are not right"),
    ],
)
def test_a_cell_that_fails_costs_itself_and_is_told(
    tiny: Path, forks: Forks, tmp_path: Path, function: str, kind: str, said: str
) -> None:
    """One bad cell before one good one: the good one is done, the bad one named with reason."""
    (tmp_path / "bad.py").write_text(BAD)
    task = (tiny / "tiny_gen.yaml").read_text().replace("tiny_gen", "bad_task", 1)
    (tmp_path / "bad_task.yaml").write_text(f"{task}\nprocess_docs: !function bad.{function}\n")
    out = tmp_path / "out"
    options = [f"--set=tasks=[{tmp_path}/bad_task.yaml, {tiny}/tiny_gen.yaml]"]
    limit = 10 if function == "hang" else 600  # a fork has loaded its libraries
    options += [f"--set=timeout={limit}", "--set=methods={rope: {rope_type: default}}"]
    assert forks.run(tiny / "sweep.yaml", out, *options) == 1
    assert f"  {kind}: " in forks.said()
    assert said in forks.said()
    assert "Try again with:" in forks.said()
    assert len(finished(out / "sweep")) == 1
    noted = [json.loads(path.read_text()) for path in out.rglob("failed.json")]
    assert [(each["kind"], each["attempts"]) for each in noted] == [(kind, 1)]
    if function == "wrong":
        assert forks.run(tiny / "sweep.yaml", out, *options, "--no-retry-failed") == 1
        assert "0 to do" in forks.said()
        assert said in forks.said()
        assert forks.run(tiny / "sweep.yaml", out, *options) == 1
        assert "1 to do" in forks.said()
        assert json.loads(next(out.rglob("failed.json")).read_text())["attempts"] == 2


def test_a_changed_config_makes_new_cells_and_the_old_ones_come_back(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    config = tiny / "sweep.yaml"

    def run(*options: str) -> str:
        assert forks.run(config, tmp_path, *options) == 0, forks.said()
        return forks.said()

    run()
    before = finished(tmp_path / "sweep")
    changed = run("--set", "methods.yarn.factor=4")
    assert "1 cells of an earlier config moved to" in changed
    assert "1 done, 1 to do" in changed
    now = finished(tmp_path / "sweep")
    assert len(now) == 2
    assert len(now.keys() & before.keys()) == 1
    back = run()
    assert "2 done, 0 to do" in back
    assert finished(tmp_path / "sweep") == before
    renamed = run("--set", "models.tiny.name=renamed")
    assert "2 done, 0 to do" in renamed, "a name decides no number"
    labels = [json.loads(path.read_text()) for path in (tmp_path / "sweep").glob("*/cell.json")]
    assert {each["model"]["name"] for each in labels} == {"renamed"}


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_cells_at_a_time_share_the_cores_and_may_be_more(cores, monkeypatch):
    monkeypatch.setattr("leval_harness.sweep.executors.available_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs in range(2, 12):
        executor = LocalExecutor(jobs)
        assert executor.jobs == jobs
        threads = int(executor.environment["OMP_NUM_THREADS"])
        assert threads == 1 or threads * jobs <= cores < (threads + 1) * jobs
        assert threads > 0


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_ctrl_c_ends_the_cells_and_prints_how_to_resume(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path, jobs: int
) -> None:
    config = tiny / "sweep.yaml"
    process = subprocess.Popen(
        sweep_command(config, tmp_path, "--set", f"jobs={jobs}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background inherits an ignored SIGINT; a sweep in a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while len(cells_running(tmp_path)) < jobs:
        assert time.monotonic() < until
        time.sleep(0.05)
    cells = cells_running(tmp_path)
    for cell in cells:  # which would be done, on a busy machine, before a second sweep looks
        os.kill(cell, signal.SIGSTOP)
    second = forks.command("sweep", config, "--out", tmp_path)
    for cell in cells:
        os.kill(cell, signal.SIGCONT)
    assert second.returncode == 1
    assert "another sweep works on" in second.stderr
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"leval-harness sweep {config} --out {tmp_path} --set jobs={jobs}" in errors
    assert not cells_running(tmp_path)
    assert "Traceback" not in errors
    assert forks.run(config, tmp_path, f"--set=jobs={jobs}") == 0, forks.said()
    assert results(tmp_path / "sweep") == quiet
