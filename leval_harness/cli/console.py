"""The terminal of a command: signals, readers that leave, credentials, errors and exit codes."""

import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

import click

from leval_harness.secrets import redact
from resonance_vllm.errors import SettingError, needs_extra, printable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler that ends a job, a terminal that is closed."""

_LINES = re.compile(r"[\n\r\t]")
_MOVES = re.compile(r"(\n|\x1b\[A)+")
"""What a progress bar writes to move between lines."""


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


class SafeStream:
    """A text stream that credentials do not pass.

    Attributes:
        names: whether values are hidden for their names too, see `redact`.
        plain: whether control characters are written as escapes, except for line ends and tabs.
        needs_reader: whether it is an error that nobody takes the output: `| head`, a closed
            terminal, a full disk. If not, the output is dropped from then on.
    """

    def __init__(self, stream: TextIO, *, names: bool, plain: bool = False) -> None:
        self.stream = stream
        self.names = names
        self.plain = plain
        self.needs_reader = True

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        safe = redact(text, names=self.names)
        if self.plain and not _MOVES.fullmatch(text):
            pairs = zip(_LINES.split(safe), [*_LINES.findall(safe), ""], strict=True)
            safe = "".join(printable(part) + end for part, end in pairs)
        with self._reader():
            self.stream.write(safe)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand what was written to the reader."""
        with self._reader():
            self.stream.flush()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            if self.needs_reader:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def outlive_readers() -> None:
    """Let the command go on when nobody reads its output any more."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, SafeStream):
            stream.needs_reader = False


@contextlib.contextmanager
def safe_streams(names: bool = False, plain: bool = False) -> Iterator[None]:
    """Print to `SafeStream`s inside; messages on standard error are always redacted by names."""
    out = SafeStream(sys.stdout, names=names, plain=plain)
    err = SafeStream(sys.stderr, names=True, plain=plain)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


EXTRAS = {
    "hf": ("torch", "transformers", "accelerate", "safetensors", "tokenizers"),
    "quickstart": ("gguf", "sentencepiece"),
    "ray": ("ray",),
    "ruler": ("nltk", "wonderwords"),
    "train": ("peft",),
    "vllm": ("vllm",),
}
"""Packages that the base installation lacks, and the extra that brings them."""

MENDABLE = (ValueError, OSError, ImportError, NotImplementedError)
"""With these, libraries tell a user what is missing or cannot be done."""


def _extra_for(error: BaseException) -> str:
    """What to install where a package of an extra is missing; empty for every other error."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    found = [extra for extra, packages in EXTRAS.items() if missing in packages]
    return f"; {needs_extra(found[0])}" if found else ""


def _say(message: str) -> None:
    """Print a message, which may quote names from results and files that could steer a terminal."""
    click.echo(f"Error: {_escaped(message)}", err=True)


def _escaped(message: str) -> str:
    return "\n".join(map(printable, message.split("\n")))


def exit_code_for(error: BaseException) -> int:
    """Print `error` as a user should see it and return the exit code.

    1 has failed, 2 is wrong usage (a `SettingError`, or what click refuses), 130 interrupted; a
    `SystemExit` keeps its own code.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        _say(error.code)
        return 1
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("Interrupted.", err=True)
        return 130
    if isinstance(error, click.ClickException):
        quotes = _escaped(error.format_message())
        error.format_message = lambda: quotes  # type: ignore[method-assign]
        error.show()
        return error.exit_code
    from_template = type(error).__module__.startswith("jinja2")
    mendable = isinstance(error, MENDABLE) or from_template
    if os.environ.get("LEVAL_HARNESS_DEBUG") or not mendable:
        traceback.print_exception(error)
    reason = str(error) or type(error).__name__  # a MemoryError says nothing
    _say(f"{'chat template: ' if from_template else ''}{reason}{_extra_for(error)}")
    return 2 if isinstance(error, SettingError) else 1
