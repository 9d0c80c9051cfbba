"""Read one side of a comparison, or load a side that was saved before.

A checkpoint is loaded in a process of its own, so that all of its memory is released before the other
side is loaded. A saved file holds the documents, too: a check in CI needs neither setup A nor data.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
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
from resonance_vllm.common.files import unique_name

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
        temporary = path.with_name(unique_name(f".{path.name}"))
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


class Lengths(NamedTuple):
    """How many tokens A reads of each document.

    Attributes:
        length: the tokens; None for as many as A reads, up to `most`.
        most: tokens where no length is given.
    """

    length: int | None
    most: int = DEFAULT_LENGTH

    def resolved(self, limit: int | None) -> int:
        """Return the tokens for a setup that reads at most `limit`."""
        if self.length is not None:
            return self.length
        if limit is None:
            return self.most
        return min(self.most, limit)


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process and return its reader."""
    # Imported here: torch and vLLM are slow to import, and a server needs neither.
    if setup.kind == SERVER:
        from leval_harness.diff.server import ServerReader

        _report(f"asking {setup.text}")
        return ServerReader(setup)
    _report(f"loading {setup.text}")
    reader: Reader = load_target(get_backend(setup.kind).diff_reader)(setup)
    return reader


def server_limit(setup: Setup | None) -> int | None:
    """Return the longest sequence in tokens that a server scores.

    None is returned where there is no setup, or another one than a server, and for a server that
    does not say.

    Raises:
        UserError: the server does not answer, or does not serve the model.
    """
    if setup is None or setup.kind != SERVER:
        return None
    return open_reader(setup).limit


def refuse_longer(side: str, length: int, limit: int | None) -> None:
    """Refuse documents that a side cannot read in full.

    Raises:
        UserError: names the longest length.
    """
    if limit is not None and length > limit:
        raise RunError(
            f"{side} reads at most {limit} tokens, fewer than the {length} of the documents; "
            f"--length {limit} compares up to there"
        )


def read_a(setup: Setup, documents: Sequence[Document], lengths: Lengths, count: int) -> Side:
    """Load setup A, score the beginnings of documents with it, and close it.

    Args:
        setup: the setup to load.
        documents: candidates, of which the first `count` that are long enough are read.
        lengths: tokens that are read of each document.
        count: number of documents.

    Raises:
        UserError: the setup cannot be loaded, exposes no tokenizer, cannot read so many tokens or
            cannot score them, or no document is long enough.
    """
    with closing(open_reader(setup)) as reader:
        length = lengths.resolved(reader.limit)
        refuse_longer("A", length, reader.limit)
        beginnings = _beginnings(setup, reader, documents, length, count)
        rows = list(beginnings.values())
        logprobs = _score("A", reader, rows)
        chat = reader.template(CHAT)
    return Side(setup.described(), list(beginnings), list(rows), chat, rows, logprobs)


def read_b(setup: Setup, documents: Sequence[Document], rows: Sequence[list[int]]) -> Side:
    """Load setup B, score with it what A has scored, and close it.

    Args:
        setup: the setup to load.
        documents: the documents that A has read.
        rows: the token ids that A has scored, `[documents][length]`.

    Raises:
        UserError: the setup cannot be loaded, cannot read so many tokens, or cannot score them.
    """
    with closing(open_reader(setup)) as reader:
        refuse_longer("B", len(rows[0]), reader.limit)
        encoded = [reader.encode(document.text) for document in documents]
        logprobs = _score("B", reader, rows)
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
            raise RunError(
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


def in_process(function: Callable[..., Side], *arguments: Any) -> Side:
    """Call `read_a` or `read_b` in a new process and return its result.

    Raises:
        UserError: the function raised it, or the process ended without a result.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_call_in_child, function, *arguments).result()
        except BrokenProcessPool:
            raise RunError(
                "the process that loads the setup crashed or ran out of memory; try a shorter --length"
            ) from None
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _call_in_child(function: Callable[..., Side], *arguments: Any) -> Side:
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not every library's exception can be pickled
        raise RunError(f"{type(error).__name__}: {error}") from None
