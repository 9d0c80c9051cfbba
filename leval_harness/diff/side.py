"""Read one side of a comparison, or load a side that was saved before.

A checkpoint is loaded in a process of its own, so that all of its memory is released before the other
side is loaded. A saved file holds the documents, too: a check in CI needs neither setup A nor data.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from leval_harness.backends import get_backend, load_target
from leval_harness.diff.reader import CHAT, Reader
from leval_harness.diff.setups import SERVER, Setup
from leval_tasks.common.token_logprobs import Logprobs
from leval_tasks.perplexity.documents import Document
from resonance_vllm.common.errors import (
    RunError,
    SettingError,
    UserError,
    escape_control_characters,
)

DEFAULT_LENGTH = 4096
"""Tokens read of a document where neither `--length` nor the limit of A says otherwise."""


@dataclass(frozen=True)
class Side:
    """Hold the documents, token ids and log-probabilities that one setup has read.

    Attributes:
        setup: the setup as the user wrote it, its RoPE settings and versions.
        documents: the documents that were read.
        encoded: the token ids of each document in this setup's own tokenizer; None if it does not
            expose them.
        chat: the token ids of `CHAT`, see `Reader.template`.
        rows: the token ids that were scored, `[documents][length]`, the same for A and B.
        logprobs: natural logarithms for every token but the first of a row, float32
            `[documents, length - 1]`.
    """

    setup: dict[str, Any]
    documents: list[Document]
    encoded: list[list[int] | None]
    chat: list[int] | None
    rows: list[list[int]]
    logprobs: Logprobs

    def save(self, path: Path) -> None:
        """Write this side to a file, which appears complete or not at all."""
        documents = [[document.name, document.text] for document in self.documents]
        header = {"setup": self.setup, "documents": documents, "template": self.chat}
        temporary = path.with_name(f".{path.name}.part")
        with temporary.open("wb") as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(header)),
                ids=np.array(self.rows, np.int32),
                logprobs=self.logprobs,
            )
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the side that `save` wrote to `path`.

        Raises:
            SettingError: the file cannot be read, or `save` did not write it.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                header = json.loads(str(content["about"]))
                rows = content["ids"].tolist()
                logprobs = content["logprobs"]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            message = f"{path} is not a reference saved by `leval-harness diff --save`: {error}"
            raise SettingError(message) from None
        return cls(
            setup={**header["setup"], "saved": str(path)},
            documents=[Document(name, text) for name, text in header["documents"]],
            encoded=rows,
            chat=header["template"],
            rows=rows,
            logprobs=logprobs,
        )


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process and return its reader."""
    _report(f"loading {setup.text}")
    # Imported here: torch and vLLM are slow to import, and a server needs neither.
    if setup.kind == SERVER:
        from leval_harness.diff.server import ServerReader

        return ServerReader(setup)
    reader: Reader = load_target(get_backend(setup.kind).diff_reader)(setup)
    return reader


def read_side(
    setup: Setup,
    documents: Sequence[Document],
    rows: Sequence[list[int]] | None = None,
    length: int | None = None,
    count: int = 1,
) -> Side:
    """Load a setup, score documents with it, and close it.

    Args:
        setup: the setup to load.
        documents: the documents to read; for B, those that A has read.
        rows: for B, the token ids that A has scored, `[documents][length]`. None for A, which scores
            the beginnings of the first `count` documents that are long enough.
        length: tokens that A reads of each document. None is 4,096, or A's limit if that is lower.
        count: documents that A reads.

    Raises:
        UserError: the setup cannot be loaded, exposes no tokenizer (A), cannot read so many tokens or
            cannot score them, or no document is long enough.
    """
    side = "B"
    with closing(open_reader(setup)) as reader:
        if rows is None:
            side = "A"
            if length is None:
                length = min(DEFAULT_LENGTH, reader.limit or DEFAULT_LENGTH)
            beginnings = _beginnings(setup, reader, documents, length, count)
            documents = list(beginnings)
            rows = list(beginnings.values())
        if reader.limit is not None and len(rows[0]) > reader.limit:
            raise UserError(
                f"{side} reads at most {reader.limit} tokens, fewer than the {len(rows[0])} of the "
                f"documents; --length {reader.limit} compares up to there"
            )
        encoded: list[list[int] | None] = list(rows)
        if side == "B":
            encoded = [reader.encode(document.text) for document in documents]
        logprobs = _score(side, reader, rows)
        chat = reader.template(CHAT)
    return Side(setup.described(), list(documents), encoded, chat, list(rows), logprobs)


def _score(side: str, reader: Reader, rows: Sequence[list[int]]) -> Logprobs:
    """Return the log-probabilities of all rows, float32 `[documents, length - 1]`.

    Raises:
        RunError: a log-probability is not finite.
    """
    logprobs: list[Logprobs] = []
    for number, row in enumerate(rows, 1):
        scores = reader.read(row)  # [length - 1]
        _report(f"{side}: document {number} of {len(rows)}, {len(row):,} tokens")
        not_finite = np.flatnonzero(~np.isfinite(scores))
        if not_finite.size:
            index = not_finite[0]
            raise RunError(
                f"{side}: the log-probability at position {index + 1} of document {number} is "
                f"{scores[index]}; check the setup's dtype and RoPE settings"
            )
        logprobs.append(scores)
    return np.stack(logprobs)


def _beginnings(
    setup: Setup, reader: Reader, documents: Sequence[Document], length: int, count: int
) -> dict[Document, list[int]]:
    """Return the first `length` token ids of the first `count` documents that are long enough."""
    beginnings: dict[Document, list[int]] = {}
    for document in documents:
        ids = reader.encode(document.text)
        if ids is None:
            raise UserError(
                f"{setup.text} does not expose its tokenizer, so it cannot be A; pass it as B"
            )
        if len(ids) >= length:
            beginnings[document] = ids[:length]
        if len(beginnings) == count:
            break
    if not beginnings:
        raise UserError(
            f"none of {len(documents)} documents has {length} tokens: pass a shorter --length, or "
            "other --documents"
        )
    return beginnings


def _report(line: str) -> None:
    sys.stderr.write(escape_control_characters(line) + "\n")


def in_process(*arguments: Any) -> Side:
    """Run `read_side` in a new process and return its result.

    Raises:
        UserError: `read_side` raised it, or the process ended without a result.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_read_in_child, *arguments).result()
        except BrokenProcessPool:
            raise RunError(
                "the process that loads the setup crashed or ran out of memory; try a shorter --length"
            ) from None
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _read_in_child(*arguments: Any) -> Side:
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        return read_side(*arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not every library's exception can be pickled
        raise RunError(f"{type(error).__name__}: {error}") from None
