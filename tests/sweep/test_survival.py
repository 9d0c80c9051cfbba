"""A real sweep that is killed, interrupted and starved: nothing finished is lost or half there."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_programs import SWEEP, Forks, forked
from running_sweeps import claims, eight_runs, wait_for

from leval_harness.sweep.run_progress import read_progress

pytestmark = [pytest.mark.slow]


def results(folder: Path) -> dict[str, Any]:
    """The numbers and the samples of the finished runs."""
    found: dict[str, Any] = {}
    for run in sorted(folder.glob("runs/*")):
        (numbers,), (samples,) = run.glob("results_*.json"), run.glob("samples_*.jsonl")
        found[run.name] = json.loads(numbers.read_text())["results"], samples.read_text()
    return found


@pytest.fixture(scope="module")
def quiet(tiny: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("quiet")
    assert forks.sweep(tiny / "sweep.yaml", out) == 0, forks.said()
    assert len(list(out.glob("sweep/runs/*"))) == 2
    assert not list(out.glob("sweep/.work/*/*")), "what only running runs need is left"
    assert not (out / "sweep" / "failed").exists()
    return results(out / "sweep")


def begin(forks: Forks, config: Path, out: Path, *options: str) -> int:
    """Start a sweep; its process id. `forks.ended()` waits for it."""
    words = ("sweep", config, "--out", out, *options)
    return forks.begin(SWEEP, *words, err=str(forks.out))


def test_a_sweep_killed_at_any_moment_goes_on(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    """Its worker ends with it, what was done stays byte for byte, and the rest is as if quiet."""
    dice, out, points = random.Random(7), tmp_path / "0", 4
    for point in range(points):
        sweep = begin(forks, tiny / "sweep.yaml", out)
        time.sleep(dice.uniform(0.0, 3.0))
        workers = [claim["pid"] for claim in claims(out)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(sweep, signal.SIGKILL)
        forks.ended()
        wait_for(lambda: not any(map(psutil.pid_exists, workers)))  # noqa: B023
        before = {path: path.read_bytes() for path in out.glob("sweep/runs/*/*")}
        if len(list(out.glob("sweep/runs/*"))) == 2 or point == points - 1:
            assert forks.sweep(tiny / "sweep.yaml", out) == 0, forks.said()
            assert results(out / "sweep") == quiet
            assert before == {path: path.read_bytes() for path in before}
            out = tmp_path / str(point + 1)


def test_killed_worker_run_is_tried_once_more(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    begin(forks, tiny / "sweep.yaml", tmp_path)
    (claim,) = wait_for(lambda: claims(tmp_path))
    os.kill(claim["pid"], signal.SIGKILL)
    assert forks.ended() == 0, forks.said()
    assert "is tried once more: its process was ended by SIGKILL (out of memory?)" in forks.said()
    assert results(tmp_path / "sweep") == quiet
    assert not list(tmp_path.glob("sweep/.work/retries/*"))


def test_killed_worker_twice_fails_the_run(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    begin(forks, tiny / "sweep.yaml", tmp_path)
    (claim,) = wait_for(lambda: claims(tmp_path))
    os.kill(claim["pid"], signal.SIGKILL)

    def next_worker() -> Any:
        return [other for other in claims(tmp_path) if other["pid"] != claim["pid"]]

    (second,) = wait_for(next_worker)
    os.kill(second["pid"], signal.SIGKILL)
    assert forks.ended() == 1, forks.said()
    assert "its process was ended by SIGKILL (out of memory?); last output: " in forks.said()
    assert "(the second time)" in forks.said()
    assert "[2/2, 1 failed]" in forks.said()
    assert len(list(tmp_path.glob("sweep/runs/*"))) == 1
    (failed,) = tmp_path.glob("sweep/failed/*")
    assert set(json.loads((failed / "failed.json").read_text())) == {"reason", "when"}
    assert forks.sweep(tiny / "sweep.yaml", tmp_path) == 0, forks.said()
    assert "2 runs, 1 done, 1 to do" in forks.said()
    assert results(tmp_path / "sweep") == quiet
    assert not failed.exists()


EVERY_ANSWER = """
import os, time
from pathlib import Path
from leval_harness.sweep.answers import Answers
store = Answers.add_partial
record = Path(os.environ["RECORD"])
def {name}(answers, *of_answer):
{body}
    store(answers, *of_answer)
Answers.add_partial = {name}
"""
HUNG_ONCE = EVERY_ANSWER.format(
    name="hang_once",
    body="""
    if not record.exists():
        record.touch()
        time.sleep(1000)
""",
)
SLOW_ANSWERS = EVERY_ANSWER.format(
    name="take_time",
    body="""
    with record.open("a") as lines:
        lines.write(f"{answers.run.run_id} {os.getpid()}\\n")
    time.sleep(0.3)
""",
)


def test_hung_request_is_named_and_its_run_tried_again(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    words = ("sweep", tiny / "sweep.yaml", "--out", tmp_path, "--set=stall_limit=6")
    ended = forks.python(HUNG_ONCE + SWEEP, *words, RECORD=str(tmp_path / "record"))
    assert ended.returncode == 0, ended.stderr
    reason = "stall_limit: no progress for 6 s while answering 4 requests of tiny_gen from document"
    assert f"is tried once more: {reason} 0 on" in ended.stdout
    assert results(tmp_path / "sweep") == quiet


def test_worker_that_lost_its_claim_stops_within_one_request(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path
) -> None:
    """It was stopped for minutes, as a frozen machine is; meanwhile another one goes on."""
    out, record = tmp_path / "out", tmp_path / "record"
    program = (SLOW_ANSWERS + SWEEP, "sweep", tiny / "sweep.yaml", "--out", out)
    forks.begin(*program, environment={"RECORD": str(record)})
    wait_for(record.exists)
    (path,) = out.glob("sweep/.work/claims/*")
    stopped = json.loads(path.read_text())["pid"]
    os.kill(stopped, signal.SIGSTOP)
    run = path.name.partition("+")[0]
    before = answers_by(stopped, run, record)
    os.utime(path, (1, 1))
    with forked(tmp_path, "other") as other:
        other.begin(*program, environment={"RECORD": str(record)})
        wait_for(lambda: len(answers_by(None, run, record)) > len(before))
        os.kill(stopped, signal.SIGCONT)
        assert other.ended() == 0, other.said()
    assert forks.ended() == 0, forks.said()
    assert len(answers_by(stopped, run, record)) <= len(before) + 1
    assert results(out / "sweep") == quiet


def answers_by(process: int | None, run: str, record: Path) -> list[str]:
    """Lines of the record for the answers to a run, of one process or of all."""
    lines = [line for line in record.read_text().splitlines() if line.startswith(run)]
    return [line for line in lines if process is None or line == f"{run} {process}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_sweep_says_how_to_resume(
    tiny: Path, quiet: dict[str, Any], forks: Forks, tmp_path: Path, number: signal.Signals
) -> None:
    sweep = begin(forks, tiny / "sweep.yaml", tmp_path, "--jobs", "2")
    workers = wait_for(lambda: len(found := claims(tmp_path)) == 2 and found)
    os.kill(sweep, number)
    assert forks.ended() == 130
    assert "Interrupted; finished runs are kept. Resume with:" in forks.said()
    assert f"sweep {tiny / 'sweep.yaml'} --out {tmp_path} --jobs 2" in forks.said()
    assert "Traceback" not in forks.said()
    assert not any(psutil.pid_exists(worker["pid"]) for worker in workers)
    assert not claims(tmp_path)
    assert forks.sweep(tiny / "sweep.yaml", tmp_path) == 0, forks.said()
    assert results(tmp_path / "sweep") == quiet


def test_what_a_worker_has_started_ends_with_it(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    """An engine's processes; the worker is ended by Ctrl-C, or killed with the sweep.

    Until then it keeps its claim alive.
    """
    source = "import subprocess\n"
    source += "def hang(docs):\n    subprocess.Popen(['sleep', '1234'])\n"
    source += "    import time; time.sleep(1000)\n"
    (tmp_path / "bad.py").write_text(source)
    task = (tiny / "tiny_gen.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(f"{task}\nprocess_docs: !function bad.hang\n")
    out = tmp_path / "out"
    options = [f"--set=tasks={tmp_path}/bad.yaml", "--set=methods={rope: null}"]

    def sleeping() -> list[psutil.Process]:
        every = psutil.process_iter(["cmdline"])
        return [each for each in every if each.info["cmdline"] == ["sleep", "1234"]]

    for number in (signal.SIGINT, signal.SIGKILL):
        sweep = begin(forks, tiny / "sweep.yaml", out, *options)
        wait_for(sleeping)
        (claim,) = out.glob("sweep/.work/claims/*")
        os.utime(claim, (1, 1))
        wait_for(lambda: claim.stat().st_mtime > 1)  # noqa: B023
        os.kill(sweep, number)
        forks.ended()
        wait_for(lambda: not sleeping())


LONG = """
models: {{tiny: {{path: {root}/model, backend: hf, dtype: float32, device: cpu}}}}
methods: {{rope: null}}
tasks: {root}/tiny_gen.yaml
gen_kwargs: {{max_gen_toks: 16}}
"""


@pytest.mark.slow(long=True)
def test_killed_long_run_repeats_at_most_64_requests(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    rows = [{"q": f"What is {i} + {i}?", "a": str(2 * i)} for i in range(70)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = (tiny / "tiny_gen.yaml").read_text().replace(f"{tiny}/docs", f"{tmp_path}/docs")
    (tmp_path / "tiny_gen.yaml").write_text(task)
    (tmp_path / "model").symlink_to(tiny / "model")
    (tmp_path / "sweep.yaml").write_text(LONG.format(root=tmp_path))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert forks.sweep(tmp_path / "sweep.yaml", whole) == 0, forks.said()
    sweep = begin(forks, tmp_path / "sweep.yaml", cut)

    def answered() -> int:
        progress = map(read_progress, cut.glob("sweep/.work/progress/*"))
        return max((one.answered for one in progress if one is not None), default=0)

    wait_for(lambda: answered() >= 20)
    os.kill(sweep, signal.SIGKILL)
    forks.ended()
    wait_for(lambda: not any(psutil.pid_exists(claim["pid"]) for claim in claims(cut)))
    known = answered()
    assert known < 70
    assert forks.sweep(tmp_path / "sweep.yaml", cut) == 0, forks.said()
    log = next(cut.glob("sweep/runs/*/log.txt")).read_text()
    cached = int(log.partition(" answers are there already")[0].split()[-3])
    assert cached >= known, "an answer is kept as soon as it is there"
    assert results(cut / "sweep") == results(whole / "sweep")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.engine("mount")
@pytest.mark.slow(long=True)
@pytest.mark.parametrize("kib", [40, 160])
def test_a_really_full_disk_costs_nothing(
    tiny: Path, quiet: dict[str, Any], forks: Forks, small_disk: Path, kib: int
) -> None:
    def room(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(small_disk)], check=True)

    room(f"{kib}k")
    ended = forks.command("sweep", tiny / "sweep.yaml", "--out", small_disk)
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stdout + ended.stderr
    said = ("space", "disk is full", "table is not")
    assert any(each in ended.stderr for each in said), ended.stderr
    before = {path: path.read_bytes() for path in small_disk.glob("sweep/runs/*/*")}
    room("64m")
    assert forks.sweep(tiny / "sweep.yaml", small_disk) == 0, forks.said()
    assert before == {path: path.read_bytes() for path in before}
    assert results(small_disk / "sweep") == quiet


BAD = """
import os, signal

def out_of_memory(docs):
    import torch
    return torch.empty(1 << 55, dtype=torch.uint8)

def crash(docs):
    os.kill(os.getpid(), signal.SIGSEGV)

def wrong(docs):
    raise ValueError("these documents are not right")
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("out_of_memory", "memory"),
        ("crash", "its process was ended by SIGSEGV"),
        ("wrong", "ValueError: these documents are not right"),
    ],
)
def test_failing_run_costs_only_itself(
    tiny: Path, forks: Forks, tmp_path: Path, function: str, said: str
) -> None:
    """One bad run before one good one of the same load."""
    (tmp_path / "bad.py").write_text(BAD)
    task = (tiny / "tiny_gen.yaml").read_text().replace("tiny_gen", "bad_task", 1)
    (tmp_path / "bad_task.yaml").write_text(f"{task}\nprocess_docs: !function bad.{function}\n")
    options = [f"--set=tasks=[{tmp_path}/bad_task.yaml, {tiny}/tiny_gen.yaml]"]
    options += ["--set=methods={rope: {rope_type: default}}"]
    assert forks.sweep(tiny / "sweep.yaml", tmp_path / "out", *options) == 1
    assert said in forks.said()
    assert "Try again with:" in forks.said()
    assert len(list(tmp_path.glob("out/sweep/runs/*"))) == 1
    log = next(tmp_path.glob("out/sweep/failed/*/log.txt")).read_text()
    assert "evaluating tiny" in log


def test_unloadable_model_is_tried_once_for_all_runs(
    tiny: Path, forks: Forks, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in (tiny / "model").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    (model / "model.safetensors").write_bytes(b"no tensors")
    tasks = f"[{tiny}/tiny_gen.yaml, leval_closed_gsm]"
    options = [f"--set=models.tiny.path={model}", f"--set=tasks={tasks}"]
    options += ["--set=methods={rope: null}", "--set=metadata.data_dir=sample"]
    assert forks.sweep(tiny / "sweep.yaml", tmp_path / "out", *options) == 1
    assert forks.said().count("log: ") == 2
    assert f"{model}: transformers cannot load it" in forks.said()
    logs = [path.read_text() for path in tmp_path.glob("out/sweep/failed/*/log.txt")]
    assert sum("loading tiny" in log for log in logs) == 1


KILLS = 50


@pytest.mark.slow(long=True)
def test_fifty_random_kills_lose_nothing(tiny: Path, forks: Forks, tmp_path: Path) -> None:
    """Of workers and of the sweep, which is started again; forty runs, each the same as undisturbed."""
    config, dice = eight_runs(tiny, tmp_path, ", device: cpu"), random.Random(5)
    methods = {f"x{factor}": {"rope_type": "linear", "factor": factor} for factor in range(2, 7)}
    options = [f"--set=methods={json.dumps(methods)}", "--jobs=2"]
    assert forks.sweep(config, tmp_path / "quiet", *options) == 0, forks.said()
    undisturbed = results(tmp_path / "quiet" / "eight")
    assert len(undisturbed) == 40
    finished: dict[Path, bytes] = {}
    kills = rounds = 0
    while kills < KILLS:
        rounds += 1
        where = tmp_path / f"out{rounds}"
        while kills < KILLS and len(list(where.glob("eight/runs/*"))) < len(undisturbed):
            sweep = begin(forks, config, where, *options)
            while psutil.pid_exists(sweep):
                time.sleep(dice.uniform(0.0, 1.0))
                victims = [claim["pid"] for claim in claims(where)]
                victim = sweep if dice.random() < 0.2 or not victims else dice.choice(victims)
                if kills < KILLS:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                        kills += 1
            forks.ended()
            assert finished.items() <= {p: p.read_bytes() for p in finished}.items()
            finished |= {path: path.read_bytes() for path in where.glob("eight/runs/*/*")}
        assert forks.sweep(config, where, *options) == 0, forks.said()
        assert results(where / "eight") == undisturbed
        assert not list(where.glob("eight/.work/[!l]*/*")), "only logs of killed sweeps are left"
