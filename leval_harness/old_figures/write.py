"""Every figure that the results have data for, as SVG and PNG."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.effective_context import effective_lines
from leval_harness.analysis.entries import TOKEN_PERPLEXITIES, grouped
from leval_harness.analysis.labels import length_label, task_label
from leval_harness.old_figures.effective_context import effective_figure
from leval_harness.old_figures.rope import rope_figure
from leval_harness.old_figures.scores import difference_figure, length_figure
from leval_harness.old_figures.style import Looks, method_looks, write_figure
from leval_harness.old_results.rope_features import RopeFeatures, read_features

MOST_METHODS = 14
"""More curves in one figure cannot be distinguished; such a block gets no figure."""

MOST_FIGURES = 60
"""Results of many models with more figures than this get none: each takes half a second."""


@dataclass(frozen=True)
class Planned:
    """A figure that can be drawn, given how each method looks; `kind` begins its file name."""

    kind: str
    title: str
    draw: Callable[[Looks], Any]


def write_figures(analysis: Analysis, folder: Path) -> dict[str, str]:
    """Write the figures into `folder`, under names made here, and return `name -> title`.

    The names bear no extension: each figure is an SVG and a PNG. An OSError if that fails. None
    where there would be more than `MOST_FIGURES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    titles: dict[str, str] = {}
    planned = list(islice(planned_figures(analysis), MOST_FIGURES + 1))
    looks = method_looks(analysis.titles)
    for figure in planned if len(planned) <= MOST_FIGURES else ():
        name = f"{figure.kind}-{len(titles):03d}"
        draw = partial(figure.draw, looks)
        write_figure(draw, folder / f"{name}.svg", folder / f"{name}.png")
        titles[name] = figure.title
    return titles


def planned_figures(analysis: Analysis) -> Iterator[Planned]:
    """What there is to draw: gains by position, scores by length, differences, RoPE."""
    finished = [entry for entry in analysis.board if entry.score.finished]
    yield from _effective(analysis)
    yield from _lengths(finished)
    yield from _differences(finished, analysis.baselines)
    yield from _rope_features(analysis.entries)


def _effective(analysis: Analysis) -> Iterator[Planned]:
    """One for each block whose texts were read in full and in short windows."""
    commands = {entry.block: entry.run.command for entry in reversed(analysis.entries)}
    lines, _ = effective_lines(analysis)
    for block, part in grouped(lines, lambda line: line.block).items():
        if len(part) <= MOST_METHODS:
            draw = partial(effective_figure, part, commands[block], analysis.titles)
            yield Planned("effective", f"{block}: gain from full context by position", draw)


def _lengths(entries: Sequence[Entry]) -> Iterator[Planned]:
    """One for each block, task and family of metrics that was run at several lengths."""
    with_length = [entry for entry in entries if entry.length is not None]
    families = grouped(with_length, lambda entry: (entry.block, entry.task, entry.score.family))
    for (block, task, family), curves in families.items():
        shown = family in TOKEN_PERPLEXITIES or curves[0].score.meaning.kind != "loss"
        if shown and len({entry.length for entry in curves}) > 1 and _readable(curves):
            what = family.replace("_", " ")
            title = f"{block}: {task_label(task)}, {what} by context length"
            yield Planned("length", title, partial(length_figure, curves))


def _differences(entries: Sequence[Entry], baselines: Mapping[str, str]) -> Iterator[Planned]:
    """One for each block and context length whose scores were compared with the baseline."""
    compared = [e for e in entries if e.difference and e.score.percent == 100]
    places = grouped(compared, lambda entry: (entry.block, entry.score.context_length))
    for (block, length), rivals in places.items():
        if length is not None and _readable(rivals):
            title = f"{block}: difference to {baselines[block]} at {length_label(length)}"
            yield Planned("forest", title, partial(difference_figure, rivals, baselines[block]))


def _rope_features(entries: Sequence[Entry]) -> Iterator[Planned]:
    """One for each model and trained length; of a method's runs, the longest context counts."""
    of_model: dict[tuple[str, int, int], list[tuple[Entry, RopeFeatures]]] = defaultdict(list)
    for entry, *_ in grouped(entries, lambda entry: entry.score.run).values():
        if features := read_features(entry.run):
            key = (entry.run.model, features.original, len(features.wavelengths))
            of_model[key].append((entry, features))
    for (model, *_), pairs in of_model.items():
        methods = {
            label: max((features for _, features in part), key=lambda f: f.context_length or 0)
            for label, part in grouped(pairs, lambda pair: pair[0].label).items()
        }
        if len(methods) <= MOST_METHODS:
            title = f"{model}: wavelengths and feature gaps of the methods"
            command = pairs[0][0].run.command
            yield Planned("rope", title, partial(rope_figure, methods, model, command))


def _readable(entries: Sequence[Entry]) -> bool:
    return len({entry.label for entry in entries}) <= MOST_METHODS
