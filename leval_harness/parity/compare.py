"""`diff(a, b)`: A reads texts and is closed, B reads the same tokens, the losses are compared."""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leval_harness.parity.findings import (
    CHAT,
    KINDS,
    compare_encodings,
    compare_templates,
)
from leval_harness.parity.reading import Reading
from leval_harness.parity.result import DiffResult, compare_lengths
from leval_harness.parity.saved import SavedReader
from leval_harness.parity.setups import SAVED, SERVER, Setup
from leval_harness.parity.texts import read_texts
from leval_harness.parity.worker import Side
from leval_tasks.perplexity.documents import Text
from leval_tasks.statistics.difference import MARGIN
from resonance_vllm.config import refuse_missing_folder
from resonance_vllm.errors import SettingError, UserError, not_allowed, one_of, shown

DEFAULT_LENGTH = 4096
COUNT = 8
"""Texts, unless another number is asked for."""
SEED = 0
"""Order in which texts are taken; the same in every run."""


@dataclass(frozen=True)
class Options:
    """How to compare.

    Attributes:
        texts: a source of `texts.read_texts`.
        data_dir: folder of the corpora.
        lengths: tokens of a text, ascending; () is 4,096 or what both can read, and for a saved
            reference its own lengths.
        count: texts.
        margin: nats a token; a smaller difference counts as none.
        ignore: kinds of findings that do not count: `bos`, `tokenizer`, `template`.
        out: folder in which readings are kept, so that a stopped diff resumes.
        isolated: whether each setup runs in a process of its own.
    """

    texts: str = "pydocs"
    data_dir: str | None = None
    lengths: tuple[int, ...] = ()
    count: int = COUNT
    margin: float = MARGIN
    ignore: tuple[str, ...] = ()
    out: Path | None = None
    isolated: bool = True
    report: Callable[[str], None] = field(default=lambda line: None, compare=False)

    def checked(self) -> "Options":
        """Itself.

        Raises:
            SettingError: names the option and what is allowed.
        """
        if any(length < 8 for length in self.lengths):
            raise SettingError(not_allowed("--lengths", self.lengths, "at least 8 tokens each"))
        if self.count < 1:
            raise SettingError(not_allowed("--count", self.count, "at least 1 text"))
        if not 0 < self.margin < float("inf"):
            raise SettingError(not_allowed("--margin", self.margin, "a number above 0"))
        for kind in self.ignore:
            one_of("--ignore", kind, KINDS)
        return replace(self, lengths=tuple(sorted(set(self.lengths))))


@dataclass(frozen=True)
class Read:
    """What one side has said.

    Attributes:
        described: for the results.
        encodings: name of a text -> token ids as this side makes them; None: it cannot say.
        template: token ids of `CHAT`, see `Reader.template`.
        rows: token ids that were read, and their readings.
    """

    described: dict[str, Any]
    encodings: dict[str, list[int] | None]
    template: list[int] | None
    rows: list[list[int]]
    readings: list[Reading]


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
    options = replace(options or Options(), **more).checked()
    setups = [_checked(each) for each in (a, b)]
    ropes = [setup.rope() for setup in setups]
    texts, lengths = _texts(setups[0], options)
    if not options.lengths:
        limits = (setup.stated_limit() for setup in setups)
        lengths = tuple(min([each, *filter(None, limits)]) for each in lengths)
    first = _let_read(setups[0], texts, lengths, options)
    second = _read_rows(setups[1], texts, first.rows, options)
    if save is not None:
        _saved(first, texts).save(Path(save))
    return DiffResult(
        a=first.described,
        b=second.described,
        ropes=(ropes[0], ropes[1]),
        lengths=compare_lengths(first.readings, second.readings, options.margin),
        findings=(
            *compare_encodings(first.encodings, second.encodings),
            *compare_templates(first.template, second.template),
        ),
        ignored=options.ignore,
        texts=tuple({"name": each.name, "sha256": each.sha256} for each in _used(first, texts)),
        seconds=time.monotonic() - started,
    )


def save_reference(
    a: "Setup | str | os.PathLike[str]", path: Path, options: Options | None = None, **more: Any
) -> SavedReader:
    """Let a setup read the texts and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`.
    """
    options = replace(options or Options(), **more).checked()
    setup = _checked(a)
    texts, lengths = _texts(setup, options)
    reference = _saved(_let_read(setup, texts, lengths, options), texts)
    reference.save(path)
    return reference


def _checked(given: "Setup | str | os.PathLike[str]") -> Setup:
    """A setup; what is written wrong is found before a model is loaded, which takes long."""
    setup = given if isinstance(given, Setup) else Setup.parse(os.fspath(given))
    if setup.library is not None:
        refuse_missing_folder(setup.target, "model")
    elif setup.kind != SERVER and not Path(setup.target).expanduser().is_file():
        raise SettingError(f"setup: there is no file {shown(setup.target)}")
    return setup


def _texts(a: Setup, options: Options) -> tuple[list[Text], tuple[int, ...]]:
    """The texts in the order in which they are taken, too short ones among them; the lengths."""
    if a.kind == SAVED:
        reference = SavedReader.load(Path(a.target).expanduser())
        if missing := sorted(set(options.lengths) - set(reference.lengths)):
            allowed = f"{reference.lengths}, the lengths in {a.target}"
            raise SettingError(not_allowed("--lengths", missing, allowed))
        return reference.texts, options.lengths or reference.lengths
    lengths = options.lengths or (DEFAULT_LENGTH,)
    found = read_texts(options.texts, max(lengths), options.data_dir)
    random.Random(SEED).shuffle(found)
    return found, lengths


def _let_read(
    setup: Setup, texts: Sequence[Text], lengths: Sequence[int], options: Options
) -> Read:
    """A reads the texts in its own tokens.

    Raises:
        UserError: it makes no tokens, cannot read so many, or no text is long enough.
    """
    with _side("A", setup, options) as side:
        if (limit := side.call("limit")) is not None and not options.lengths:
            lengths = sorted({min(each, limit) for each in lengths})
        encodings = {each.name: side.call("encode", each.text) for each in texts}
        if None in encodings.values():
            raise UserError(f"{setup.text} makes no tokens of a text: give it as B")
        longest = max(lengths)
        long = [each for each in encodings.values() if len(each) >= longest][: options.count]
        if not long:
            raise UserError(
                f"none of {len(texts)} texts has {longest} tokens: shorter --lengths, or other "
                "--texts"
            )
        rows = [ids[:length] for length in lengths for ids in long]
        return _answers(side, encodings, rows, limit)


def _read_rows(
    setup: Setup, texts: Sequence[Text], rows: list[list[int]], options: Options
) -> Read:
    """B reads the tokens of A; without `lengths` as many of them as it can."""
    with _side("B", setup, options) as side:
        limit = side.call("limit")
        if limit is not None and not options.lengths:
            rows = [row[:limit] for row in rows]
        longest = max(map(len, rows))
        encodings = {}
        for each in texts:
            ids = side.call("encode", each.text)
            encodings[each.name] = None if ids is None else ids[:longest]
        return _answers(side, encodings, rows, limit)


def _side(name: str, setup: Setup, options: Options) -> Side:
    out = None if options.out is None else options.out / "readings"
    return Side(name, setup, out=out, isolated=options.isolated, report=options.report)


def _answers(
    side: Side, encodings: Mapping[str, Any], rows: list[list[int]], limit: int | None
) -> Read:
    longest = max(map(len, rows))
    if limit is not None and longest > limit:
        raise UserError(
            f"{side.name} reads at most {limit} tokens, fewer than the {longest} of the texts; "
            f"--lengths {limit} compares up to there"
        )
    facts, setup = side.call("facts"), side.setup
    described = {"text": setup.text, **setup.identity(), "facts": facts}
    if setup.kind == SAVED:
        described = {**facts, "saved": setup.target}
    return Read(described, dict(encodings), side.call("template", CHAT), rows, side.read(rows))


def _used(read: Read, texts: Sequence[Text]) -> list[Text]:
    """The texts that were read."""
    starts = {tuple(row) for row in read.rows}
    sizes = {len(row) for row in read.rows}
    made = {each.name: read.encodings[each.name] or [] for each in texts}
    return [each for each in texts if any(tuple(made[each.name][:n]) in starts for n in sizes)]


def _saved(read: Read, texts: Sequence[Text]) -> SavedReader:
    used = _used(read, texts)
    return SavedReader(read.described, used, read.template, read.rows, read.readings)
