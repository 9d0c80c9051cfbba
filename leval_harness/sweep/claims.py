"""Claims on runs and their parts, by exclusive creation of files and nothing else.

Any number of machines may share a folder, also one without file locks. A claim is a file
`<name>.<turn>` in `.work/claims`; the highest turn counts. Its owner touches it every second. When
that stops, or the owner's process on this machine is gone, another worker creates the next turn,
which only one of several can.

The claim on part 3 of a run is named `<run>+3`. Who claims part 0 of a run that nobody has begun
begins it. Finished parts leave a mark in `.work/parts/<run>`; when all have one, a worker claims
`<run>` itself and puts the results together from the stored answers.
"""

import contextlib
import json
import os
import platform
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from leval_harness.results.layout import FAILED, FAILED_RUNS, LOG, RUN_FILE, RUNS_FOLDER, WORK
from leval_harness.sweep.run_progress import RunProgress, read_progress, together
from resonance_vllm.common.files import (
    fsync_folder,
    read_json_object,
    unique_name,
    write_json,
    write_text,
)

STALE_SECONDS = 180.0
"""Age of its last touch from which on the owner of a claim counts as dead."""
COUNT = "count"
"""File in the folder of a run's parts: how many it has."""
ALONE = "alone"
"""File there: why no further worker joins the run."""
_SPACE = Path("/proc/self/ns/pid")
HERE = {"host": platform.node(), "space": str(_SPACE.readlink()) if _SPACE.is_symlink() else ""}
"""Where a process id means this process: containers on one host have process ids of their own."""


def _turn(claim: Path) -> int:
    """Return which claim of its name a file is, from 1."""
    return int(claim.suffix[1:])


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None


def _is_part(some: Mapping[str, Any], whole: Mapping[str, Any] | None) -> bool:
    """Return whether a mapping has all items of another one."""
    return whole is not None and some.items() <= whole.items()


class RunState(NamedTuple):
    """What is known of a run: its results are there, it has failed, or somebody computes it.

    Attributes:
        done: its results are in place.
        failure: why it has no results.
        owners: what the claims on it and its parts say, and as `seen` when the owner last gave a
            sign of life; one for each worker.
        parts: how many it has; None while no worker has made its requests.
        finished: the parts whose answers are stored.
        claimed: the parts that somebody computes.
        alone: why no further worker joins those that compute it; empty if one may.
    """

    done: bool
    failure: str | None = None
    owners: Sequence[dict[str, Any]] = ()
    parts: int | None = None
    finished: frozenset[int] = frozenset()
    claimed: frozenset[int] = frozenset()
    alone: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to compute."""
        return self.done or self.failure is not None

    @property
    def is_open(self) -> bool:
        """Return whether nobody computes it, so that anybody may."""
        return not self.is_over and not self.owners

    @property
    def owner(self) -> dict[str, Any] | None:
        """Return what one of the owners says, with the GPUs of all; None if nobody computes it."""
        if not self.owners:
            return None
        gpus = sorted({str(owner["gpus"]) for owner in self.owners if owner.get("gpus")})
        return {**self.owners[0], "gpus": ",".join(gpus)}

    def free_parts(self, expected: int = 1) -> list[int]:
        """Return the parts that another worker could compute.

        Args:
            expected: number of parts where the run has not been divided yet.

        Returns:
            Their numbers. Part 0 means a run all of whose parts are finished, while nobody
            puts the results together.
        """
        if self.is_over or (self.alone and self.owners):
            return []
        numbers = range(self.parts or max(1, expected))
        free = [at for at in numbers if at not in self.finished and at not in self.claimed]
        if not free and not self.owners:
            return [0]
        return free

    def share_left(self) -> float:
        """Return the share of the parts that are not finished, from 0 to 1."""
        if self.is_over:
            return 0.0
        if not self.parts:
            return 1.0
        return 1 - len(self.finished) / self.parts


class Claim(NamedTuple):
    """A claim that this process has made.

    Attributes:
        run: id of the run.
        path: the claim's file; a later claim may have a file of the same name.
        token: distinguishes this claim from a later one.
        part: number of the claimed part; None for the run itself.
    """

    run: str
    path: Path
    token: str
    part: int | None = None

    @property
    def attempt(self) -> str:
        """Return the name of the folder and of the answers of this attempt at the run."""
        return f"{self.run}.{self.token}"


def claim_name(run: str, part: int | None = None) -> str:
    """Return the name of the claims on a part of a run, or on the run itself."""
    return run if part is None else f"{run}+{part}"


def run_of(claim: Path) -> str:
    """Return the run of a claim's file."""
    return claim.stem.partition("+")[0]


class Folder:
    """The results folder of a sweep, as those see it that compute its runs.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        for name in ("claims", "parts", "progress", "logs", "cache", "retries"):
            (path / WORK / name).mkdir(parents=True, exist_ok=True)
        (path / RUNS_FOLDER).mkdir(exist_ok=True)
        self.path = path.resolve()
        self.work = self.path / WORK

    # What has become of a run.

    def is_done(self, run: str) -> bool:
        """Return whether the results of a run are there."""
        return (self.path / RUNS_FOLDER / run / RUN_FILE).exists()

    def failure(self, run: str) -> str | None:
        """Return why a run has failed; it is not tried again before the next start."""
        content = read_json_object(self.path / FAILED_RUNS / run / FAILED)
        if content is None:
            return None
        return str(content.get("reason", ""))

    def state(self, run: str) -> RunState:
        """Return what is known of a run."""
        return self.states([run])[run]

    def states(self, runs: Iterable[str]) -> dict[str, RunState]:
        """Return what is known of some runs; the folder of claims is read once for all of them."""
        # Claims are read first: a run that is published and released in between is then done.
        claims = self._last_claims()
        begun = {path.name for path in (self.work / "parts").iterdir()}
        finished = {path.name for path in (self.path / RUNS_FOLDER).iterdir()}
        states = {}
        for run in runs:
            if run in finished and self.is_done(run):
                states[run] = RunState(done=True)
                continue
            state = RunState(done=False, failure=self.failure(run))
            if state.failure is None:
                state = self._with_claims(state, claims.get(run, ()))
            if run in begun:
                state = self._with_parts(state, run)
            states[run] = state
        return states

    def _last_claims(self) -> Mapping[str, Sequence[Path]]:
        """Return the claims that count: id of a run -> those on it and its parts."""
        last: dict[str, Path] = {}
        for path in (self.work / "claims").iterdir():
            if path.stem not in last or _turn(path) > _turn(last[path.stem]):
                last[path.stem] = path
        claims: dict[str, list[Path]] = defaultdict(list)
        for path in last.values():
            claims[run_of(path)].append(path)
        return claims

    def _with_claims(self, state: RunState, claims: Iterable[Path]) -> RunState:
        """Return a state with the owners of the claims that are alive."""
        owners = []
        claimed = set()
        for path in claims:
            owner = self._owner(path)
            if owner is None:
                continue
            owners.append(owner)
            part = path.stem.partition("+")[2]
            if part:
                claimed.add(int(part))
        return state._replace(owners=tuple(owners), claimed=frozenset(claimed))

    def _with_parts(self, state: RunState, run: str) -> RunState:
        """Return a state with what is known of the parts of a run that has been begun."""
        parts = None
        alone = ""
        finished = set()
        folder = self.work / "parts" / run
        with contextlib.suppress(OSError):  # removed in this moment: its results are published
            for path in folder.iterdir():
                if path.name == COUNT:
                    parts = _number(path)
                elif path.name == ALONE:
                    alone = path.read_text(encoding="utf-8")
                elif path.name.isdecimal():
                    finished.add(int(path.name))
        return state._replace(parts=parts, finished=frozenset(finished), alone=alone)

    def write_failure(self, run: str, reason: str, log: bytes = b"") -> None:
        """Record why a run has no results."""
        folder = self.path / FAILED_RUNS / run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_bytes(log)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(folder / FAILED, {"reason": reason, "when": when})

    def forget_failure(self, run: str) -> None:
        """Let a run that has failed be tried again."""
        shutil.rmtree(self.path / FAILED_RUNS / run, ignore_errors=True)
        (self.work / "retries" / run).unlink(missing_ok=True)
        (self.work / "parts" / run / ALONE).unlink(missing_ok=True)

    def retry_once(self, run: str, reason: str, log: bytes = b"") -> None:
        """Leave a run whose worker died to another worker; the second time, record its failure."""
        try:
            with (self.work / "retries" / run).open("x", encoding="utf-8") as handle:
                handle.write(reason)
        except FileExistsError:
            self.write_failure(run, f"{reason} (the second time)", log)

    def leave_to_others(self, run: str, reason: str) -> bool:
        """Let no further worker join those that compute a run, and return whether there are any.

        Several copies of a model may take more memory than there is. What then ends one of the
        workers says nothing about the run, which the others finish.
        """
        here = {**HERE, "pid": os.getpid()}
        claims = self._last_claims().get(run, ())
        owners = [owner for path in claims if (owner := self._owner(path)) is not None]
        if not any(not here.items() <= owner.items() for owner in owners):
            return False
        folder = self.work / "parts" / run
        folder.mkdir(exist_ok=True)
        write_text(folder / ALONE, reason)
        return True

    def retried(self) -> set[str]:
        """Return the runs whose first worker died, while they have no results."""
        return {path.name for path in (self.work / "retries").iterdir()}

    def reason_of_retry(self, run: str) -> str:
        """Return why the first worker of a run died; empty if none did."""
        try:
            return (self.work / "retries" / run).read_text(encoding="utf-8")
        except OSError:
            return ""

    def publish(self, run: str, attempt: Path) -> None:
        """Move finished results into place by one rename; results that are there already stay."""
        if self.is_done(run):
            shutil.rmtree(attempt, ignore_errors=True)
            return
        for path in attempt.iterdir():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        try:
            attempt.rename(self.path / RUNS_FOLDER / run)
        except OSError:
            if not self.is_done(run):  # else another worker was faster, a moment ago
                raise
        fsync_folder(self.path / RUNS_FOLDER)
        for unfinished in self.work.glob(f"{run}.*"):  # of workers that were killed or too late
            shutil.rmtree(unfinished, ignore_errors=True)
        self.forget_failure(run)
        self.forget_parts(run)

    def forget_parts(self, run: str) -> None:
        """Remove the parts, the claims on them and the progress of a run.

        The worker that still holds such a claim was stopped for long; it ends its part when it
        resumes.
        """
        shutil.rmtree(self.work / "parts" / run, ignore_errors=True)
        for path in self.work.glob(f"claims/{run}+*"):
            path.unlink(missing_ok=True)
        self.forget_progress(run)

    def forget_progress(self, run: str) -> None:
        """Remove what workers have written of their progress in a run."""
        for path in self.work.glob(f"progress/{run}.*"):
            path.unlink(missing_ok=True)

    def forget_answers(self, run: str) -> None:
        """Remove the stored answers of a finished run."""
        for path in (self.work / "cache").glob(f"{run}.*"):
            path.unlink(missing_ok=True)

    def progress(self, run: str) -> RunProgress | None:
        """Return how far a running run is, all its workers together; None if none has written it."""
        of_workers = map(read_progress, (self.work / "progress").glob(f"{run}.*"))
        return together([progress for progress in of_workers if progress is not None])

    # Its parts.

    def begin_parts(self, run: str, number: int) -> None:
        """Record of how many parts a run is."""
        folder = self.work / "parts" / run
        folder.mkdir(exist_ok=True)
        if _number(folder / COUNT) != number:
            write_text(folder / COUNT, str(number))

    def finish_part(self, run: str, part: int, attempt: str, counts: Mapping[str, Any]) -> None:
        """Record that the answers of a part are stored.

        Args:
            run: id of the run.
            part: number of the part.
            attempt: of this worker at the run.
            counts: what this worker has done for the run so far.
        """
        folder = self.work / "parts" / run
        folder.mkdir(exist_ok=True)  # somebody may have removed `.work`
        write_json(folder / f"{attempt}.json", counts)
        (folder / str(part)).touch()

    def is_finished(self, run: str, part: int) -> bool:
        """Return whether the answers of a part are stored."""
        return (self.work / "parts" / run / str(part)).exists()

    def counts_of_others(self, run: str, attempt: str) -> list[dict[str, Any]]:
        """Return what other workers have done for a run, see `finish_part`."""
        paths = (self.work / "parts" / run).glob(f"{run}.*.json")
        others = [path for path in sorted(paths) if path.name != f"{attempt}.json"]
        return [counts for counts in map(read_json_object, others) if counts is not None]

    # Who computes it.

    def turns(self, name: str) -> list[Path]:
        """Return the claims of a name, see `claim_name`; the last one counts."""
        return sorted((self.work / "claims").glob(f"{name}.*"), key=_turn)

    def claim(self, run: str, part: int | None = None, **details: Any) -> Claim | None:
        """Claim a part of a run, and return the claim.

        Args:
            run: its id.
            part: its number; None claims the run itself, whose results are to be put together.
            details: what the claim's file says beside the process and its host.

        Returns:
            The claim; None if run or part are over, or another process has claimed it.
        """
        name = claim_name(run, part)
        turns = self.turns(name)
        number = 1
        if turns:
            if self._owner(turns[-1]) is not None:
                return None
            number = _turn(turns[-1]) + 1
        path = self.work / "claims" / f"{name}.{number}"
        claim = Claim(run, path, uuid.uuid4().hex[:8], part)
        content = {**details, **HERE, "pid": os.getpid(), "token": claim.token}
        try:
            with claim.path.open("x", encoding="utf-8") as handle:
                json.dump(content, handle)
        except FileExistsError:
            return None
        # Looked at only now: the former owner may have finished after our first look.
        is_over = self.is_done(run) or self.failure(run) is not None
        if is_over or (part and self.is_finished(run, part)):
            self.release(claim.path)
            return None
        return claim

    def owns(self, claim: Claim) -> bool:
        """Return whether a claim still counts: no other worker has taken the run over."""
        turns = self.turns(claim_name(claim.run, claim.part))
        if not turns or turns[-1] != claim.path:
            return False
        return (read_json_object(claim.path) or {}).get("token") == claim.token

    def release(self, claim: Path) -> None:
        """Remove a claim and the earlier ones on its run; a later one belongs to somebody else."""
        for path in self.turns(claim.stem):
            if _turn(path) <= _turn(claim):
                path.unlink(missing_ok=True)

    def claims_of(self, process: Mapping[str, Any]) -> list[Path]:
        """Return the claims of a process that still count.

        Args:
            process: what their files say of it: its id and where this means a process, see `HERE`.
        """
        claims = [path for of_run in self._last_claims().values() for path in of_run]
        return [path for path in claims if _is_part(process, read_json_object(path))]

    def _owner(self, claim: Path) -> dict[str, Any] | None:
        """Return what the owner of a claim wrote, and when it was `seen`; None if it is dead."""
        try:
            seen = claim.stat().st_mtime
        except FileNotFoundError:
            return None  # released in this moment
        owner = read_json_object(claim) or {}  # nothing is there yet while it is written
        is_gone = HERE.items() <= owner.items() and not psutil.pid_exists(owner["pid"])
        is_old = self.now() - seen > STALE_SECONDS
        if is_gone or is_old:
            return None
        return {**owner, "seen": seen}

    def now(self) -> float:
        """Return the time in seconds by the clock that dates files here, maybe a file server's."""
        probe = self.work / unique_name("clock")
        probe.touch()
        seconds = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return seconds
