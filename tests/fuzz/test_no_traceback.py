"""No command ends in a traceback: 0, 1 or 2, and one message that says where.

Inputs are the same ones in every run: 250, or as many as `FUZZ_INPUTS` says. `FUZZ_SEED=7` draws
others. `pytest -m "long or not long" tests/fuzz` runs commands as processes too.
"""

import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import worked_out_once
from every_command import leaves
from fuzz_commands import command_lines
from fuzz_world import TRAININGS, World, put
from hypothesis import HealthCheck, Phase, event, given, seed, settings

from leval_harness.cli.main import app, main

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
UP = "\x1b[A"
"""One progress bar below another."""
RAW = re.compile(
    r"\[errno (?!.*: ['/])|'[\w-]+' codec|'\w+' object|unhashable|list ind|not all arg|could not |"
    r"invalid literal|embedded null|expected (str|a )|argument of type|object of type|math domain"
)
"""Sentences of Python's own that say neither where nor what is allowed."""
INPUTS = int(os.environ.get("FUZZ_INPUTS", "250"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
PROCESSES = int(os.environ.get("FUZZ_PROCESSES", "100"))
SLOWEST = 60
"""Seconds of a processor after which an input counts as one that makes a command hang."""
WAITING = 600
"""Seconds on the clock for one that waits; a busy machine takes long for everything."""


# Downloads.
LEFT_OUT = {("model",), ("data", "fetch")}
LEAVES = {path: command for path, command in leaves(app) if path not in LEFT_OUT}
# What they find wrong is their output.
REPORTS = {("data", "verify"), ("table",)}
# `diff` has two verdicts more.
ENDS = {("diff",): range(5)}
# Commands that take a second an input get fewer.
SHARE = {("page",): 0.2, ("lm-eval",): 0.1, ("finetune",): 0.1}
SHARE |= {("diff",): 0.1, ("posgen", "train"): 0.2, ("posgen", "evaluate"): 0.2}
HOW = {
    "deadline": None,
    "database": None,
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
    save_llama(
        made.root / "model",
        vocab_size=1500,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    for file in (Path(__file__).parents[1] / "golden" / "tokenizer").iterdir():
        shutil.copy(file, made.root / "model")

    def run(line):
        code, _, err = tried(line, made)
        assert code == 0, err

    made.fill(run)
    return made


@contextlib.contextmanager
def changed(each, world):
    """The world of an input."""
    if each.changed is not None:
        put(each.changed, each.content)
    try:
        yield
    finally:
        world.restore()


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


def tried(line, world):
    """Exit code, output and errors of a command in this process."""
    worked_out_once.install()  # what the command before has imported
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
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
        said = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
        return end.code or 0, *said
    finally:
        os.chdir(before)
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


def check(each, code, out, err):
    told = f"{each}\nexit code {code}\n{err[-3000:]}"
    assert code in ENDS.get(path_of(each), (0, 1, 2)), told
    assert "Traceback" not in err, told
    assert not CONTROL.search(err.replace(UP, "")), told
    assert not CONTROL.search(out), f"{told}\n{CONTROL.search(out)}"
    if code in (1, 2) and not (code == 1 and path_of(each) in REPORTS):
        _, says, message = err.lower().rpartition("error: ")
        assert says, told
        assert len(message.strip()) > 8, told
        assert not RAW.match(message.strip()), told


FINE = {
    "sweep": "configs/sweeps/every_setting.yaml --dry-run",
    "lm-eval": "run --model hf-long --model_args pretrained=model --tasks ppl_pg19 --limit 1 "
    '--metadata {"data_dir":"texts","context_length":[32,64],"stride":8}',
    "prompt": "gsm --model=model --data-dir=data --own-data",
    "table": "results/sweep results/lm_eval results/perplexity results/foreign results/effective",
    "page": "results/sweep results/effective --out=new",
    "score": "--task=gsm predictions/gsm.jsonl",
    "rope": "--method=yarn --factor=2",
    "check": "model --rope=yarn:factor=2",
    "diff": "hf-long:model hf-long:model --lengths=64 --count=3 --margin=5",
    "export": "model --rope=yarn:factor=2 --out=new",
    "data list": "--data-dir=data",
    "data verify": "--data-dir=data",
    "posgen evaluate": "trained --encoding=yarn",
    "posgen table": "trained results/posgen_train",
    "posgen train": " ".join(TRAININGS["trained"][2:]),
    "finetune": " ".join(TRAININGS["tuned"][1:]),
}
"""What inputs begin from; were it refused, nothing beyond the refusal would be tried."""


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_what_inputs_begin_from_is_fine(path, world, without_vllm):
    code, _, err = tried((*path, *FINE[" ".join(path)].split(" ")), world)
    world.restore()
    assert code == (" ".join(path) == "data verify"), err


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_in_process(path, world, monkeypatch, without_vllm):
    monkeypatch.delenv("LEVAL_HARNESS_DEBUG", raising=False)
    # Settings that are fine would be trained with for minutes.
    monkeypatch.setattr("leval_harness.training.posgen_train.train_all", lambda *_, **__: iter(()))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", laid_out)

    @seed(SEED)
    @settings(
        max_examples=math.ceil(INPUTS * SHARE.get(path, 1) / WHOLE),
        **HOW,
    )
    @given(command_lines(path, LEAVES[path], world))
    def no_traceback(each):
        with changed(each, world):
            said = tried(each.line, world)
        event(f"exit code {said[0]}")
        check(each, *said)

    no_traceback()


@pytest.mark.long
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_as_processes(path, world):
    """A few of each command, of those that load a model or vLLM the fewest."""

    @seed(SEED)
    @settings(
        max_examples=max(2, math.ceil(PROCESSES * AS_PROCESSES[path] / sum(AS_PROCESSES.values()))),
        **HOW,
    )
    @given(command_lines(path, LEAVES[path], world))
    def no_traceback(each):
        with changed(each, world):
            ran = subprocess.run(
                [sys.executable, "-m", "leval_harness", *each.line],
                cwd=world.root,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=WAITING,
                check=False,
            )
        check(each, ran.returncode, ran.stdout, ran.stderr)

    no_traceback()
