"""How tasks of lm-eval are told how long a cell's texts are to be: one fact a folder of its tasks.

lm-eval chains the lengths of a list and `limit` takes the first questions of the chain, so a cell
asks for one length alone: then its count is that length's own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leval_border.errors import not_allowed, shown
from leval_harness.sweep.config_values import listed
from leval_harness.sweep.errors import ConfigError

KEY = "max_seq_lengths"
"""The setting in `--metadata` by which tasks of lm-eval take a length."""


@dataclass(frozen=True, kw_only=True)
class LengthFact:
    """What a folder of lm-eval's tasks does with a length.

    Attributes:
        reason: why, in a sentence.
        setting: `KEY`'s value for a length in tokens, None for one that there is not; without this
            the texts are as they are, and the backend cuts what is too long for the model on the
            left, which results count.
        allowed: the lengths there are, in words.
        beside: tokens that a prompt and its answer may take beyond the length.
        tokenizer: texts are made with the run's tokenizer.
    """

    reason: str
    setting: Callable[[int], Any] | None = None
    allowed: str = ""
    beside: int = 0
    tokenizer: bool = False


def _babilong(length: int) -> str | None:
    name = f"{length // 1024}k"
    return name if length % 1024 == 0 and name in BABILONG else None


BABILONG = ("0k", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k")
"""Configurations of the hub's `RMT-team/babilong-1k-samples`."""

FACTS: dict[str, LengthFact] = {
    "ruler": LengthFact(
        reason="texts are made to the length with the model's tokenizer; the answer prefix, and "
        "with fwe the 50 tokens of the answer, come on top",
        setting=lambda length: [length],
        beside=128,
        tokenizer=True,
    ),
    "babilong": LengthFact(
        reason="the hub has a configuration a length, counted in another tokenizer; examples "
        "and instructions come on top",
        setting=_babilong,
        allowed=", ".join(str(int(name[:-1]) * 1024) for name in BABILONG),
        beside=512,
    ),
    "longbench": LengthFact(reason="documents as they are, most below 16,384 tokens"),
    "longbench2": LengthFact(reason="documents as they are, from 8,000 words to 2 million"),
    "infinitebench": LengthFact(reason="documents as they are, 100,000 tokens and more"),
}
"""Folder below `lm_eval/tasks` -> what its tasks do with a length; all others are as LongBench."""

AS_THEY_ARE = LengthFact(reason="texts as they are")


@cache
def lm_eval_index() -> Mapping[str, Any]:
    """lm-eval's index: name -> entry, for tasks, groups and tags. Takes seconds the first time."""
    from lm_eval.tasks import TaskManager

    return dict(TaskManager()._index)


def facts_of(tasks: Iterable[str]) -> dict[str, LengthFact]:
    """Task, group or tag of lm-eval -> what it does with a length; those of ours are not asked."""
    index, known = lm_eval_index(), {}
    for name in tasks:
        entry = index[name]
        paths = [entry.yaml_path] if entry.yaml_path else []
        paths += [index[each].yaml_path for each in sorted(entry.tags) if not paths]
        folders = {_folder(Path(path)) for path in paths if path}
        found = [FACTS.get(folder, AS_THEY_ARE) for folder in sorted(folders)]
        known[name] = next((fact for fact in found if fact.setting), (found or [AS_THEY_ARE])[0])
    return known


def _folder(path: Path) -> str:
    """The folder of a task right below `lm_eval/tasks`."""
    parts = path.parts
    last = max((at for at, part in enumerate(parts) if part == "tasks"), default=-1)
    return parts[last + 1] if last + 2 < len(parts) else ""


@dataclass(frozen=True)
class CellLength:
    """What one length means for a cell.

    Attributes:
        metadata: how the tasks are told it.
        beside: tokens that the model has to read beyond it.
        tokenizer: name of a task that makes its texts with the run's tokenizer; empty without one.
    """

    metadata: dict[str, Any]
    beside: int = 0
    tokenizer: str = ""


def of_cell(
    tasks: Iterable[str], metadata: Mapping[str, Any], length: int | None, *, others: bool
) -> CellLength:
    """The metadata that tells tasks of lm-eval a cell's length; `others` are in the cell as well.

    Raises:
        ConfigError: several lengths, one that is not the cell's, or one that a task has not.
    """
    facts = {name: fact for name, fact in facts_of(tasks).items() if fact.setting}
    if not facts:
        return CellLength({})
    tokenizer = next((name for name, fact in facts.items() if fact.tokenizer), "")
    given = metadata.get(KEY)
    if isinstance(given, list | tuple) and len(given) > 1:
        raise ConfigError(
            f"metadata.{KEY}: {shown(given)}: lm-eval asks the lengths one after the other, and "
            "`limit` takes the first questions of all; write context_lengths, a cell a length"
        )
    if length is None:
        return CellLength({}, tokenizer=tokenizer)
    values = {name: fact.setting(length) for name, fact in facts.items() if fact.setting}
    for name, value in values.items():
        if value is None:
            raise ConfigError(
                not_allowed(f"context_lengths of {name}", length, facts[name].allowed)
            )
        if value != next(iter(values.values())):
            raise ConfigError(
                f"tasks: {name} and {next(iter(values))} are told their length differently; write "
                "them as two entries"
            )
        if given is not None and [*map(str, listed(given))] != [*map(str, listed(value))]:
            raise ConfigError(
                f"metadata.{KEY}: {shown(given)} is not the cell's length of {length}; write it as "
                "context_lengths of the sweep instead"
            )
    beside = 0 if others else max(fact.beside for fact in facts.values())
    return CellLength({KEY: value}, beside, tokenizer)
