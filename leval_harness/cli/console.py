"""The terminal of a command: signals, errors and exit codes."""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator
from types import FrameType

import click

from resonance_vllm.common.errors import RunError, UserError, install_hint

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent by Ctrl-C, by a scheduler that ends a job, and by a terminal that is closed."""
EXTRAS = {
    "hf": ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "gguf"),
    "ray": ("ray",),
    "ruler": ("nltk", "wonderwords"),
    "train": ("peft",),
    "vllm": ("vllm",),
}
"""Extra of this package -> packages that it installs and the base installation lacks."""
EXPECTED_ERRORS = (ValueError, OSError, ImportError, NotImplementedError)
"""Errors by which libraries tell a user what is missing or unsupported; printed without traceback."""


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first of `END_SIGNALS`, and ignore those that follow.

    Ignoring them keeps a second Ctrl-C from interrupting the clean-up. A signal that this process
    was started to ignore (`nohup`) stays ignored. The earlier handlers are restored at the end.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for end_signal in END_SIGNALS:
            signal.signal(end_signal, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    try:
        for number, handler in handlers.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def exit_code_for(error: BaseException) -> int:
    """Print an error as a user should see it, and return the exit code.

    Returns:
        1 for a failure, 2 for wrong usage or input (a `UserError` that is not a `RunError`, or an
        error of click), 130 for an interrupt.
    """
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("Interrupted.", err=True)
        return 130
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    from_template = type(error).__module__.startswith("jinja2")
    expected = from_template or isinstance(error, EXPECTED_ERRORS)
    if os.environ.get("LEVAL_HARNESS_DEBUG") or not expected:
        traceback.print_exception(error)
    message = str(error) or type(error).__name__  # a MemoryError has no message
    if from_template:
        message = f"chat template: {message}"
    click.echo(f"Error: {message}{_install_advice(error)}", err=True)
    if isinstance(error, UserError) and not isinstance(error, RunError):
        return 2
    return 1


def _install_advice(error: BaseException) -> str:
    """Return how to install the extra of a missing package; empty for every other error."""
    if isinstance(error, ModuleNotFoundError):
        for extra, packages in EXTRAS.items():
            if error.name in packages:
                return f"; {install_hint(extra)}"
    return ""
