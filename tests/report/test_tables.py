"""Tables from the compared frame, in every format."""

import io
import json
import re
import subprocess
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from block_frames import compared_of
from rich.console import Console

from leval_harness.report.effective_context import compared_frame
from leval_harness.report.formats import draw, html, latex, markdown, render
from leval_harness.report.labels import CLOSED
from leval_harness.report.table import BEST, QUIET, SECOND, Table
from leval_harness.report.tables import build_tables, effective_tables
from leval_harness.results.layout import FORMATS
from leval_harness.results.load import load_results

EVIL = r"<b>&amp;</b> | *x* _y_ `z` # $1$ \frac{a}{b} % ~ ^ {"


@pytest.fixture(scope="module")
def compared(sweep):
    return compared_frame(load_results(sweep))


@pytest.fixture(scope="module")
def tables(compared):
    return {each.title.partition(",")[0]: each for each in build_tables(compared)}


MODEL, SCORES = "SmolLM2-135M", "L-Eval closed-ended"


def test_score_table_has_error_mark_and_rank(tables, compared):
    table = tables[SCORES]
    row = compared[(compared["label"] == "yarn") & (compared["block"] == MODEL)]
    row = row[(row["task"] == "leval_closed_gsm") & (row["name"] == "exact_match")].iloc[0]
    text = f"{100 * row['value']:.2f}* ± {100 * row['stderr']:.2f}"
    assert table.cells.loc[(MODEL, "yarn", "512"), "GSM"] == text
    assert row["mark"] == "*"
    assert table.css.loc[(MODEL, "rope", "512"), "GSM"] == BEST
    assert table.css.loc[(MODEL, "resonance_yarn", "512"), "GSM"] == SECOND
    assert list(table.cells.index[:3]) == [
        (MODEL, name, "256") for name in ("rope", "yarn", "resonance_yarn")
    ]


def test_average_is_that_of_the_six_tasks(tables):
    cells = tables[SCORES].cells
    row = cells.loc[(MODEL, "rope", "512")]
    six = [float(row[name].split()[0].rstrip("*?")) for name in cells.columns[:6]]
    assert cells.columns[6] == "Avg."
    assert float(row["Avg."].split()[0]) == pytest.approx(np.mean(six), abs=0.011)
    assert cells.loc[(MODEL, "yarn", "256"), "Avg."] == "–", "of all six or of none"


def six_tasks(label, unparsed=0.0, **more):
    return [number(label=label, task=task, unparsed=unparsed * (at == 2), **more)
            for at, task in enumerate(CLOSED)]  # fmt: skip


@pytest.mark.parametrize(
    ("unparsed", "text", "best"), [(0.4, "60.00", "b"), (0.62, "60.00 [a task 62% unparsed]", "a")]
)
def test_average_of_unparsed_answers_is_never_bold(unparsed, text, best):
    rows = six_tasks("a") + six_tasks("b", unparsed, value=0.6) + six_tasks("c", value=0.3)
    (table, *_) = build_tables(pd.DataFrame(rows))
    average = table.cells["Avg."].droplevel("Ctx")
    assert average["b"] == text
    bold = table.css["Avg."].droplevel("Ctx")
    assert [*bold.index[bold == BEST]] == [best]
    for write in (markdown, html, latex):
        assert ("unparsed" in write(table).partition("Avg.")[2]) == (unparsed > 0.5)


def test_score_table_has_chance_and_counts_below(tables):
    cells = tables[SCORES].cells
    assert cells.loc[("", "n/documents", ""), "GSM"] == "12/12", "of the row that was asked most"
    assert cells.loc[("", "chance", ""), "TOEFL"] == "25.0"


def test_perplexity_table_is_by_length(real_runs):
    tables = build_tables(compared_frame(load_results(real_runs)))
    (table,) = [each for each in tables if each.title.startswith("Python docs: token perplexity")]
    assert [*table.cells] == ["256", "1K"]


def test_table_of_failures_says_why(tables):
    reasons = tables["Without a number"].cells["Reason"].droplevel(["Model", "Ctx"])
    assert reasons["dynamic_ntk"].startswith("not done after 1 s, so it was ended")
    assert reasons["ntk_aware"] == "the samples give 0.5"


def test_published_rows_are_shown_where_asked(compared):
    (table, *_) = build_tables(compared, published=True)
    models = table.cells.index.get_level_values("Model")
    assert sum(models == "LLaMA2-Chat 13B (published)") == 6
    row = ("LLaMA2-Chat 13B (published)", "Resonance YaRN (s=4, FT@4K, 400)", "16K")
    assert table.cells.loc[row, ["Coursera", "Avg."]].tolist() == ["41.86", "39.87"]
    assert set(table.css.loc[row]) == {QUIET}
    assert "not ranked" in " ".join(table.notes)
    assert "published" not in render(build_tables(compared), compared, "md")


def number(**changes):
    return {
        "run": 0, "block": "m", "model": "m", "label": "a", "method": "a", "context_length": 512,
        "length": 512, "task": "leval_closed_gsm", "name": "exact_match", "metric": "exact_match",
        "filter": "none", "kind": "score", "unit": "share", "status": "done", "value": 0.5,
        "stderr": np.nan, "interval": "none", "low": np.nan, "high": np.nan, "mark": "", "rank": 1,
        "unparsed": np.nan, "truncated": np.nan, "reached_limit": np.nan, "sample": False,
        "chance": np.nan, "n": 4, "clusters": 2, "higher_is_better": True, "baseline": "",
        "group": False, "note": None, "difference": np.nan, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text", "css"),
    [
        ({}, "50.00", BEST),
        ({"stderr": 0.1}, "50.00 ± 10.00", BEST),
        ({"mark": "?"}, "50.00?", BEST),
        ({"interval": "exact", "low": 0.0, "high": 0.842}, "50.00 (0.00 to 84.20)", BEST),
        ({"unparsed": 0.62, "rank": None}, "50.00 [62% unparsed]", ""),
        ({"sample": True}, "50.00", ""),  # it shows that everything runs, and ranks nobody
        ({"status": "malformed"}, "(malformed)", BEST),
    ],
)
def test_text_of_a_number(change, text, css):
    (table, *_) = build_tables(pd.DataFrame([number(**change)]))
    assert table.cells["GSM"].iloc[0] == text
    assert table.css["GSM"].iloc[0] == css


def test_score_table_says_that_lower_is_better():
    numbers = [number(task="t", name=n, metric=n, unit="", higher_is_better=n != "ter")
               for n in ("bleu", "ter")]  # fmt: skip
    (table,) = build_tables(pd.DataFrame(numbers))
    assert list(table.cells) == ["t bleu", "t ter ↓"]
    assert any("lower is better" in note for note in table.notes)


def test_render_csv_and_json_are_the_frame(compared):
    frame = pd.read_csv(io.StringIO(render([], compared, "csv")))
    assert np.allclose(frame["value"], compared["value"], equal_nan=True)
    records = json.loads(render([], compared, "json"))
    assert len(records) == len(compared)
    assert set(records[0]) == set(frame)


def test_render_every_format_and_no_other(tables, compared):
    assert set(FORMATS) == {"csv", "html", "json", "md", "tex"}
    for form in FORMATS:
        assert "resonance" in render(list(tables.values()), compared, form)
    with pytest.raises(ValueError, match=r"^form: .*md"):
        render([], compared, "markdown")


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.cells = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.cells.append(data.strip())


def evil_table():
    index = pd.MultiIndex.from_tuples([(EVIL, "8K")], names=["Method", "Ctx"])
    return Table.plain(EVIL, pd.DataFrame({EVIL: [EVIL]}, index), EVIL)


def test_html_reads_no_text_as_markup(compared):
    found = Tags(render([evil_table()], compared, "html"))
    assert "b" not in found.tags
    assert found.cells.count(EVIL) == 4
    assert "code" in found.tags, "of the note, in which backticks mark code"
    note = EVIL.replace("`", "").replace(" ", "")
    assert note in "".join(found.cells).replace(" ", "")


def test_markdown_reads_no_text_as_markup(compared):
    text = render([evil_table()], compared[:0], "md")
    row = text.splitlines()[4]
    assert row.count(" | ") == 2
    assert r"\<b\>" in row


def widths_of(text, folder):
    r"""Compile tables in `article`; the overfull boxes that LaTeX reports."""
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}"
    body = rf"{head}\begin{{document}}{text}\end{{document}}"
    (folder / "t.tex").write_text(body, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "t.tex"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    log = done.stdout.decode("latin-1")
    assert done.returncode == 0, log[-2000:]
    return [line for line in log.splitlines() if line.startswith("Overfull")]


@pytest.mark.engine("latex")
def test_latex_fits_the_text_width_of_article(tables, real_runs, tmp_path):
    shown = [*tables.values(), *build_tables(compared_frame(load_results(real_runs)))]
    assert widths_of("\n".join(map(latex, shown)), tmp_path) == []
    wide = Table.plain("t", pd.DataFrame({f"column {at}": ["1.000 ± 0.100"] for at in range(40)}))
    assert widths_of(latex(wide), tmp_path) == []
    assert widths_of(latex(evil_table()), tmp_path) == []


@pytest.mark.parametrize("width", [60, 200])
def test_draw_shows_every_text(tables, width):
    table = tables["L-Eval closed-ended"]
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    draw(table, console)
    shown = console.file.getvalue()
    words = {word for text in table.cells.to_numpy().ravel() for word in text.split()}
    joined = "".join(shown.split())
    assert max(map(len, shown.splitlines())) <= width
    if width == 200:
        assert all(word in joined for word in words)


METHODS = {
    "rope": "rope",
    "yarn": "yarn",
    "resonance_yarn": lambda blocks: blocks["yarn"] + 0.18,
}


@pytest.fixture(scope="module")
def effective():
    """The compared frame of three methods on real documents, and its three tables."""
    frame = compared_of(METHODS)
    return frame, list(effective_tables(frame))


def test_effective_tables_have_methods_as_rows(effective):
    _, tables = effective
    assert [table.title.partition(",")[0] for table in tables] == [
        "Effective context length", "Loss increase over the reference by position",
        "Differences between methods by position",
    ]  # fmt: skip
    bins = [f"{start:,}–{start + 1536:,}" for start in range(2048, 11264, 1536)]
    assert [*tables[1].cells.index] == [*METHODS]
    assert [*tables[1].cells] == [*tables[2].cells] == bins
    assert [*tables[0].cells] == [
        "Effective context length", "Loss within 8,192", "Loss beyond 8,192", "Cost within 8,192",
        "Cost of single documents", "Against rope, 9,728–11,264",
    ]  # fmt: skip


def numbers_in(text):
    return [float(each.replace("−", "-")) for each in re.findall(r"[−+]?\d+\.\d+", text)]


def test_effective_cells_by_position_are_rows_of_the_frame(effective):
    frame, (_, increases, differences) = effective
    bins = frame[frame["metric"].eq("difference") & frame["start"].notna()]
    for table in (increases, differences):
        for name, row in table.cells.iterrows():
            label, _, baseline = name.partition(" against ")
            own = bins[bins["label"].eq(label) & bins["baseline"].eq(baseline or "reference")]
            for column, text in row.items():
                start, end = (int(each.replace(",", "")) for each in column.split("–"))
                (number,) = own[own["start"].eq(start) & own["end"].eq(end)].to_dict("records")
                shown = [number[name] for name in ("difference", "diff_low", "diff_high")]
                if text == "–":
                    assert shown == [0, 0, 0]
                else:
                    assert numbers_in(text) == pytest.approx(shown, abs=0.00051)
        assert table.cells.size == len(table.cells) * 6


def test_effective_cells_of_lengths_are_rows_of_the_frame(effective):
    frame, (lengths, *_) = effective
    for name, row in lengths.cells.iterrows():
        own = frame[frame["label"] == name]
        losses = own.loc[own["metric"] == "loss", "value"].dropna()
        assert [float(row["Loss within 8,192"]), float(row["Loss beyond 8,192"])] == pytest.approx(
            losses.tolist(), abs=0.00051
        )
        if name != "rope":
            (cost,) = own[own["metric"] == "cost"].to_dict("records")
            shown = [cost[end] for end in ("difference", "diff_low", "diff_high", "least", "most")]
            text = row["Cost within 8,192"] + row["Cost of single documents"]
            assert numbers_in(text) == pytest.approx(shown, abs=0.00051)


def test_effective_columns_have_one_minus_and_the_same_digits(effective):
    for table in effective[1]:
        for column in table.cells:
            text = " ".join(table.cells[column])
            assert not re.search(r"-\d", text)
            digits = {len(number) for number in re.findall(r"\.(\d+)", text)}
            assert len(digits) <= 1, (table.title, column, text)


def test_notes_explain_what_the_table_has():
    def notes(**change):
        (table, *_) = build_tables(pd.DataFrame([number(**change)]))
        return " ".join(table.notes)

    explained = {
        "?:": {"mark": "?"},
        "*:": {"mark": "*", "baseline": "rope"},
        "±:": {"stderr": 0.1},
        "Unparsed:": {"unparsed": 0.1},
        "Hit limit:": {"reached_limit": 0.1},
    }
    for sign, change in explained.items():
        assert sign in notes(**change)
        others = {**change, "unparsed": np.nan} if sign != "Unparsed:" else {"unparsed": np.nan}
        for other in set(explained) - {sign}:
            assert other not in notes(**others)
    assert "n/documents:" in notes()
    assert "n/documents:" not in notes(n=None, clusters=None)


def test_latex_is_one_float_per_table_with_its_caption(tables, effective):
    for table in (*tables.values(), *effective[1]):
        text = latex(table)
        assert text.count(r"\begin{table}") == text.count(r"\begin{tabular}") == 1
        assert text.count(r"\caption{") == text.count(r"\toprule") == 1
        assert table.title.split(",")[0].replace("%", r"\%") in text
    caption = latex(effective[1][0]).partition(r"\caption{")[2]
    assert caption.startswith("Effective context length, SmolLM2-135M. Losses in nats/token. Cost:")


def test_formats_say_the_same(effective):
    """Markdown, LaTeX and HTML hold the same texts; CSV is the frame that they come from."""
    plain = str.maketrans({"\\": None, "$": None, "−": "-", "–": "-", "~": None, "≥": None})
    for table in effective[1]:
        for write in (markdown, latex, html):
            text = unescape(write(table)).replace(r"\geq", "").replace("--", "-")
            text = text.replace("textasciitilde ", "").translate(plain)
            for cell in table.cells.to_numpy().ravel():
                assert cell.translate(plain).strip() in text
