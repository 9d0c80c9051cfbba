"""However a sweep ends, nothing that it started lives on: not even what ignores every signal."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

FAULTS = Path(__file__).parent / "faults"
ORPHANS = 3
SECONDS = 30
"""What takes less than ten on a machine of its own; tests share theirs with others."""
BUSY = 240
"""Seconds for a sweep to end after what it started, and for engines: a busy machine is slow."""
UP = 400
"""Seconds for a cell to be there: Ray's processes and the engine's are slow to start."""

pytestmark = [pytest.mark.hf, pytest.mark.slow]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def text_of(path: Path) -> str:
    """What a file of a process says; nothing once it has ended."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def descendants(root: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [each.pid for each in psutil.Process(root).children(recursive=True)]
    return []


class Sweep:
    """A sweep whose first cells hang, ignore signals and have three generations of children."""

    def __init__(self, tiny: Path, out: Path, *options: str, **process: object) -> None:
        self.record = out / "pids"
        path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
        fault = {"SWEEP_FAULT": "cell:orphans:0", "SWEEP_FAULT_ROOT": str(out)}
        fault |= {"PYTHONPATH": path, "SWEEP_FAULT_COUNT": str(self.record)}
        fault |= {"RAY_ADDRESS": "local"}  # not that of another test
        start = "from leval_harness.cli.main import main; main()"
        command = [sys.executable, "-c", start, "sweep", str(tiny / "sweep.yaml")]
        self.process = subprocess.Popen(
            [*command, "--out", str(out), *options],
            **{"env": {**os.environ, **fault}, "stdout": subprocess.DEVNULL, **process},  # type: ignore[call-overload]
        )

    def orphans(self) -> list[int]:
        return [int(line) for line in text_of(self.record).split()]

    def is_up(self) -> bool:
        # Ray starts as many cells at once as the machine has cores.
        return len(self.orphans()) >= ORPHANS

    def left(self) -> list[int]:
        return [pid for pid in self.orphans() if alive(pid)]

    def __enter__(self) -> "Sweep":
        if not wait_for(self.is_up, UP):
            self.__exit__()
            raise AssertionError("no cell has started")
        assert len(self.left()) >= ORPHANS
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [self.process.pid, *self.left()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def defaults() -> None:
    """A test may run where signals are ignored; a sweep in a terminal does not."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 130),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 130, marks=pytest.mark.long),
    ],
)
def test_no_signal_to_a_sweep_leaves_anything(
    tiny: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with Sweep(tiny, tmp_path, preexec_fn=defaults, stderr=subprocess.PIPE) as sweep:
        sweep.process.send_signal(number)
        assert wait_for(lambda: not sweep.left(), SECONDS), sweep.left()
        assert sweep.process.wait(BUSY) == code
        assert sweep.process.stderr is not None
        said = sweep.process.stderr.read().decode()
    assert "Traceback" not in said
    assert ("Resume with:" in said) == (number != signal.SIGKILL)


def helpers_of(root: int) -> list[int]:
    """What Ray has started, ids of processes."""
    return [pid for pid in descendants(root) if alive(pid)]


@pytest.mark.ray
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
    ],
)
def test_no_signal_to_a_sweep_on_ray_leaves_anything(
    tiny: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Neither what a cell has started nor anything of Ray's own."""
    options = ("--executor", "ray", "--set=models.tiny.resources={num_cpus: 1}")
    with Sweep(tiny, tmp_path, *options, preexec_fn=defaults, stderr=subprocess.PIPE) as sweep:
        started = helpers_of(sweep.process.pid)
        assert started
        sweep.process.send_signal(number)
        assert wait_for(lambda: not sweep.left(), BUSY), sweep.left()
        assert sweep.process.wait(BUSY) == code
        assert wait_for(lambda: not any(map(alive, started)), BUSY)
        assert sweep.process.stderr is not None
        said = sweep.process.stderr.read().decode()
    assert "Traceback" not in said
    assert ("Resume with:" in said) == (number != signal.SIGKILL)


ENGINE, RAYLET = "VLLM::EngineCore", "raylet/raylet"


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("number", "replicas"),
    [
        (signal.SIGKILL, 1),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((signal.SIGHUP, 1), (signal.SIGKILL, 2), (signal.SIGHUP, 2))
        ),
    ],
)
def test_engines_of_vllm_die_with_their_sweep(
    tiny: Path, tmp_path: Path, number: signal.Signals, replicas: int
) -> None:
    """They live in processes of their own and outlive who started them.

    Data-parallel ones are in a Ray cluster of the cell's own; without GPUs it waits for ever.
    """
    model = (
        f"{{path: {tiny}/model, backend: vllm-long, dtype: float32, methods: [rope], args: "
        f"{{data_parallel_size: {replicas}, enforce_eager: true}}}}"
    )
    start = "from leval_harness.cli.main import main; main()"
    command = [sys.executable, "-c", start, "sweep", str(tiny / "sweep.yaml")]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), f"--set=models={{tiny: {model}}}"],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "RAY_ADDRESS": "local"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=defaults,
    )

    def below() -> list[int]:
        supervisors = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if f"leval_harness.sweep.supervisor\0cell\0{tmp_path}" in text_of(path)
        ]
        return [pid for supervisor in supervisors for pid in (supervisor, *descendants(supervisor))]

    def up() -> bool:
        names = [text_of(Path(f"/proc/{pid}/cmdline")) for pid in below()]
        return any(ENGINE in name or (replicas > 1 and RAYLET in name) for name in names)

    assert wait_for(up, UP), [path.read_text()[-2000:] for path in tmp_path.rglob("log.txt")]
    there = below()
    process.send_signal(number)
    assert wait_for(lambda: not any(map(alive, there)), BUSY)
    assert process.wait(BUSY) == (-9 if number == signal.SIGKILL else 130)


@pytest.mark.long
def test_a_closed_terminal_ends_a_sweep_and_what_it_started(tiny: Path, tmp_path: Path) -> None:
    """The kernel tells the sweep, and there is nobody left to tell how to resume."""
    ours, theirs = pty.openpty()
    files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}

    def begin() -> None:
        import fcntl
        import termios

        defaults()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with Sweep(tiny, tmp_path, start_new_session=True, preexec_fn=begin, **files) as sweep:
        os.close(theirs)
        os.close(ours)
        assert wait_for(lambda: not sweep.left(), SECONDS), sweep.left()
        assert sweep.process.wait(BUSY) == 130


@pytest.mark.long
def test_a_sweep_that_ignores_hangups_outlives_its_terminal(tiny: Path, tmp_path: Path) -> None:
    def begin() -> None:
        defaults()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with Sweep(tiny, tmp_path, start_new_session=True, preexec_fn=begin) as sweep:
        status = text_of(Path(f"/proc/{sweep.process.pid}/status"))
        (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
        assert int(ignored, 16) >> (signal.SIGHUP - 1) & 1, "it would end, in its own time"
        sweep.process.send_signal(signal.SIGHUP)
        time.sleep(2)
        assert sweep.process.poll() is None
        assert len(sweep.left()) == ORPHANS
        sweep.process.send_signal(signal.SIGINT)
        assert sweep.process.wait(BUSY) == 130
        assert not sweep.left()


@pytest.mark.long
def test_a_killed_cell_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    with Sweep(tiny, tmp_path, "--set=methods={rope: null}", stderr=subprocess.PIPE) as sweep:
        # the cell alone has children; the one it has forked may be on record before it
        [hanging] = filter(descendants, sweep.orphans())
        os.kill(hanging, signal.SIGKILL)
        assert wait_for(lambda: not sweep.left(), SECONDS), sweep.left()
        assert sweep.process.wait(BUSY) == 1


def test_a_killed_supervisor_leaves_what_cannot_be_told_alone(tiny: Path, tmp_path: Path) -> None:
    """Its cell dies with it; what that has started is told by the environment that it was given."""
    with Sweep(tiny, tmp_path, "--set=methods={rope: null}", stderr=subprocess.PIPE) as sweep:
        told = [pid for pid in sweep.orphans() if text_of(Path(f"/proc/{pid}/environ"))]
        assert len(told) == ORPHANS - 1
        supervisors = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if f"leval_harness.sweep.supervisor\0cell\0{tmp_path}" in text_of(path)
        ]
        assert len(supervisors) == 1
        os.kill(supervisors[0], signal.SIGKILL)
        assert wait_for(lambda: not any(map(alive, told)), SECONDS), sweep.left()
        assert sweep.process.wait(BUSY) == 1
        assert sweep.process.stderr is not None
        assert "its supervisor process was killed" in sweep.process.stderr.read().decode()


def test_output_that_nobody_reads_stops_no_sweep(tiny: Path, tmp_path: Path) -> None:
    """`sweep | head -1`: the cell is computed, and the sweep ends as it would have."""
    start = "from leval_harness.cli.main import main; main()"
    command = [sys.executable, "-c", start, "sweep", str(tiny / "sweep.yaml")]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--set=methods={rope: null}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.wait(120) == 0, said
    assert len(list(tmp_path.glob("sweep/*/done.json"))) == 1
    assert (tmp_path / "sweep" / "page" / "index.html").is_file()
    assert "Error" not in said
