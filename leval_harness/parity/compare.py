"""`diff(a, b)`: A reads texts and is closed, B reads the same tokens, the losses are compared."""

import os
import random
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from leval_harness.parity.findings import compare_encodings, compare_templates
from leval_harness.parity.result import DiffResult, compare_lengths
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.setups import SAVED, Setup
from leval_harness.parity.texts import read_texts
from leval_harness.parity.worker import DEFAULT_LENGTH, Encodings, in_process, let_read
from leval_tasks.statistics.difference import MARGIN
from resonance_vllm.errors import SettingError, not_allowed
from resonance_vllm.settings import Settings, read

SEED = 0
"""Order in which texts are taken; the same in every run."""


class Options(Settings):
    """How to compare.

    Attributes:
        texts: a source of `texts.read_texts`.
        lengths: tokens of a text; () is 4,096 or what both can read, and for a saved reference its
            own lengths.
        count: texts.
        margin: nats a token; a smaller difference counts as none.
        ignore: kinds of findings that do not count.
        isolated: whether each checkpoint is loaded in a process of its own.
    """

    texts: str = "pydocs"
    lengths: tuple[Annotated[int, Field(ge=8)], ...] = Field((), strict=False)
    count: PositiveInt = 8
    margin: PositiveFloat = MARGIN
    ignore: tuple[Literal["bos", "tokenizer", "template"], ...] = Field((), strict=False)
    isolated: bool = True


def diff(
    a: "Setup | str | os.PathLike[str]",
    b: "Setup | str | os.PathLike[str]",
    options: Options | None = None,
    *,
    save: str | os.PathLike[str] | None = None,
    **more: Any,
) -> DiffResult:
    """Does setup `b` still read like setup `a`?

    Args:
        a: a setup, its text as `setups` reads it, or a path.
        b: the other one.
        options: how to compare.
        save: file in which what A reads is kept as a reference.
        **more: single fields of `Options`.

    Raises:
        SettingError: a setup or an option is wrong.
        UserError: a setup cannot be loaded or cannot score given tokens.

    Example:
        >>> result = diff("hf:smollm2", "vllm:smollm2,kv_cache_dtype=fp8_e4m3")  # doctest: +SKIP
        >>> result.verdict, result.lengths[0].bins[0].start  # doctest: +SKIP
        ('worse', 0)
    """
    started = time.monotonic()
    options = options.changed(**more) if options else read(Options, more)
    first, second = _checked(a), _checked(b)
    of_a, made_by_a = _first(first, options)
    asked = (of_a.texts, options.lengths, options.count, of_a.rows)
    of_b, made_by_b = _side("B", second, options, *asked)
    if save is not None:
        of_a.save(Path(save))
    return DiffResult(
        a=of_a.setup,
        b=of_b.setup,
        lengths=compare_lengths(of_a.readings, of_b.readings, options.margin),
        findings=(
            *compare_encodings(made_by_a, made_by_b),
            *compare_templates(of_a.chat, of_b.chat),
        ),
        ignored=options.ignore,
        texts=tuple({"name": each.name, "sha256": each.sha256} for each in of_a.texts),
        seconds=time.monotonic() - started,
    )


def save_reference(
    a: "Setup | str | os.PathLike[str]", path: Path, options: Options | None = None, **more: Any
) -> SavedReader:
    """Let a setup read the texts and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`.
    """
    options = options.changed(**more) if options else read(Options, more)
    reference, _ = _first(_checked(a), options)
    reference.save(path)
    return reference


def _checked(given: "Setup | str | os.PathLike[str]") -> Setup:
    """A setup; what is written wrong is found before a model is loaded, which takes long."""
    setup = given if isinstance(given, Setup) else Setup.parse(os.fspath(given))
    setup.rope()
    return setup


def _first(setup: Setup, options: Options) -> tuple[SavedReader, Encodings]:
    """A reads the texts of the options, or its own if it is a saved reference."""
    lengths = sorted(set(options.lengths))
    if setup.kind == SAVED:
        reference = SavedReader.load(Path(setup.target).expanduser())
        if missing := sorted(set(lengths) - set(reference.lengths)):
            allowed = f"{reference.lengths}, the lengths in {setup.target}"
            raise SettingError(not_allowed("--lengths", missing, allowed))
        texts, lengths = reference.texts, lengths or reference.lengths
    else:
        texts = read_texts(options.texts, max(lengths, default=DEFAULT_LENGTH))
        random.Random(SEED).shuffle(texts)
    return _side("A", setup, options, texts, lengths, options.count)


def _side(name: str, setup: Setup, options: Options, *asked: Any) -> tuple[SavedReader, Encodings]:
    if options.isolated and setup.library is not None:
        return in_process(let_read, name, setup, *asked)
    return let_read(name, setup, *asked)
