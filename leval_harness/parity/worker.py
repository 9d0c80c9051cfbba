"""What one side does: load, read, and end. A checkpoint is loaded in a process of its own.

Two engines in one process would share devices and what libraries set globally, and a process gives
all of its memory back when it ends.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from leval_harness.parity.findings import CHAT
from leval_harness.parity.reading import Reader
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.setups import SAVED, SERVER, Setup
from leval_tasks.perplexity.documents import Text
from resonance_vllm.errors import UserError, printable

DEFAULT_LENGTH = 4096
Encodings = dict[str, list[int] | None]
"""Name of a text -> its token ids as a side makes them; None: it cannot say."""


def open_reader(setup: Setup) -> Reader:
    """Load a setup in this process."""
    if setup.kind == SAVED:
        return SavedReader.load(Path(setup.target).expanduser())
    if setup.kind == SERVER:
        from leval_harness.parity.server import ServerReader

        return ServerReader(setup)
    from leval_harness.parity.local import HFReader, VLLMReader

    return HFReader(setup) if setup.library == "transformers" else VLLMReader(setup)


def let_read(
    name: str,
    setup: Setup,
    texts: Sequence[Text],
    lengths: Sequence[int],
    count: int,
    rows: list[list[int]] | None = None,
) -> tuple[SavedReader, Encodings]:
    """Load a setup, let it read, and close it.

    Args:
        name: `A` or `B`, for messages.
        setup: what reads.
        texts: for A all that there are, in the order in which they are taken; for B those of A.
        lengths: tokens of a text; none cuts texts to what the setup can read.
        count: texts of A.
        rows: for B the token ids that A has read; None lets A make them.

    Raises:
        UserError: it cannot be loaded, makes no tokens, cannot read so many or does not score them,
            or no text is long enough.
    """
    _report(f"{name}: loading {setup.text}")
    reader = open_reader(setup)
    try:
        encodings = {each.name: reader.encode(each.text) for each in texts}
        if rows is None:
            default = min(DEFAULT_LENGTH, reader.limit or DEFAULT_LENGTH)
            texts, rows = _rows(setup, texts, encodings, lengths or [default], count)
        elif not lengths:
            rows = [row[: reader.limit] for row in rows]
        longest = max(map(len, rows))
        if reader.limit is not None and longest > reader.limit:
            raise UserError(
                f"{name} reads at most {reader.limit} tokens, fewer than the {longest} of the "
                f"texts; --lengths {reader.limit} compares up to there"
            )
        readings = []
        for at, reading in enumerate(reader.read(rows), 1):
            _report(f"{name}: text {at} of {len(rows)}, {len(reading.logprob) + 1:,} tokens")
            readings.append(reading.checked(name))
        described = {**setup.described(), "facts": reader.facts()}
        if isinstance(reader, SavedReader):
            described = {**reader.setup, "saved": setup.target}
        return SavedReader(described, list(texts), reader.template(CHAT), rows, readings), encodings
    finally:
        reader.close()


def _rows(
    setup: Setup, texts: Sequence[Text], encodings: Encodings, lengths: Sequence[int], count: int
) -> tuple[list[Text], list[list[int]]]:
    """What A reads: the beginnings of so many texts that are long enough."""
    if None in encodings.values():
        raise UserError(f"{setup.text} makes no tokens of a text: give it as B")
    long = [text for text in texts if len(encodings[text.name] or ()) >= max(lengths)][:count]
    if not long:
        raise UserError(
            f"none of {len(texts)} texts has {max(lengths)} tokens: shorter --lengths, or other "
            "--texts"
        )
    return long, [(encodings[text.name] or [])[:n] for n in lengths for text in long]


def _report(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a new process, which gives all of its memory back.

    Raises:
        UserError: what the function raises, or the process ended without an answer.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_answer, function, arguments).result()
        except BrokenProcessPool:
            raise UserError(
                "its process ended: it crashed, or ran out of memory (take shorter --lengths)"
            ) from None
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    os.dup2(2, 1)  # engines log to standard output, which is for the result alone
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - not all that libraries raise can be sent
        raise UserError(f"{type(error).__name__}: {error}") from None
