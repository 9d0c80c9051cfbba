"""A setup in a process of its own, and what it has read so far.

Two engines in one process would share threads, devices and what libraries set globally, and a
process gives all of its memory back when it ends.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np

from leval_harness.parity.reading import Reader, Reading
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.setups import SAVED, SERVER, Setup
from resonance_vllm.errors import UserError

PATIENCE = 20.0
"""Seconds that a process has to end by itself."""


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process."""
    if setup.kind == SAVED:
        return SavedReader.load(Path(setup.target).expanduser())
    if setup.kind == SERVER:
        from leval_harness.parity.server import ServerReader

        return ServerReader(setup)
    from leval_harness.parity.local import HFReader, VLLMReader

    return HFReader(setup) if setup.library == "transformers" else VLLMReader(setup)


_reader: Reader | None = None


def _open(setup: Setup) -> None:
    global _reader
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        _reader = open_reader(setup)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not all that libraries raise can be sent
        raise UserError(f"{type(error).__name__}: {error}") from None


def _answer(reader: Reader | None, name: str, *arguments: Any) -> Any:
    """A method or an attribute of a reader; iterators come back as lists."""
    found = getattr(reader, name)
    found = found(*arguments) if callable(found) else found
    return list(found) if isinstance(found, Iterator) else found


def _call(name: str, *arguments: Any) -> Any:
    try:
        return _answer(_reader, name, *arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - as in `_open`
        raise UserError(f"{type(error).__name__}: {error}") from None


def _close() -> None:
    if _reader is not None:
        _reader.close()


class Side:
    """A loaded setup, a context manager; `out` is a folder in which its readings are kept.

    Raises:
        UserError: the setup cannot be loaded, or its process ended.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        *,
        out: Path | None = None,
        isolated: bool = True,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name, self.setup, self.report = name, setup, report
        # A server may run something else next time, and a reference is on disk already.
        self.kept = None if setup.kind in (SERVER, SAVED) else out
        self._pool: ProcessPoolExecutor | None = None
        self._here: Reader | None = None
        report(f"{name}: loading {setup.text}")
        if not isolated or setup.kind in (SAVED, SERVER):
            self._here = open_reader(setup)
            return
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pid = self._in_pool(os.getpid)
        try:
            self._in_pool(_open, setup)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """A method or an attribute of the reader; iterators come back as lists."""
        if self._here is not None:
            return _answer(self._here, name, *arguments)
        return self._in_pool(_call, name, *arguments)

    def read(self, rows: Sequence[list[int]]) -> list[Reading]:
        """Score texts; what an earlier run has kept is not read again.

        Raises:
            UserError: a log-probability is not a finite number.
        """
        found = {tuple(row): reading for row in rows if (reading := self._known(row))}
        left = [row for row in rows if tuple(row) not in found]
        size = self.setup.batch_size
        for start in range(0, len(left), size):
            batch = left[start : start + size]
            which = f"text {len(rows) - len(left) + start + 1} of {len(rows)}"
            self.report(f"{self.name}: {which}, {len(batch[0]):,} tokens")
            for row, reading in zip(batch, self.call("read", batch), strict=True):
                self._check(reading)
                self._keep(row, reading)
                found[tuple(row)] = reading
        return [found[tuple(row)] for row in rows]

    def _check(self, reading: Reading) -> None:
        bad = np.flatnonzero(~np.isfinite(reading.logprob))
        if bad.size:
            value, tokens = reading.logprob[bad[0]], len(reading.logprob) + 1
            where = f"position {bad[0] + 1} of {tokens}"
            raise UserError(f"{self.name}: log-probability {value} at {where}")

    def _file(self, row: list[int]) -> Path | None:
        return None if self.kept is None else self.kept / f"{self.setup.key(row)}.npz"

    def _known(self, row: list[int]) -> Reading | None:
        file = self._file(row)
        if file is None or not file.is_file():
            return None
        with np.load(file, allow_pickle=False) as content:
            return Reading(**dict(content))

    def _keep(self, row: list[int], reading: Reading) -> None:
        """In a file, which appears whole or not at all."""
        if (file := self._file(row)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            with part.open("wb") as handle:
                np.savez(handle, **vars(reading))
            part.replace(file)

    def _in_pool(self, function: Any, *arguments: Any) -> Any:
        assert self._pool is not None
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise UserError(
                f"{self.setup.text}: its process ended, out of memory or by a crash of the engine"
            ) from None

    def close(self) -> None:
        """End the process, and those that an engine started in it."""
        if self._here is not None:
            self._here.close()
            self._here = None
        if self._pool is not None:
            import psutil

            family = []
            with suppress(psutil.Error):
                process = psutil.Process(self._pid)
                family = [process, *process.children(recursive=True)]
            with suppress(Exception):  # it may have crashed, or hang: it is ended below
                self._pool.submit(_close).result(PATIENCE)
            self._pool.shutdown(wait=False, cancel_futures=True)
            _, alive = psutil.wait_procs(family, PATIENCE)
            for each in alive:
                with suppress(psutil.Error):
                    each.kill()
            self._pool = None
