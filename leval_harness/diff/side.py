"""What one side of a comparison has read: made by a setup, or a file that was saved before.

A checkpoint is loaded in a process of its own, which gives all of its memory back when it ends. A
saved file holds the documents, too, so that a gate in CI needs neither setup A nor data.
"""

import json
import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from leval_harness.diff.setups import SERVER, Setup
from leval_tasks.common.token_logprobs import Logprobs
from leval_tasks.perplexity.documents import Document
from resonance_vllm.common.errors import (
    RunError,
    SettingError,
    UserError,
    escape_control_characters,
)

Messages = list[dict[str, str]]

DEFAULT_LENGTH = 4096
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
    def read(self, tokens: list[int]) -> Logprobs:
        """Natural logarithm of the probability of each token of a text but the first."""

    def close(self) -> None:  # noqa: B027 - most readers have nothing to end
        """End what the reader started."""


@dataclass(frozen=True)
class Side:
    """What one setup has read.

    Attributes:
        setup: the setup as it was written, its RoPE settings and versions.
        documents: what was read.
        encoded: token ids of each text as this setup makes them; None: it cannot say.
        chat: token ids of `CHAT`, see `Reader.template`.
        rows: token ids that were read of each text, all of one length.
        logprobs: of the tokens of each row but the first, float32 `[documents, length - 1]`.
    """

    setup: dict[str, Any]
    documents: list[Document]
    encoded: list[list[int] | None]
    chat: list[int] | None
    rows: list[list[int]]
    logprobs: Logprobs

    def save(self, path: Path) -> None:
        """Write the file, which appears whole or not at all."""
        documents = [[each.name, each.text] for each in self.documents]
        about = {"setup": self.setup, "documents": documents, "template": self.chat}
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb") as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(about)),
                ids=np.array(self.rows, np.int32),
                logprobs=self.logprobs,
            )
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            SettingError: it is no such file.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                about = json.loads(str(content["about"]))
                rows, logprobs = content["ids"].tolist(), content["logprobs"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            said = f"{path} is no reference saved by `leval-harness diff --save`: {error}"
            raise SettingError(said) from None
        return cls(
            setup={**about["setup"], "saved": str(path)},
            documents=[Document(name, text) for name, text in about["documents"]],
            encoded=rows,
            chat=about["template"],
            rows=rows,
            logprobs=logprobs,
        )


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process."""
    _report(f"loading {setup.text}")
    if setup.kind == SERVER:
        from leval_harness.diff.server import ServerReader

        return ServerReader(setup)
    from leval_harness.diff.local import HFReader, VLLMReader

    return HFReader(setup) if setup.library == "transformers" else VLLMReader(setup)


def read_side(
    setup: Setup,
    documents: Sequence[Document],
    rows: Sequence[list[int]] | None = None,
    length: int | None = None,
    count: int = 1,
) -> Side:
    """Load a setup, let it read documents, and close it.

    B reads the token ids `rows` that A has read. A, which has none, reads the beginnings of the
    first `count` documents of `length` tokens, which are 4,096 or what it can read where it is
    None.

    Raises:
        UserError: it cannot be loaded, makes no tokens, cannot read so many or does not score them,
            or no text is long enough.
    """
    name = "A" if rows is None else "B"
    logprobs: list[Logprobs] = []
    with closing(open_reader(setup)) as reader:
        if rows is None:
            length = length or min(DEFAULT_LENGTH, reader.limit or DEFAULT_LENGTH)
            found = _beginnings(setup, reader, documents, length, count)
            documents, rows = list(found), list(found.values())
        if reader.limit is not None and len(rows[0]) > reader.limit:
            raise UserError(
                f"{name} reads at most {reader.limit} tokens, fewer than the {len(rows[0])} of the "
                f"documents; --length {reader.limit} compares up to there"
            )
        encoded = rows if name == "A" else [reader.encode(each.text) for each in documents]
        for at, row in enumerate(rows, 1):
            logprobs.append(reader.read(row))
            _report(f"{name}: text {at} of {len(rows)}, {len(row):,} tokens")
            for wrong in np.flatnonzero(~np.isfinite(logprobs[-1]))[:1]:
                place = f"position {wrong + 1} of text {at}"
                raise RunError(f"{name}: log-probability {logprobs[-1][wrong]} at {place}")
        chat = reader.template(CHAT)
    return Side(
        setup.described(), list(documents), list(encoded), chat, list(rows), np.stack(logprobs)
    )


def _beginnings(
    setup: Setup, reader: Reader, documents: Sequence[Document], length: int, count: int
) -> dict[Document, list[int]]:
    """The first `length` token ids of the first `count` documents that have so many."""
    found: dict[Document, list[int]] = {}
    for text in documents:
        if (ids := reader.encode(text.text)) is None:
            raise UserError(f"{setup.text} makes no tokens of a text: give it as B")
        if len(ids) >= length:
            found[text] = ids[:length]
        if len(found) == count:
            break
    if not found:
        asked = f"{length} tokens: shorter --length, or other --documents"
        raise UserError(f"none of {len(documents)} documents has {asked}")
    return found


def _report(line: str) -> None:
    sys.stderr.write(escape_control_characters(line) + "\n")


def in_process(*arguments: Any) -> Side:
    """What `read_side` returns in a new process.

    Raises:
        UserError: what it raises, or the process ended without an answer.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_answer, *arguments).result()
        except BrokenProcessPool:
            raise RunError(
                "its process ended: it crashed, or ran out of memory (take shorter --length)"
            ) from None
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _answer(*arguments: Any) -> Side:
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        return read_side(*arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not all that libraries raise can be sent
        raise RunError(f"{type(error).__name__}: {error}") from None
