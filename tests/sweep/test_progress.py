"""What a sweep shows while it runs, and how long it says that the rest takes."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from leval_harness.sweep.claims import Folder, RunState
from leval_harness.sweep.cost import ComputedShare, Cost, Pass
from leval_harness.sweep.estimate import Estimate
from leval_harness.sweep.progress import Progress, TimeLeft, VerdictSoFar
from leval_harness.sweep.run_progress import RunProgress, read_progress, write_progress
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.worker import ClaimedRuns, WorkerRequest
from resonance_vllm.common.files import write_json

STATES = {
    "open": RunState(False),
    "running": RunState(False, None, [{"host": "here", "gpus": "0,1"}]),
    "done": RunState(True),
    "failed": RunState(False, "no luck"),
}


def record(name: str, task: str = "ppl_pydocs") -> RunRecord:
    content: dict[str, Any] = {
        "schema_version": 1, "run_id": name, "model": {"name": "small"}, "method": {"name": name},
        "tasks": [task], "context_length": 4096,
    }  # fmt: skip
    return RunRecord(**content)


RUNS = [record("rope"), record("yarn")]
SHARE = ComputedShare(None, [Pass(1000)], chunk=100)
ESTIMATES = {
    run.run_id: Estimate(Cost(prefill_tokens=1000, flops=1e9), hours=0.5, share=SHARE)
    for run in RUNS
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "out")


def computed(folder: Folder, name: str, **counts: Any) -> None:
    write_progress(folder.work / "progress" / f"{name}.1", RunProgress(**counts))


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (RunProgress(), 0.0),
        (RunProgress(requests=4, answered=1), 0.25),
        (RunProgress(requests=1, prefilled=750), 0.75),
        (RunProgress(requests=2, answered=1, prefilled=700, decoded=50), 0.75),
        (RunProgress(requests=2, answered=1, resumed=1, prefilled=250), 0.75),
        (RunProgress(requests=1, prefilled=5000), 1.0),
        (RunProgress(requests=4, answered=2, prefilled=250), 0.25),
        (RunProgress(requests=4, answered=2, prefilled=1020), 1.0),
        (RunProgress(requests=4, answered=2, prefilled=1200), 0.5),
        (RunProgress(requests=4, answered=2, prefilled=240, decoded=10), 0.5),
    ],
)
def test_share_counts_tokens_within_an_answer(progress: RunProgress, share: float) -> None:
    computed = ComputedShare(None, [Pass(450, generated=50)] * 2, chunk=100)
    assert progress.share(computed) == pytest.approx(share)


def test_claim_forgets_the_progress_of_interrupted_attempts(folder: Folder, tmp_path: Path) -> None:
    """Not that of a worker that is at the run: another one joins it."""
    log = tmp_path / "log.txt"
    log.touch()
    request = WorkerRequest(
        folder=str(folder.path), sweep="s", command="", expected_parts={"rope": 2},
        records=[record("rope").model_dump()], log=str(log),
    )  # fmt: skip
    computed(folder, "rope", requests=2, prefilled=900)
    first = ClaimedRuns(request)
    next(iter(first))
    assert folder.progress("rope") is None
    computed(folder, "rope", requests=2, prefilled=100)
    second = ClaimedRuns(request)
    next(iter(second))
    progress = folder.progress("rope")
    assert progress is not None
    assert progress.prefilled == 100
    for claimed in (first, second):
        claimed.heartbeat.end()


def test_progress_file_that_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_progress(path, RunProgress(requests=3, seconds=1.5))
    assert read_progress(path) == RunProgress(requests=3, seconds=1.5)
    path.write_text(path.read_text()[:20])
    assert read_progress(path) is None
    assert read_progress(tmp_path / "nothing") is None


def test_lines_say_what_happens_and_how_long_it_takes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("leval_harness.sweep.progress.time.monotonic", lambda: now[0])
    progress = Progress(RUNS, folder)

    def said(seconds: float, *states: str) -> list[str]:
        now[0] = seconds
        names = [run.run_id for run in RUNS]
        progress.update({name: STATES[state] for name, state in zip(names, states, strict=True)})
        return capsys.readouterr().out.splitlines()

    first = "small | rope @ 4096 | ppl_pydocs"
    assert said(0, "open", "open") == []
    assert said(0, "running", "open") == [f"[0/2] {first}: started, ETA unknown"]
    computed(folder, "rope", requests=2, answered=1, seconds=100, prefilled=5000)
    assert said(30, "running", "open") == [], "one line a minute"
    assert said(100, "running", "open") == [f"[0/2] {first}: 50%, 50 tokens/s, ETA 0:05:00"]
    failed, started = said(200, "failed", "running")
    assert failed == f"[1/2, 1 failed] {first}: failed: no luck, ETA unknown"
    assert started.endswith(": started, ETA unknown")
    computed(folder, "yarn", requests=2, answered=1, seconds=100)
    assert said(300, "failed", "running")[0].endswith(": 50%, ETA 0:01:40")
    assert said(400, "failed", "done")[0].endswith(": done, ETA 0:00:00")


def test_several_running_runs_are_one_line(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("leval_harness.sweep.progress.time.monotonic", lambda: now[0])
    progress = Progress(RUNS, folder)
    states = {run.run_id: STATES["running"] for run in RUNS}
    for run in RUNS:
        computed(folder, run.run_id, requests=4, answered=1, seconds=50, prefilled=5000)
    progress.update(states)
    now[0] = 61
    progress.update(states)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "[0/2] 2 runs: 25%, 25%, 200 tokens/s, ETA 0:02:30"


def test_time_left_before_anything_is_computed(folder: Folder) -> None:
    left = TimeLeft(RUNS, ESTIMATES)
    states = {"rope": STATES["running"], "yarn": STATES["open"]}
    for name, state in states.items():
        left.update(name, state, folder)
    assert left.seconds(states) == 3600, "two runs of half an hour, by the rate of earlier sweeps"
    computed(folder, "rope", requests=1, prefilled=250, seconds=25)
    left.update("rope", states["rope"], folder)
    assert left.seconds(states) == pytest.approx(75 + 100), "by the first chunks of this one"


def test_time_left_uses_the_seconds_of_finished_runs(folder: Folder) -> None:
    left = TimeLeft(RUNS, ESTIMATES)
    left.update("rope", STATES["running"], folder)
    left.update("yarn", STATES["open"], folder)
    target = folder.path / "runs" / "rope"
    target.mkdir()
    write_json(target / "run.json", {"seconds": 40})
    left.update("rope", STATES["done"], folder)
    assert left.seconds_of("yarn") == 40


def test_answers_have_a_rate_of_their_own(folder: Folder) -> None:
    runs = [RUNS[0], record("questions", "leval_closed_gsm")]
    left = TimeLeft(runs, {run.run_id: Estimate(Cost(flops=1e9), hours=0.5) for run in runs})
    for name in ("rope", "questions"):
        left.update(name, STATES["running"], folder)
    computed(folder, "rope", requests=2, answered=1, seconds=10)
    left.update("rope", STATES["running"], folder)
    assert left.seconds_of("rope") == 10
    assert left.seconds_of("questions") == 1800


def test_table_shows_what_is_running(folder: Folder) -> None:
    progress = Progress(RUNS, folder, ESTIMATES)
    computed(folder, "rope", requests=1, prefilled=250, seconds=25)
    progress.update({"rope": STATES["running"], "yarn": STATES["open"]})
    output = io.StringIO()
    Console(file=output, width=120).print(progress.table(["rope"]))
    assert "0 of 2 runs are over, remaining: 0:02:55" in output.getvalue()
    row = next(line for line in output.getvalue().splitlines() if "rope" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["small", "rope", "ppl_pydocs", "4,096", "0,1", "25%", "10", "0:01:15"]


def test_several_workers_of_a_run(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(RUNS[:1], folder, {"rope": ESTIMATES["rope"]})
    owners = ({"host": "here", "gpus": "0"}, {"host": "there", "gpus": "1"})
    progress.update({"rope": RunState(False, None, owners[:1])})
    reading = RunProgress(requests=1, prefilled=250, seconds=25)
    monkeypatch.setattr(folder, "progress", lambda name: reading)
    progress.update({"rope": RunState(False, None, owners, alone="no memory is left")})
    assert "continues with fewer workers: no memory is left, ETA 0:00:38" in capsys.readouterr().out
    output = io.StringIO()
    Console(file=output, width=120).print(progress.table(["rope"]))
    row = next(line for line in output.getvalue().splitlines() if "rope" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[4:] == ["0,1", "25%", "20", "0:00:38"]


def test_first_line_says_what_the_sweep_will_take(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(RUNS, folder, ESTIMATES):
        pass
    assert "0.002 TFLOP, 1.0 h with one worker; the estimate gets" in capsys.readouterr().out
    long = replace(ESTIMATES["rope"], hours=25.0)
    with Progress(RUNS, folder, {"rope": long}):
        pass
    assert "Note: small @ 4096 | ppl_pydocs: takes about 25.0 h" in capsys.readouterr().out
    with Progress(RUNS, folder, {"rope": Estimate(Cost(prefill_tokens=1000, flops=1e9))}):
        pass
    assert "the time is estimated from the first tokens on" in capsys.readouterr().out


def test_verdict_so_far_after_each_run(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [*RUNS, record("third")]
    sentences = iter([["rope: 8"], ["rope: 8"], ["never"]])
    monkeypatch.setattr(VerdictSoFar, "_sentences", lambda self: next(sentences))
    progress = Progress(runs, folder)

    def said(*states: str) -> list[str]:
        names = [run.run_id for run in runs]
        progress.update({name: STATES[state] for name, state in zip(names, states, strict=True)})
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("[")]

    said("running", "open", "open")
    assert said("done", "open", "open") == ["Verdict so far, by 1 run:", "  rope: 8"]
    assert said("done", "done", "open") == [], "nothing new"
    assert said("done", "done", "done") == [], "the report follows"


def test_verdict_so_far_takes_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("leval_harness.sweep.progress.time.monotonic", lambda: now[0])

    def slow(self: VerdictSoFar) -> list[str]:
        now[0] += 2
        return [f"at {now[0]:g}"]

    monkeypatch.setattr(VerdictSoFar, "_sentences", slow)
    verdict = VerdictSoFar(tmp_path)
    assert verdict.lines(1)
    now[0] += 30
    assert verdict.lines(2) == [], "the last one took 2 s of the 30 since"
    now[0] += 30
    assert verdict.lines(3) == ["Verdict so far, by 3 runs:", "  at 64"]


def test_verdict_so_far_without_results(tmp_path: Path) -> None:
    assert VerdictSoFar(tmp_path)._sentences() == []


def test_terminal_shows_a_table_and_lines(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(RUNS, folder, ESTIMATES) as progress:
        progress.update({"rope": STATES["open"], "yarn": STATES["open"]})
        progress.update({"rope": STATES["running"], "yarn": STATES["open"]})
        assert progress.live is not None
        progress.live.refresh()
    assert "runs are over, remaining" in terminal.getvalue()
    assert (
        "small | rope @ 4096 | ppl_pydocs: started" in terminal.getvalue() + capsys.readouterr().out
    )
