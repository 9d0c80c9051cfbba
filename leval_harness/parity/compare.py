"""`diff(a, b)`: A reads texts and is closed, B reads the same tokens, the losses are compared."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from leval_harness.parity.result import DiffResult, compare_lengths, findings_of
from leval_harness.parity.setups import SAVED, Setup
from leval_harness.parity.side import DEFAULT_LENGTH, Side, first_side, in_process, second_side
from leval_harness.parity.texts import read_texts
from leval_tasks.statistics.difference import MARGIN
from resonance_vllm.errors import SettingError
from resonance_vllm.settings import Settings, read

SEED = 0
"""Order in which texts are taken; the same in every run."""
Sided = Setup | str | os.PathLike[str]


class Options(Settings):
    """How to compare.

    Attributes:
        texts: a source of `texts.read_texts`.
        lengths: tokens of a text; () is 4,096 or what A can read. A saved reference has its own.
        count: texts.
        margin: nats a token; a smaller difference counts as none.
        ignore: kinds of findings that do not count.
        isolated: whether each checkpoint is loaded in a process of its own.
    """

    texts: str = "pydocs"
    lengths: tuple[Annotated[int, Field(ge=8, strict=False)], ...] = Field((), strict=False)
    count: PositiveInt = 8
    margin: PositiveFloat = MARGIN
    ignore: tuple[Literal["bos", "tokenizer", "template"], ...] = Field((), strict=False)
    isolated: bool = True


def diff(a: Sided, b: Sided, **options: Any) -> DiffResult:
    """Does setup `b` still read like setup `a`?

    Args:
        a: a setup, its text as `setups` reads it, or the path of a saved reference.
        b: the other one; it is loaded, so no saved reference.
        **options: fields of `Options`.

    Raises:
        SettingError: a setup or an option is wrong.
        UserError: a setup cannot be loaded or cannot score given tokens.

    Example:
        >>> result = diff("hf:smollm2", "vllm:smollm2,kv_cache_dtype=fp8_e4m3")  # doctest: +SKIP
        >>> result.verdict, result.lengths[0].bins[0].start  # doctest: +SKIP
        ('worse', 0)
    """
    wanted, first, second = read(Options, options), _setup(a), _setup(b)
    if second.kind == SAVED:
        raise SettingError(f"B: {second.text} is a saved reference, which can only be A")
    for each in (first, second):
        each.rope()  # what is written wrong is found before a model is loaded, which takes long
    of_a = _first(first, wanted)
    of_b = _run(second, wanted, second_side, second, of_a.texts, of_a.rows)
    return DiffResult(
        a=of_a.setup,
        b=of_b.setup,
        lengths=compare_lengths(of_a.logprobs, of_b.logprobs, wanted.margin),
        findings=tuple(findings_of(of_a, of_b)),
        ignored=wanted.ignore,
        texts=tuple({"name": each.name, "sha256": each.sha256} for each in of_a.texts),
    )


def save_reference(a: Sided, path: Path, **options: Any) -> Side:
    """Let a setup read the texts and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`.
    """
    reference = _first(_setup(a), read(Options, options))
    reference.save(path)
    return reference


def _setup(given: Sided) -> Setup:
    return given if isinstance(given, Setup) else Setup.parse(os.fspath(given))


def _first(setup: Setup, options: Options) -> Side:
    """What A reads of the options' texts, or what a saved reference holds."""
    if setup.kind == SAVED:
        return Side.load(Path(setup.target).expanduser())
    lengths = sorted(set(options.lengths))
    texts = read_texts(options.texts, max(lengths, default=DEFAULT_LENGTH))
    random.Random(SEED).shuffle(texts)
    return _run(setup, options, first_side, setup, texts, lengths, options.count)


def _run(setup: Setup, options: Options, function: Callable[..., Side], *arguments: Any) -> Side:
    apart = options.isolated and setup.library is not None
    return in_process(function, *arguments) if apart else function(*arguments)
