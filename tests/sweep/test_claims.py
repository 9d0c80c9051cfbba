"""Claims on runs: one owner, among many processes and without locks; the dead are followed."""

import fcntl
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from leval_harness.sweep.claims import STALE_SECONDS, Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "sweep")


def attempt(folder: Folder, run: str = "run") -> Path:
    """A finished computation of a run, not in place yet."""
    path = folder.work / f"{run}.{time.monotonic_ns()}"
    path.mkdir()
    (path / "run.json").write_text("{}")
    return path


def compute_all(path: Path, runs: list[str], record: Path) -> None:
    """Claim and compute what can be claimed; each computation is a line of the record."""
    folder = Folder(path)
    for run in runs:
        claim = folder.claim(run)
        if claim is not None:
            with record.open("a") as lines:
                lines.write(f"{run}\n")
            folder.publish(run, attempt(folder, run))
            folder.release(claim.path)


def test_claims_many_processes_compute_each_run_once(tmp_path: Path) -> None:
    runs = [f"{n:016x}" for n in range(60)]
    record, context = tmp_path / "record", multiprocessing.get_context("fork")
    words = (tmp_path / "sweep", runs, record)
    running = [context.Process(target=compute_all, args=words) for _ in range(6)]
    for each in running:
        each.start()
    for each in running:
        each.join()
        assert each.exitcode == 0
    assert sorted(record.read_text().split()) == runs


def test_no_lock_on_a_file_is_taken(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(fcntl, "lockf", refused)
    claim = folder.claim("run")
    assert claim is not None
    assert Folder(folder.path).claim("run") is None
    folder.publish("run", attempt(folder))
    folder.release(claim.path)
    assert folder.state("run").done


def test_publish_leaves_finished_run_as_it_is(folder: Folder) -> None:
    first, second = attempt(folder), attempt(folder)
    (second / "run.json").write_text('{"later": true}')
    folder.publish("run", first)
    folder.publish("run", second)
    assert (folder.path / "runs/run/run.json").read_text() == "{}"
    assert not second.exists()
    assert folder.claim("run") is None


def claimed_by(folder: Folder, **owner: object) -> Path:
    claim = folder.claim("run")
    assert claim is not None
    claim.path.write_text(json.dumps({**json.loads(claim.path.read_text()), **owner}))
    return claim.path


def test_claim_of_dead_local_process_is_free_at_once(folder: Folder) -> None:
    dead = multiprocessing.get_context("fork").Process(target=int)
    dead.start()
    dead.join()
    claimed_by(folder, pid=dead.pid)
    assert folder.state("run").is_open
    again = folder.claim("run")
    assert again is not None
    assert again.path.name == "run.2"


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"space": "of another container"}])
def test_claim_from_elsewhere_is_free_once_it_is_stale(
    folder: Folder, other: dict[str, str]
) -> None:
    claim = claimed_by(folder, pid=2**22 + 1, **other)  # no process has this id
    for age, free in ((0, False), (STALE_SECONDS - 30, False), (STALE_SECONDS + 30, True)):
        os.utime(claim, (time.time() - age, time.time() - age))
        assert folder.state("run").is_open == free
        assert (folder.claim("run") is not None) == free


def test_a_failure_is_tried_again_by_the_next_start(folder: Folder) -> None:
    folder.write_failure("run", "no luck", b"what was printed")
    assert folder.state("run").failure == "no luck"
    assert folder.claim("run") is None
    assert (folder.path / "failed/run/log.txt").read_bytes() == b"what was printed"
    folder.forget_failure("run")
    assert folder.state("run").is_open
    assert folder.claim("run") is not None


def test_a_half_written_claim_belongs_to_somebody(folder: Folder) -> None:
    (folder.work / "claims" / "run.1").write_text('{"host": ')
    assert folder.claim("run") is None
    assert not folder.state("run").is_open
