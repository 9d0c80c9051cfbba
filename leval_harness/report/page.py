"""The static page: answer, figure, tables, and every question with the answers to it.

It opens from disk, needs no script and no network. Every text is escaped, and the page's policy
lets no script run but its own two files, which sort and filter tables: what a model wrote cannot.
"""

import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from leval_harness.report.answer_pages import answer_pages
from leval_harness.report.effective_context import compared_frame
from leval_harness.report.effective_summary import EffectiveLength, ModelSummary
from leval_harness.report.figures import (
    DIFFERENCES,
    EFFECTIVE,
    HEAT,
    PlannedFigure,
    write_figures,
)
from leval_harness.report.formats import html, render
from leval_harness.report.number_text import IDENTICAL, NOTHING, Estimate, digits_of
from leval_harness.report.runs_table import runs_table
from leval_harness.report.table import Table
from leval_harness.report.tables import build_tables
from leval_harness.report.uncompared import uncompared_sentences
from leval_harness.report.verdict import (
    TERMS,
    Verdict,
    cost_heading,
    difference_heading,
    measured_text,
    reference_text,
    verdicts,
)
from leval_harness.results.load import Results
from resonance_vllm.common.errors import UserError
from resonance_vllm.common.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "leval-harness-page.txt"
MOST_EXCLUDED = 50
"""Excluded files and numbers that are listed."""


@dataclass(frozen=True)
class Bar:
    """The effective context length of a method as a bar.

    Attributes:
        width: percent of the longest position measured.
        native: the same of the native context length; None where it is unknown.
        is_open: whether the length is a lower bound, so that the bar has no end.
    """

    width: float
    native: float | None
    is_open: bool

    @classmethod
    def of_length(cls, length: EffectiveLength, longest: int) -> "Bar":
        """Return the bar of a length, among methods that were measured up to `longest`."""
        end = length.at_least or 0
        # The native length of a model that was not read so far lies outside of the bars.
        native = None
        if length.native is not None and length.native <= longest:
            native = 100 * length.native / longest
        return cls(100 * end / longest, native, length.below is None)


@dataclass(frozen=True)
class Cell:
    """A difference with its interval: texts, and whether it is `better`, `worse` or neither."""

    mean: str
    interval: str = ""
    effect: str = ""

    @classmethod
    def of_estimate(cls, estimate: Estimate | None, digits: int, zero: str = NOTHING) -> "Cell":
        """Return a cell; a dash where there is no difference, `zero` where it is exactly zero."""
        if estimate is None:
            return cls(NOTHING)
        if estimate.is_exactly_zero:
            return cls(zero)
        effect = ""
        if estimate.is_significant:
            effect = "worse" if estimate.mean > 0 else "better"
        return cls(estimate.mean_text(digits), estimate.interval_text(digits), effect)


@dataclass(frozen=True)
class LengthCell:
    """An effective context length, and what is said of it."""

    length: str
    remark: str = ""

    @classmethod
    def of_text(cls, text: str) -> "LengthCell":
        """Split `9,728 (degrades from ~9,920)` into both parts; the length is not broken into lines."""
        remark = ""
        for separator in (" (", ", "):
            length, found_separator, remark = text.partition(separator)
            if found_separator:
                break
        return cls(length.replace(" ", "\N{NO-BREAK SPACE}"), remark.removesuffix(")"))


@dataclass(frozen=True)
class AnswerRow:
    """A method in the table of the first screen; `retrieval` is None where it was not measured."""

    method: str
    is_baseline: bool
    bar: Bar
    length: LengthCell
    cost: Cell
    difference: Cell
    retrieval: LengthCell | None = None


@dataclass
class Section:
    """One model on the page.

    Attributes:
        anchor: its id in the page.
        verdict: what the results say of it.
        title: its name.
        rows: of the table of the first screen.
        measured: what was read.
        cost_heading: heading of the costs.
        difference_heading: heading of the differences; empty where there are none.
        first_figures: the loss increase: name without suffix -> figure.
        difference_figures: the differences between methods.
        more_figures: the others, which are folded.
        tables: title -> HTML, folded.
        answers: file name -> title of the pages of questions and answers.
    """

    anchor: str
    verdict: Verdict | None
    title: str
    rows: list[AnswerRow] = field(default_factory=list)
    measured: str = ""
    cost_heading: str = ""
    difference_heading: str = ""
    first_figures: dict[str, PlannedFigure] = field(default_factory=dict)
    difference_figures: dict[str, PlannedFigure] = field(default_factory=dict)
    more_figures: dict[str, PlannedFigure] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)


def write_page(results: Results, compared: pd.DataFrame, out: Path, title: str) -> Path:
    """Write a folder that opens from disk and from any web server.

    Args:
        results: what was read.
        compared: its compared frame.
        out: a new folder, or one with an earlier page, which is replaced.
        title: of the page.

    Returns:
        The path of its `index.html`.

    Raises:
        UserError: `out` holds something that is not a page of this package.
        OSError: it cannot be written.
    """
    _make_empty(out)
    write_text(out / MARKER, "Written by leval-harness page; replaced when it is run again.\n")
    write_text(out / "numbers.csv", render([], compared, "csv"))
    write_text(out / "numbers.json", render([], compared, "json"))
    _write_assets(out)
    templates = _templates()
    answers = _write_answers(results, compared, out, title, templates)
    figures = write_figures(compared, results.blocks, out / "figures")
    sections = [
        _section(at, str(block), part, figures, answers)
        for at, (block, part) in enumerate(compared.groupby("block", sort=False))
    ]
    # What answers the question of the page comes first: models with effective context length.
    sections.sort(key=lambda section: not section.rows)
    across = []
    if compared["model"].nunique() > 1:
        # Models are ranked beside each other wherever they were asked the same questions.
        across = _tables_html(build_tables(compared_frame(results, across="models")))
    measured = runs_table(compared)
    index = templates.get_template("index.html.j2").render(
        title=title,
        sections=sections,
        uncompared=uncompared_sentences(compared),
        across=across,
        terms=TERMS,
        runs=None if measured is None else html(measured),
        commands=list(dict.fromkeys(compared["command"].dropna())),
        excluded=results.excluded[:MOST_EXCLUDED],
    )
    write_text(out / "index.html", index)
    return out / "index.html"


def _make_empty(out: Path) -> None:
    """Make an empty folder in place of an earlier page, and of nothing else."""
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise UserError(
            f"--out: {out} is not empty and holds no leaderboard page; give a new folder"
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def _templates() -> Any:
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(TEMPLATES)
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _write_assets(out: Path) -> None:
    """Write styles and DataTables, which itables ships as a module.

    A module opens from disk only as data.
    """
    from itables.utils import find_package_file

    bundle = Path(find_package_file("html/dt_bundle.js"))
    encoded = b64encode(bundle.read_bytes()).decode()
    script = f'window.datatables = "data:text/javascript;base64,{encoded}";'
    write_text(out / "datatables.js", script)
    shutil.copyfile(bundle.with_suffix(".css"), out / "datatables.css")
    for name in ("page.css", "page.js"):
        shutil.copyfile(TEMPLATES / name, out / name)


def _write_answers(
    results: Results, compared: pd.DataFrame, out: Path, title: str, templates: Any
) -> dict[str, dict[str, str]]:
    """Write the pages of questions and answers; return block -> file name -> title."""
    written: dict[str, dict[str, str]] = {}
    for at, page in enumerate(answer_pages(results, compared)):
        name = f"questions-{at:03d}.html"
        template = templates.get_template("questions.html.j2")
        content = template.render(title=page.title, back=title, page=page)
        write_text(out / name, content)
        written.setdefault(page.block, {})[name] = page.title
    return written


def _section(
    number: int,
    block: str,
    part: pd.DataFrame,
    figures: dict[str, PlannedFigure],
    answers: dict[str, dict[str, str]],
) -> Section:
    """Return what the page shows of one model."""
    verdict = next(iter(verdicts(part)), None)
    section = Section(anchor=f"model-{number}", verdict=verdict, title=block)
    if verdict is not None and verdict.summary is not None:
        section.rows = _answer_rows(verdict.summary, verdict.retrieval)
        section.measured = _capitalized(
            f"{measured_text(verdict.summary)}; reference: {reference_text(verdict.summary)}"
        )
        section.cost_heading = _capitalized(cost_heading(verdict.summary))
        if verdict.summary.baseline:
            section.difference_heading = _capitalized(difference_heading(verdict.summary))
    of_kind = {
        EFFECTIVE: section.first_figures,
        HEAT: section.difference_figures,
        DIFFERENCES: section.difference_figures,
    }
    for name, figure in figures.items():
        if figure.block == block:
            of_kind.get(figure.kind, section.more_figures)[name] = figure
    tables = [table for table in build_tables(part) if table.title != "What was run"]
    section.tables = {table.title: html(table, "h4") for table in tables}
    section.answers = answers.get(block, {})
    return section


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tables_html(tables: Sequence[Table]) -> list[str]:
    """Return tables across models as HTML; the first is shown, the others are folded below it."""
    shown = [table for table in tables if table.title != "What was run"]
    return [html(table, "h4" if at else "h3") for at, table in enumerate(shown)]


def _answer_rows(summary: ModelSummary, retrieval: Mapping[str, str]) -> list[AnswerRow]:
    """Return the rows of the table of the first screen.

    Args:
        summary: what was measured of the model.
        retrieval: method -> its effective context length by retrieval; empty where not measured.
    """
    methods = summary.methods
    cost_digits = digits_of(method.cost for method in methods)
    difference_digits = digits_of(method.difference for method in methods)
    rows = []
    for method in methods:
        by_retrieval = None
        if retrieval:
            by_retrieval = LengthCell.of_text(retrieval.get(method.method, NOTHING))
        rows.append(
            AnswerRow(
                method=method.method,
                is_baseline=method.method == summary.baseline,
                bar=Bar.of_length(method.length, summary.longest),
                length=LengthCell.of_text(method.length.text),
                cost=Cell.of_estimate(method.cost, cost_digits),
                difference=Cell.of_estimate(method.difference, difference_digits, IDENTICAL),
                retrieval=by_retrieval,
            )
        )
    return rows
