"""Sweeps and their cells as forks of one process that has imported everything.

A real cell needs seconds to import its libraries; here it starts in milliseconds, so that hundreds
of kills fit into minutes. Everything else is the product's own code on a real model.

Reads one JSON request a line: `code` and `words`, a program and its arguments; `out` and `err`, the
files that it writes to; `folder` and `environment`, with what it runs; `fault` and `root`.
Answers `pid NUMBER`, then `ended CODE` (negative: the signal).
"""

import importlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

PRELOADED = (
    "lm_eval.evaluator",
    "lm_eval.loggers",
    "lm_eval.models.huggingface",
    "lm_eval.tasks",
    "torch.utils.collect_env",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
    "leval_harness.sweep.cell_main",
    "leval_harness.sweep.cells",
    "leval_harness.sweep.executors",
    "leval_harness.sweep.supervisor",
    "leval_harness.sweep.runner",
    "resonance_vllm.hf",
)


def preload() -> Any:
    """Import what a cell imports; return the fault injection's `_install`."""
    for name in PRELOADED:
        importlib.import_module(name)
    once = module_of(Path(__file__).parents[2] / "shared" / "worked_out_once.py")
    once.install()
    sys.modules["lm_eval.tasks"].TaskManager()
    sys.modules["torch.utils.collect_env"].get_pretty_env_info()
    return module_of(Path(__file__).with_name("sitecustomize.py"))._install


def module_of(path: Path) -> Any:
    """The module that a file holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Forked:
    """Stands for `subprocess.Popen` of a program of ours; the child is a fork that runs `main`."""

    def __init__(
        self, main: Any, stdout: int, stderr: Any, stdin: int, env: dict[str, str], **_: Any
    ) -> None:
        self.returncode: int | None = None
        self.stdin: Any = None
        self.stdout: Any = None
        given = {2: stderr if isinstance(stderr, int) else stderr.fileno()}
        if stdin == subprocess.PIPE:
            given[0], writing = os.pipe()
            reading, given[1] = os.pipe()
            self.stdin, self.stdout = os.fdopen(writing, "wb"), os.fdopen(reading, "rb")
        else:
            given[1] = stdout
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            _be_in(env)
            for number, descriptor in given.items():
                os.dup2(descriptor, number)
            os.closerange(3, 1024)  # locks and pipes that a new program would not have
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            try:
                os._exit(main())
            except BaseException:  # noqa: BLE001 - a fork must never fall back into its parent
                traceback.print_exc()
            os._exit(99)
        if stdin == subprocess.PIPE:
            os.close(given[0])
            os.close(given[1])

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()
        self.stdout.close()
        os.waitpid(self.pid, 0)


def run_cell(words: list[str]) -> int:
    """Be a cell's process."""
    _inject("cell")
    from leval_harness.sweep.cell_main import main

    return main(words)


def run_supervisor(words: list[str]) -> int:
    """Be the process that watches over a cell."""
    from leval_harness.sweep.supervisor import main

    main(*words)
    return 0


POPEN = subprocess.Popen


def start(arguments: list[str], **options: Any) -> Any:
    """`subprocess.Popen`, but a cell and its supervisor are forked."""
    for module, main in (("supervisor", run_supervisor), ("cell_main", run_cell)):
        if f"leval_harness.sweep.{module}" in arguments:
            words = arguments[arguments.index(f"leval_harness.sweep.{module}") + 1 :]
            given = {"stdin": None, "env": dict(os.environ), **options}
            return Forked(partial(main, words), **given)
    return POPEN(arguments, **options)


REQUEST: dict[str, Any] = {}


def _inject(role: str) -> None:
    wanted, kind, number = REQUEST["fault"].split(":")
    if role == wanted and kind == "kill":
        INSTALL(kind, int(number), REQUEST["root"])
    if role == "cell" and "SWEEP_FILE_LIMIT" in os.environ:
        limit = int(os.environ["SWEEP_FILE_LIMIT"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _be_in(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def program() -> None:
    """Be a process of its own that runs the code of a request."""
    for name, descriptor in (("out", 1), ("err", 2)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        file = os.open(REQUEST[name], flags)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(REQUEST["folder"])
    _be_in(REQUEST["environment"])
    subprocess.Popen = start  # type: ignore[misc,assignment]
    _inject("sweep")
    sys.argv = ["-c", *REQUEST["words"]]
    ended: Any = 0
    try:
        exec(compile(REQUEST["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        ended = end.code
        if isinstance(ended, str):
            print(ended, file=sys.stderr)  # noqa: T201
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended if isinstance(ended, int) else int(ended is not None))


if __name__ == "__main__":
    INSTALL = preload()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        REQUEST.clear()
        REQUEST.update(json.loads(line))
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                program()
            except BaseException:  # noqa: BLE001 - a fork must never fall back into this loop
                traceback.print_exc()
            os._exit(99)
        print(f"pid {child}", flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)  # noqa: T201
