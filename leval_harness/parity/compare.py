"""`diff(a, b)`: both setups read the same tokens, until it is decided or the budget is spent."""

import os
import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from leval_harness.parity.findings import (
    CHAT,
    Finding,
    compare_encodings,
    compare_templates,
    probe,
)
from leval_harness.parity.reading import Reading
from leval_harness.parity.result import DiffResult, LengthResult, length_result
from leval_harness.parity.saved import Reference
from leval_harness.parity.setups import SAVED, SERVER, Setup
from leval_harness.parity.sides import Options, Side
from leval_harness.parity.texts import ids_sha256, read_texts
from leval_harness.parity.worker import both_fit
from leval_tasks.perplexity.documents import Text
from leval_tasks.statistics.equivalence import looks_at
from resonance_vllm.config import refuse_missing_folder
from resonance_vllm.errors import SettingError, UserError, not_allowed, shown

DEFAULT_LENGTH = 4096
SEED = 0
"""Order in which texts are taken; the same in every run."""


class Comparison:
    """Two sides (or one, to save it), the texts, and the budget."""

    def __init__(self, a: Setup, b: Setup | None, options: Options) -> None:
        self.options, self.started = options, time.monotonic()
        # What is written wrong is found before a setup is loaded, which takes long.
        for setup in filter(None, (a, b)):
            if setup.library is not None:
                refuse_missing_folder(setup.target, "model")
                if "rope" in setup.arguments:
                    setup.backend_arguments()
            elif setup.kind != SERVER and not Path(setup.target).expanduser().is_file():
                raise SettingError(f"setup: there is no file {shown(setup.target)}")
        self.reference = Reference.load(Path(a.target).expanduser()) if a.kind == SAVED else None
        if self.reference is not None:
            kept = tuple(sorted({len(ids) for ids in self.reference.ids.values()}))
            if missing := sorted(set(options.lengths) - set(kept)):
                allowed = f"{kept}, the lengths in {a.target}"
                raise SettingError(not_allowed("--lengths", missing, allowed))
            options = replace(options, lengths=options.lengths or kept)
        longest = max(options.lengths, default=DEFAULT_LENGTH)
        self.found = self._texts(longest)
        self.stay = b is None or both_fit(a, b)
        self.a = Side("A", a, options, longest)
        self.b = None if b is None else Side("B", b, options, longest)
        self.sides = [self.a] if self.b is None else [self.a, self.b]
        self.lengths = options.lengths or (self._longest_of(self.a, longest),)
        if max(self.lengths) < longest:
            self.found = self._texts(max(self.lengths))
        self.texts: list[Text] = []
        self.encodings: dict[str, list[int]] = {}

    def _texts(self, longest: int) -> list[Text]:
        """The texts in the order in which they are taken; too short ones among them."""
        if self.reference is not None:
            return self.reference.texts
        found = read_texts(self.options.texts, longest, self.options.data_dir)
        random.Random(SEED).shuffle(found)
        return found

    def _longest_of(self, side: Side, longest: int) -> int:
        limit = self.use(side).call("limit")
        return longest if limit is None else min(longest, int(limit))

    def use(self, side: Side) -> Side:
        """A side, the other one unloaded if both do not fit."""
        for other in self.sides:
            if other is not side and not self.stay:
                other.close()
        return side

    def close(self) -> None:
        """End the processes."""
        for side in self.sides:
            side.close()

    def choose_texts(self) -> list[Finding]:
        """Pin the texts and their tokens; compare how both sides make tokens.

        Raises:
            UserError: too few texts are long enough, or a side cannot read so many tokens.
        """
        longest, found = max(self.lengths), self.found
        rendered: list[dict[str, Any]] = []
        templates = []
        for side in self.sides:
            limit = self.use(side).call("limit")
            if limit is not None and longest > limit:
                raise UserError(
                    f"{side.name} reads at most {limit} tokens, fewer than the {longest} of the "
                    f"texts; --lengths {limit} compares up to there"
                )
            rendered.append(self._encodings(side, found, longest))
            templates.append(side.call("template", CHAT))
        tokens = next((each for each in rendered if None not in each.values()), None)
        if tokens is None:
            raise UserError("neither setup makes tokens of a text; compare with one that does")
        chosen = [each for each in found if len(tokens[each.sha256]) >= longest]
        self.texts = chosen[: self.options.count]
        if len(self.texts) < 3:
            raise UserError(
                f"{len(self.texts)} of {len(found)} texts have {longest} tokens; at least 3 are "
                "needed: shorter --lengths, or other --texts"
            )
        self.encodings = {each.sha256: tokens[each.sha256] for each in self.texts}
        self.template = templates[0]
        if self.b is None:
            return []
        names = {each.sha256: each.name for each in found}
        a, b = ({names[k]: v for k, v in each.items()} for each in rendered)
        return compare_encodings(a, b) + compare_templates(*templates)

    def _encodings(self, side: Side, texts: Sequence[Text], longest: int) -> dict[str, Any]:
        made = {}
        for text in texts:
            ids = side.call("encode", text.text)
            made[text.sha256] = None if ids is None else ids[:longest]
        return made

    def probe(self) -> list[Finding]:
        """What both sides generate, against their own readings."""
        rows = self.rows(min(self.lengths), 2)
        sides = [side for side in self.sides if side.setup.kind != SAVED]
        return [each for side in sides for each in probe(self.use(side), *rows)]

    def rows(self, length: int, texts: int) -> list[list[int]]:
        """Token ids of the first texts."""
        return [self.encodings[each.sha256][:length] for each in self.texts[:texts]]

    def read(self, length: int, texts: int) -> None:
        """Let all sides read the first texts, until the budget is spent."""
        rows = self.rows(length, texts)
        size = max(side.setup.batch_size for side in self.sides)
        batches = [rows[at : at + size] for at in range(0, len(rows), size)]
        if self.stay:
            for batch in batches:
                if self._late():
                    return
                for side in self.sides:
                    side.read(batch)
            return
        for part, side in zip((0.5, 1.0), self.sides, strict=True):
            spent = time.monotonic() - self.started
            until = spent + part * (self.options.budget - spent)
            for batch in batches:
                if time.monotonic() - self.started > until:
                    break
                self.use(side).read(batch)

    def _late(self) -> bool:
        return time.monotonic() - self.started > self.options.budget

    def pairs(self, length: int, texts: int) -> list[tuple[Reading, Reading]]:
        """Readings of both sides of the texts that both have read."""
        assert self.b is not None
        found = [(self.a.known(row), self.b.known(row)) for row in self.rows(length, texts)]
        return [(a, b) for a, b in found if a is not None and b is not None]

    def decide(self) -> list[LengthResult]:
        """Look after 4, 8, 16, … texts, until every length is decided or the budget is spent."""
        results: dict[int, LengthResult] = {}
        left = 1.0  # of the level; time ends a comparison whatever its texts say: it is all spent
        for look in looks_at(len(self.texts)):
            for length in self.lengths:
                if length in results and results[length].verdict != "undecided":
                    continue
                self.read(length, look.texts)
                last = look.last or self._late()
                results[length] = length_result(
                    length,
                    self.pairs(length, look.texts),
                    margin=self.options.margin,
                    share=left if last else look.share,
                    lengths=len(self.lengths),
                    last=last,
                )
            left -= look.share
            if self._late() or all(each.verdict != "undecided" for each in results.values()):
                break
        return [results[length] for length in self.lengths]

    def reference_of(self, side: Side) -> Reference:
        """What a side has read, to be saved."""
        ids = {ids_sha256(row): row for n in self.lengths for row in self.rows(n, len(self.texts))}
        known = {key: side.readings[key] for key in ids if key in side.readings}
        lengths_read = [len([k for k in known if len(ids[k]) == n]) for n in self.lengths]
        texts = self.texts[: min(lengths_read)]
        keep = {ids_sha256(row) for n in self.lengths for row in self.rows(n, len(texts))}
        return Reference(
            setup=side.described(),
            texts=texts,
            encodings={each.sha256: self.encodings[each.sha256] for each in texts},
            template=self.template,
            readings={key: known[key] for key in keep},
            ids={key: ids[key] for key in keep},
        )


SetupLike = Setup | str | os.PathLike[str]


def _setup(given: SetupLike) -> Setup:
    return given if isinstance(given, Setup) else Setup.parse(os.fspath(given))


def diff(
    a: SetupLike,
    b: SetupLike,
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
        >>> result.verdict, result.lengths[0].equivalence.onset  # doctest: +SKIP
        ('worse', 0)
    """
    options = replace(options or Options(), **more).checked()
    with closing(Comparison(_setup(a), _setup(b), options)) as run:
        findings = run.choose_texts()
        if options.probe:
            findings += run.probe()
        lengths = run.decide()
        if save is not None:
            run.reference_of(run.a).write(Path(save))
        return DiffResult(
            a=run.a.described(),
            b=run.b.described() if run.b else {},
            lengths=tuple(lengths),
            findings=tuple(findings),
            ignored=options.ignore,
            texts=tuple({"name": each.name, "sha256": each.sha256} for each in run.texts),
            seconds=time.monotonic() - run.started,
        )


def save_reference(
    a: SetupLike, path: Path, options: Options | None = None, **more: Any
) -> Reference:
    """Let a setup read the texts and keep what it reads, for `diff --against`.

    Raises:
        UserError: as for `diff`, or the budget did not suffice for three texts.
    """
    options = replace(options or Options(), **more).checked()
    with closing(Comparison(_setup(a), None, options)) as run:
        run.choose_texts()
        for length in run.lengths:
            run.read(length, len(run.texts))
        reference = run.reference_of(run.a)
        if len(reference.texts) < 3:
            raise UserError(f"--budget: {options.budget:g} s were spent after "
                            f"{len(reference.texts)} texts; at least 3 are needed")  # fmt: skip
        reference.write(path)
        return reference
