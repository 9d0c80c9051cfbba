"""The terminal of a command: signals, errors and exit codes."""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator
from types import FrameType

import click

from resonance_vllm.common.errors import RunError, UserError, install_hint

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler that ends a job, a terminal that is closed."""
EXTRAS = {
    "hf": ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "gguf"),
    "ray": ("ray",),
    "ruler": ("nltk", "wonderwords"),
    "train": ("peft",),
    "vllm": ("vllm",),
}
"""Packages that the base installation lacks, and the extra that brings them."""
MENDABLE = (ValueError, OSError, ImportError, NotImplementedError)
"""With these, libraries tell a user what is missing or cannot be done."""


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first of the `ENDING` signals; ignore those that follow.

    The cleaning up after the interrupt is thus not interrupted itself. A signal that this process
    was started to ignore (`nohup`) stays ignored. The handlers of before are restored at the end.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _extra_for(error: BaseException) -> str:
    """What to install where a package of an extra is missing; empty for every other error."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    found = [extra for extra, packages in EXTRAS.items() if missing in packages]
    return f"; {install_hint(found[0])}" if found else ""


def exit_code_for(error: BaseException) -> int:
    """Print `error` as a user should see it and return the exit code.

    1 has failed, 2 is wrong usage or input (a `UserError` that is no `RunError`, or what click
    refuses), 130 interrupted.
    """
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("Interrupted.", err=True)
        return 130
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    from_template = type(error).__module__.startswith("jinja2")
    if os.environ.get("LEVAL_HARNESS_DEBUG") or not (isinstance(error, MENDABLE) or from_template):
        traceback.print_exception(error)
    reason = str(error) or type(error).__name__  # a MemoryError says nothing
    where = "chat template: " if from_template else ""
    click.echo(f"Error: {where}{reason}{_extra_for(error)}", err=True)
    return 2 if isinstance(error, UserError) and not isinstance(error, RunError) else 1
