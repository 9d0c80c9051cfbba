"""A long command and whoever started it: signals that end it, a terminal that goes away."""

import contextlib
import io
import signal
import sys
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler that ends a job, a terminal that is closed."""


def stop_on_signals() -> None:
    """Make each of `ENDING` a `KeyboardInterrupt`, once: what cleans up after it is left alone.

    A signal that whoever started this process had it ignore (`nohup`) stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


class _Outlet(io.RawIOBase):
    """A file that takes what is written to it as long as somebody reads, and then drops it."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.inner = raw

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.inner.isatty()

    def fileno(self) -> int:
        return self.inner.fileno()

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        with contextlib.suppress(OSError):
            return self.inner.write(data) or 0
        return len(data)


def outlive_readers() -> None:
    """Go on when nobody takes the output any more: `| head`, a closed terminal, a full disk."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # unbuffered where PYTHONUNBUFFERED is set
        if not isinstance(raw, io.FileIO):
            continue
        stream.flush()
        outlet = io.BufferedWriter(_Outlet(raw))  # type: ignore[type-var]
        text = io.TextIOWrapper(outlet, stream.encoding, stream.errors, line_buffering=True)
        setattr(sys, name, text)
