"""What one side of a comparison has read: made by a setup, or a file that was saved before.

A checkpoint is loaded in a process of its own, which gives all of its memory back when it ends. A
saved file holds the texts, too, so that a gate in CI needs neither setup A nor data.
"""

import json
import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from zipfile import BadZipFile

import numpy as np

from leval_harness.parity.setups import SERVER, Setup
from leval_tasks.perplexity.documents import Text
from leval_tasks.token_logprobs import Logprobs
from resonance_vllm.errors import RunError, SettingError, UserError, printable

Answer = TypeVar("Answer")

Messages = list[dict[str, str]]

DEFAULT_LENGTH = 4096
SCHEMA = 3
"""Of saved files."""
CHAT: Messages = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Which river flows through Paris?"},
    {"role": "assistant", "content": "The Seine."},
    {"role": "user", "content": "And through Vienna? Think of 3 names: \"Inn\", 'Donau', Raab."},
]
"""The chat that both templates render: a system message, several turns, quotation marks."""


class Reader(ABC):
    """A loaded setup; `limit` is the most tokens of a text, None where it is not known."""

    limit: int | None

    @abstractmethod
    def encode(self, text: str) -> list[int] | None:
        """Token ids as this setup makes them of a text, BOS included; None: it cannot say."""

    @abstractmethod
    def template(self, messages: Messages) -> list[int] | None:
        """Token ids of a chat, rendered for an answer; [] without a template, None: unknown."""

    @abstractmethod
    def read(self, rows: Sequence[list[int]]) -> Iterator[Logprobs]:
        """Natural logarithm of the probability of each token but the first, text after text."""

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """End what the reader started."""


@dataclass(frozen=True)
class Side:
    """What one setup has read.

    Attributes:
        setup: the setup as it was written, its RoPE settings and versions.
        texts: what was read.
        encoded: token ids of each text as this setup makes them; None: it cannot say.
        chat: token ids of `CHAT`, see `Reader.template`.
        rows: token ids that were read, of each text at each length.
        logprobs: of the tokens of each row but the first.
    """

    setup: dict[str, Any]
    texts: list[Text]
    encoded: list[list[int] | None]
    chat: list[int] | None
    rows: list[list[int]]
    logprobs: list[Logprobs]

    def save(self, path: Path) -> None:
        """Write the file, which appears whole or not at all."""
        texts = [[each.name, each.text] for each in self.texts]
        about = {"schema": SCHEMA, "setup": self.setup, "texts": texts, "template": self.chat}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        for number, (row, logprob) in enumerate(zip(self.rows, self.logprobs, strict=True)):
            arrays[f"ids.{number}"], arrays[f"logprob.{number}"] = np.array(row, np.int32), logprob
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            SettingError: it is no such file, or of another schema.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = dict(content)
            about = json.loads(str(arrays.pop("about")))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            said = f"{path} is no reference saved by `leval-harness diff --save`: {error}"
            raise SettingError(said) from None
        if about["schema"] != SCHEMA:
            raise SettingError(f"{path}: schema {about['schema']!r}, not {SCHEMA}; save it again")
        numbers = range(len(arrays) // 2)
        rows = [arrays[f"ids.{number}"].tolist() for number in numbers]
        longest = max(map(len, rows))
        return cls(
            setup={**about["setup"], "saved": str(path)},
            texts=[Text(name, text) for name, text in about["texts"]],
            encoded=[row for row in rows if len(row) == longest],
            chat=about["template"],
            rows=rows,
            logprobs=[arrays[f"logprob.{number}"] for number in numbers],
        )


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process."""
    if setup.kind == SERVER:
        from leval_harness.parity.server import ServerReader

        return ServerReader(setup)
    from leval_harness.parity.local import HFReader, VLLMReader

    return HFReader(setup) if setup.library == "transformers" else VLLMReader(setup)


def first_side(setup: Setup, texts: Sequence[Text], lengths: Sequence[int], count: int) -> Side:
    """Load A, let it read the beginnings of the first `count` long enough texts, and close it.

    `lengths` are tokens of a text; none is 4,096 or what the setup can read.

    Raises:
        UserError: it cannot be loaded, makes no tokens, cannot read so many or does not score them,
            or no text is long enough.
    """
    with _loaded("A", setup) as reader:
        wanted = lengths or [min(DEFAULT_LENGTH, reader.limit or DEFAULT_LENGTH)]
        found: dict[Text, list[int]] = {}
        for text in texts:
            if (ids := reader.encode(text.text)) is None:
                raise UserError(f"{setup.text} makes no tokens of a text: give it as B")
            if len(ids) >= max(wanted):
                found[text] = ids[: max(wanted)]
            if len(found) == count:
                break
        if not found:
            asked = f"{max(wanted)} tokens: shorter --lengths, or other --texts"
            raise UserError(f"none of {len(texts)} texts has {asked}")
        rows = [ids[:size] for size in wanted for ids in found.values()]
        return _read("A", setup, reader, rows, list(found), list(found.values()))


def second_side(setup: Setup, texts: Sequence[Text], rows: Sequence[list[int]]) -> Side:
    """Load B, let it read the token ids `rows` that A has read of `texts`, and close it.

    Raises:
        UserError: it cannot be loaded, cannot read so many tokens or does not score them.
    """
    with _loaded("B", setup) as reader:
        encoded = [reader.encode(each.text) for each in texts]
        return _read("B", setup, reader, rows, texts, encoded)


def _loaded(name: str, setup: Setup) -> closing[Reader]:
    _report(f"{name}: loading {setup.text}")
    return closing(open_reader(setup))


def _read(
    name: str,
    setup: Setup,
    reader: Reader,
    rows: Sequence[list[int]],
    texts: Sequence[Text],
    encoded: Sequence[list[int] | None],
) -> Side:
    longest = max(map(len, rows))
    if reader.limit is not None and longest > reader.limit:
        raise UserError(
            f"{name} reads at most {reader.limit} tokens, fewer than the {longest} of the texts; "
            f"--lengths {reader.limit} compares up to there"
        )
    logprobs = []
    for at, found in enumerate(reader.read(rows), 1):
        _report(f"{name}: text {at} of {len(rows)}, {len(found) + 1:,} tokens")
        for wrong in np.flatnonzero(~np.isfinite(found))[:1]:
            place = f"position {wrong + 1} of text {at}"
            raise RunError(f"{name}: log-probability {found[wrong]} at {place}")
        logprobs.append(found)
    about = setup.described()
    return Side(about, list(texts), list(encoded), reader.template(CHAT), list(rows), logprobs)


def _report(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")


def in_process(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """What a function returns in a new process.

    Raises:
        UserError: what the function raises, or the process ended without an answer.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_answer, function, arguments).result()
        except BrokenProcessPool:
            raise RunError(
                "its process ended: it crashed, or ran out of memory (take shorter --lengths)"
            ) from None
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _answer(function: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not all that libraries raise can be sent
        raise RunError(f"{type(error).__name__}: {error}") from None
