"""No command ends in a traceback: 0, 1 or 2, and one message that says where.

The usual 2,000 inputs are the same ones in every run; `FUZZ_INPUTS=20000 pytest tests/fuzz` draws
that many new ones.
"""

import contextlib
import io
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from every_command import leaves
from fuzz_commands import World, command_lines
from hypothesis import HealthCheck, Phase, given, settings

from leval_harness.main import cli, main

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
INPUTS = int(os.environ.get("FUZZ_INPUTS", "2000"))
PROCESSES = max(INPUTS // 20, 100) if "FUZZ_INPUTS" in os.environ else 100
SLOWEST = 60
"""Seconds of a processor after which an input counts as one that makes a command hang."""
WAITING = 600
"""Seconds on the clock for one that waits; a busy machine takes long for everything."""


# Downloads.
LEFT_OUT = {("model",), ("data", "fetch")}
LEAVES = {path: command for path, command in leaves(cli) if path not in LEFT_OUT}
# What they find wrong is their output.
REPORTS = {("data", "verify"), ("table",)}
# Commands that take a second an input get fewer.
SHARE = {("page",): 0.2, ("lm-eval",): 0.1, ("finetune",): 0.1, ("posgen", "train"): 0.2}
HOW = {
    "deadline": None,
    "database": None,
    "derandomize": "FUZZ_INPUTS" not in os.environ,
    "suppress_health_check": list(HealthCheck),
    # Inputs are short, and trying shorter ones takes as long as all of them.
    "phases": (Phase.generate,),
}
WHOLE = sum(SHARE.get(path, 1) for path in LEAVES)
# `check` starts a process of vLLM as well, where that is installed.
AS_PROCESSES = {path: 0.3 if path in SHARE or path == ("check",) else 1 for path in LEAVES}


@pytest.fixture(scope="module")
def world(tmp_path_factory, save_llama):
    made = World(tmp_path_factory.mktemp("world"))
    made.fill()
    save_llama(
        made.root / "model",
        vocab_size=1500,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    for file in (Path(__file__).parents[1] / "golden" / "tokenizer").iterdir():
        shutil.copy(file, made.root / "model")
    return made


@contextlib.contextmanager
def with_content(path, content):
    """A file with another content for a while."""
    if path is None:
        yield
        return
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


@contextlib.contextmanager
def hanging_is_an_error():
    def ring(*_):
        raise AssertionError("still running")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SLOWEST)}
    timers |= {signal.ITIMER_REAL: (signal.SIGALRM, WAITING)}
    before = {number: signal.signal(number, ring) for number, _ in timers.values()}
    try:
        for timer, (_, seconds) in timers.items():
            signal.setitimer(timer, seconds)
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def forget_closed_streams():
    """Take away handlers that write where an earlier test does not listen any more.

    Logging says that with a traceback, and no process of its own has such handlers.
    """
    for logger in [logging.root, *logging.Logger.manager.loggerDict.values()]:
        for handler in list(getattr(logger, "handlers", ())):
            if getattr(getattr(handler, "stream", None), "closed", False):
                logger.removeHandler(handler)


def tried(line, world):
    """Exit code and errors of a command in this process."""
    forget_closed_streams()
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(world.root)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            hanging_is_an_error(),
        ):
            main(line)
    except SystemExit as end:
        return end.code or 0, err.getvalue()
    finally:
        os.chdir(before)
        shutil.rmtree(world.root / "new", ignore_errors=True)
    raise AssertionError("main came back")


def laid_out(figure, target, **_):
    """All of drawing that an input can break, once a figure and without pixels: texts and places.

    The commands that are run as processes draw.
    """
    if not hasattr(figure, "laid_out"):
        figure.draw_without_rendering()
        figure.laid_out = True
    Path(target).write_bytes(b"")


def path_of(each):
    return next(path for path in LEAVES if each.line[: len(path)] == path)


def check(each, code, err):
    told = f"{each}\nexit code {code}\n{err[-3000:]}"
    assert code in (0, 1, 2), told
    assert "Traceback" not in err, told
    assert not CONTROL.search(err), told
    if code and not (code == 1 and path_of(each) in REPORTS):
        _, says, message = err.lower().rpartition("error: ")
        assert says, told
        assert len(message.strip()) > 8, told


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_in_process(path, world, monkeypatch, without_vllm):
    monkeypatch.delenv("LEVAL_HARNESS_DEBUG", raising=False)
    # Settings that are fine would be trained with for minutes.
    monkeypatch.setattr("resonance_training.posgen_train.train_all", lambda *_, **__: iter(()))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", laid_out)

    @settings(
        max_examples=math.ceil(INPUTS * SHARE.get(path, 1) / WHOLE),
        **HOW,
    )
    @given(command_lines(path, LEAVES[path], world))
    def no_traceback(each):
        with with_content(each.changed, each.content):
            code, err = tried(each.line, world)
        check(each, code, err)

    no_traceback()


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_as_processes(path, world):
    """A few of each command, of those that load a model or vLLM the fewest."""

    @settings(
        max_examples=max(2, math.ceil(PROCESSES * AS_PROCESSES[path] / sum(AS_PROCESSES.values()))),
        **HOW,
    )
    @given(command_lines(path, LEAVES[path], world))
    def no_traceback(each):
        with with_content(each.changed, each.content):
            ran = subprocess.run(
                [sys.executable, "-m", "leval_harness", *each.line],
                cwd=world.root,
                capture_output=True,
                text=True,
                timeout=WAITING,
                check=False,
            )
        shutil.rmtree(world.root / "new", ignore_errors=True)
        check(each, ran.returncode, ran.stderr)

    no_traceback()
