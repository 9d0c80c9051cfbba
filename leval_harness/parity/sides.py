"""How two setups are compared, and each of them with what it has read so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from leval_harness.parity.findings import KINDS
from leval_harness.parity.reading import Reading
from leval_harness.parity.setups import SAVED, SERVER, Setup
from leval_harness.parity.texts import ids_sha256
from leval_harness.parity.worker import Worker
from leval_tasks.statistics.skewed_t import MARGIN
from resonance_vllm.errors import SettingError, UserError, not_allowed, one_of

Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to compare.

    Attributes:
        texts: a source of `texts.read_texts`.
        data_dir: folder of the corpora.
        lengths: tokens of a text, ascending; () is 4,096 or what both can read, and for a saved
            reference its own lengths.
        count: most texts.
        margin: nats a token; a smaller difference counts as none.
        budget: seconds, loading included; the last batch may exceed it.
        ignore: kinds of findings that do not count: `bos`, `tokenizer`, `template`, `probe`.
        probe: whether to generate a few tokens, too.
        out: folder in which readings are kept, so that a stopped diff resumes.
        isolated: whether each setup runs in a process of its own.
    """

    texts: str = "pydocs"
    data_dir: str | None = None
    lengths: tuple[int, ...] = ()
    count: int = 16
    margin: float = MARGIN
    budget: float = 300.0
    ignore: tuple[str, ...] = ()
    probe: bool = False
    out: Path | None = None
    isolated: bool = True
    report: Report = field(default=lambda line: None, compare=False)

    def checked(self) -> "Options":
        """Itself.

        Raises:
            SettingError: names the option and what is allowed.
        """
        if any(length < 8 for length in self.lengths):
            raise SettingError(not_allowed("--lengths", self.lengths, "at least 8 tokens each"))
        if self.count < 3:
            raise SettingError(not_allowed("--count", self.count, "at least 3 texts"))
        for name, value in (("--margin", self.margin), ("--budget", self.budget)):
            if not 0 < value < float("inf"):
                raise SettingError(not_allowed(name, value, "a number above 0"))
        for kind in self.ignore:
            one_of("--ignore", kind, KINDS)
        return replace(self, lengths=tuple(sorted(set(self.lengths))))


class Side:
    """A setup with what it has read so far."""

    def __init__(self, name: str, setup: Setup, options: Options, longest: int) -> None:
        self.name, self.setup, self.options, self.longest = name, setup, options, longest
        self.worker: Worker | None = None
        self.readings: dict[str, Reading] = {}
        self.facts: dict[str, Any] = {}

    def call(self, name: str, *arguments: Any) -> Any:
        """Of the reader, which is loaded if it is not."""
        if self.worker is None:
            self.options.report(f"{self.name}: loading {self.setup.text}")
            self.worker = Worker(self.setup, self.longest, isolated=self.options.isolated)
            self.facts = self.worker.call("facts")
        return self.worker.call(name, *arguments)

    def close(self) -> None:
        """Free the memory of the loaded setup."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def known(self, ids: list[int]) -> Reading | None:
        """The reading of these tokens if it was made already, in this run or a stopped one."""
        key = ids_sha256(ids)
        file = self._file(ids)
        if key not in self.readings and file is not None and file.is_file():
            self.readings[key] = Reading.load(file)
        return self.readings.get(key)

    def read(self, rows: Sequence[list[int]]) -> None:
        """Score texts that are not known yet."""
        rows = [row for row in rows if self.known(row) is None]
        if not rows:
            return
        self.options.report(f"{self.name}: {len(rows)} x {len(rows[0]):,} tokens")
        for row, reading in zip(rows, self.call("read", rows), strict=True):
            if not np.isfinite(reading.logprob).all():
                at = int(np.flatnonzero(~np.isfinite(reading.logprob))[0]) + 1
                raise UserError(f"{self.name}: log-probability {reading.logprob[at - 1]} at "
                                f"position {at} of {len(row)}")  # fmt: skip
            self.readings[ids_sha256(row)] = reading
            if file := self._file(row):
                file.parent.mkdir(parents=True, exist_ok=True)
                reading.save(file)

    def _file(self, ids: list[int]) -> Path | None:
        """Where a reading is kept; nowhere for a server, which may run something else next time."""
        if self.options.out is None or self.setup.kind in (SERVER, SAVED):
            return None
        return self.options.out / "readings" / f"{self.setup.key(ids)}.npz"

    def described(self) -> dict[str, Any]:
        """What goes into results about this setup."""
        if self.setup.kind == SAVED and self.facts:
            return {**self.facts, "saved": self.setup.target}
        return {"text": self.setup.text, **self.setup.identity(), "facts": self.facts}
