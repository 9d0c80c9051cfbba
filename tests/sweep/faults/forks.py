"""Sweeps and their cells as forks of one process that has imported everything.

A real cell needs seconds to import its libraries; here it starts in milliseconds, so that hundreds
of kills fit into minutes. Everything else is the product's own code on a real model.

Reads one JSON request a line (`arguments`, `fault`, `root`, `log`); answers `pid NUMBER`, then
`ended CODE` (negative: the signal).
"""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
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
    "leval_sweep.cell_main",
    "leval_sweep.cells",
    "leval_sweep.executors",
    "leval_sweep.runner",
    "resonance_vllm.hf",
)


def preload() -> Any:
    """Import what a cell imports; return the fault injection's `_install`."""
    for name in PRELOADED:
        importlib.import_module(name)
    # describing the machine takes longer than the tiny evaluation, and is no result
    sys.modules["torch.utils.collect_env"].get_pretty_env_info = lambda: "not asked for"
    where = Path(__file__).with_name("sitecustomize.py")
    spec = importlib.util.spec_from_file_location("fault_injection", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._install


class ForkedCell:
    """Stands for `subprocess.Popen` of a cell; the child is a fork instead of a new program."""

    def __init__(self, arguments: list[str], stdout: Any, **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for descriptor in (1, 2):
                os.dup2(stdout.fileno(), descriptor)
            _inject("cell")
            from leval_sweep.cell_main import main

            words = arguments[arguments.index("leval_sweep.cell_main") + 1 :]
            os._exit(main(words))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("cell", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode


POPEN = subprocess.Popen


def start(arguments: list[str], **options: Any) -> Any:
    """`subprocess.Popen`, but a cell is forked."""
    if "leval_sweep.cell_main" in arguments:
        subprocess.Popen = POPEN  # type: ignore[misc]
        try:
            return ForkedCell(arguments, **options)
        finally:
            subprocess.Popen = start  # type: ignore[misc,assignment]
    return POPEN(arguments, **options)


REQUEST: dict[str, Any] = {}


def _inject(role: str) -> None:
    wanted, kind, number = REQUEST["fault"].split(":")
    if role == wanted and kind == "kill":
        INSTALL(kind, int(number), REQUEST["root"])


def sweep() -> None:
    """Be the sweep's process."""
    log = os.open(REQUEST["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    subprocess.Popen = start  # type: ignore[misc,assignment]
    _inject("sweep")
    from leval_harness import sweep as module

    module._report = lambda folder: True  # the report is another part's, and not killed here
    sys.argv = ["leval-harness", "sweep", *REQUEST["arguments"]]
    code = module.command.main(REQUEST["arguments"], standalone_mode=False)
    sys.stdout.flush()
    os._exit(int(code or 0))


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
                sweep()
            except BaseException:  # noqa: BLE001 - a fork must never fall back into this loop
                traceback.print_exc()
            os._exit(99)
        print(f"pid {child}", flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)  # noqa: T201
