"""Sweeps and their workers as forks of one process that has imported everything.

A real worker needs seconds to import its libraries; here it starts in milliseconds. Everything else
is the product's own code on a real model.

Reads one JSON request a line: `code` and `words`, a program and its arguments; `out` and `err`, the
files that it writes to; `folder` and `environment`, with what it runs. Answers `pid NUMBER`, then
`ended CODE` (negative: the signal).
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
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
    "leval_harness.sweep.evaluation",
    "leval_harness.sweep.run",
)
POPEN = subprocess.Popen
WORKER = "leval_harness.sweep.worker"
REQUEST: dict[str, Any] = {}


def preload() -> None:
    """Import what a worker imports, and work out once what takes seconds."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.path.append(str(Path(__file__).parents[2] / "shared"))
    importlib.import_module("lm_eval_index").install()
    sys.modules["lm_eval.tasks"].TaskManager()
    sys.modules["torch.utils.collect_env"].get_pretty_env_info()


class Forked:
    """Stands for `subprocess.Popen` of a worker; the child is a fork that runs its `main`."""

    def __init__(self, stdout: Any, env: dict[str, str]) -> None:
        self.returncode: int | None = None
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for number, file in ((0, reading), (1, stdout.fileno()), (2, stdout.fileno())):
                os.dup2(file, number)
            os.closerange(3, 1024)  # pipes that a new program would not have
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - its buffer is of the parent
            be_in(env)
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(each, signal.SIG_DFL)
            os._exit(self.main())
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb")

    def main(self) -> int:
        try:
            sys.modules[WORKER].main()
            return 0
        except BaseException:  # noqa: BLE001 - a fork must never fall back into its parent
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None and timeout is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for _ in range(int((timeout or 0) * 100)):
            if self.poll() is not None:
                return self.returncode
            signal.sigtimedwait([], 0.01)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self.returncode


def start(arguments: list[str], **options: Any) -> Any:
    """`subprocess.Popen`, but a worker is forked."""
    if WORKER in arguments:
        return Forked(options["stdout"], options["env"])
    return POPEN(arguments, **options)


def be_in(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def program() -> None:
    """Be a process of its own that runs the code of a request."""
    for name, descriptor in (("out", 1), ("err", 2)):
        file = os.open(REQUEST[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(REQUEST["folder"])
    be_in(REQUEST["environment"])
    subprocess.Popen = start  # type: ignore[misc,assignment]
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
    preload()
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
