"""Tables: ranking, marks, honesty notes, and every special character in every format."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
import unicodedata

import fixture_results as make
import pytest

from leval_harness.analysis import analyse
from leval_harness.format_names import format_names
from leval_harness.old_results import load_results
from leval_harness.old_tables import build_tables, details_table, render
from leval_harness.old_tables.formats import csv as csv_format
from leval_harness.old_tables.formats import html as html_format
from leval_harness.old_tables.formats import md, tex
from leval_harness.old_tables.model import Block, Cell, Column, Row, Table
from leval_harness.old_tables.notes import chance_note
from resonance_vllm.errors import SettingError

SPECIAL = "\\{}$&#%_~^<>|\"'`-[]*?!+=@()/,;:."
UNICODE = "±×−–—…†≤≥·→’‘“”éÀñüçž中文😀\u202e\u0007\x1b"


def table_of(tmp_path, folder="r", **options):
    analysis = analyse(load_results(tmp_path / folder), options.pop("baseline", None))
    return build_tables(analysis, **options)


def find(table, method):
    """`column label -> cell` of a method's first row."""
    for block in table.blocks:
        for row in block.rows:
            if row.cells[0].text == method:
                return dict(zip([c.label for c in table.columns], row.cells, strict=True))
    raise AssertionError(method)


def closed(tmp_path, cell_id, skill, method, seed=1, tasks=tuple(make.SHAPES), **cell):
    samples = {task: make.closed_samples(task, skill, seed) for task in tasks}
    return make.write_cell(tmp_path / "r", cell_id, samples, method=method, **cell)


def test_best_second_average_and_mark(tmp_path):
    closed(tmp_path, "a", 0.2, "none")
    closed(tmp_path, "b", 0.8, "yarn", seed=2)
    closed(tmp_path, "c", 0.5, "linear", seed=3)
    table = table_of(tmp_path)[0]
    best, second, base = (find(table, m) for m in ("yarn", "linear", "none"))
    for task in ("Coursera", "TOEFL", "Avg."):
        assert (best[task].emphasis, second[task].emphasis) == ("best", "second")
        assert base[task].emphasis == ""
    assert best["TOEFL"].mark == "*"
    assert base["TOEFL"].mark == ""
    assert best["Avg."].value == pytest.approx(
        sum(best[t].value for t in ("Coursera", "GSM", "QuALITY", "TOEFL", "CodeU", "SFiction")) / 6
    )


def test_seven_documents_say_when_they_cannot_tell(tmp_path):
    for at, method in enumerate(["none", "a", "b", "c", "d"]):
        closed(tmp_path, f"x{at}", 0.1 + 0.2 * at, method, seed=at, tasks=["leval_closed_sfiction"])
    table = table_of(tmp_path)[0]
    assert find(table, "d")["SFiction"].mark == "?"
    assert any("inconclusive (n = 7)" in note for note in table.notes)


def test_fewer_than_six_tasks_have_no_average(tmp_path):
    closed(tmp_path, "a", 0.3, "none", tasks=["leval_closed_gsm", "leval_closed_toefl"])
    table = table_of(tmp_path)[0]
    assert "Avg." not in [column.label for column in table.columns]
    assert any("No average" in note for note in table.notes)


def test_sample_results_say_so_and_stand_apart(tmp_path):
    closed(tmp_path, "a", 0.3, "none")
    closed(tmp_path, "b", 0.9, "yarn", sample=True)
    table = table_of(tmp_path)[0]
    assert len(table.blocks) == 2
    assert "sample" in table.blocks[1].title
    assert any(note.startswith("sample:") for note in table.notes)


def test_partial_runs_are_not_ranked_beside_full_ones(tmp_path):
    closed(tmp_path, "a", 0.3, "none")
    closed(tmp_path, "b", 0.5, "linear")
    closed(tmp_path, "c", 0.95, "yarn", limit=10)
    table = table_of(tmp_path)[0]
    assert [len([r for r in b.rows if r.kind == "ours"]) for b in table.blocks] == [2, 1]
    limited = "SmolLM2-135M · partial: the first 10 questions of each task"
    assert [block.title for block in table.blocks] == ["SmolLM2-135M", limited]
    assert find(table, "linear")["TOEFL"].emphasis == "best"
    assert find(table, "yarn")["TOEFL"].emphasis == ""
    assert find(table, "yarn")["TOEFL"].mark == ""


def test_of_equally_many_documents_those_with_other_questions_stand_apart(tmp_path):
    for at, asked in enumerate((10, 8)):
        samples = {"leval_closed_quality": make.closed_samples("leval_closed_quality", 0.4, 0)}
        samples["leval_closed_quality"] = samples["leval_closed_quality"][:asked]
        whole = {"leval_closed_quality": 202}
        make.write_cell(tmp_path / "r", f"{at}", samples, original=whole, metadata={"num_docs": 1})
    closed(tmp_path, "whole", 0.4, "none", tasks=["leval_closed_quality"])
    first, second, full = (block.title for block in table_of(tmp_path)[0].blocks)
    assert first == "SmolLM2-135M · partial: 1 document of each task"
    assert second.startswith(f"{first} #")
    assert full == "SmolLM2-135M"


def test_blocks_have_one_order_in_all_tables(tmp_path):
    coursera = {"tasks": ["leval_closed_coursera"]}
    closed(tmp_path, "a", 0.4, "none", context_length=2048, tasks=["leval_closed_gsm"])
    for length in (2048, 4096):
        closed(tmp_path, f"b{length}", 0.4, "yarn", context_length=length, limit=10, **coursera)
        closed(tmp_path, f"c{length}", 0.4, "none", context_length=length, **coursera)
    scores, by_length = table_of(tmp_path)
    assert by_length.title == "Coursera by context length, %"
    order = ["SmolLM2-135M", "SmolLM2-135M · partial: the first 10 questions of each task"]
    assert [block.title for block in scores.blocks] == order
    assert [block.title for block in by_length.blocks] == order


def test_a_number_without_its_standard_error_has_a_note(tmp_path):
    closed(tmp_path, "a", 0.4, "none", tasks=["leval_closed_gsm"])
    (table,) = table_of(tmp_path)
    assert not any(note.startswith("Without ±") for note in table.notes)
    one = make.closed_samples("leval_closed_quality", 0.4, 0)
    one = [row for row in one if row["doc"]["document_id"] == one[0]["doc"]["document_id"]]
    make.write_cell(tmp_path / "r", "b", {"leval_closed_quality": one}, method="yarn")
    (table,) = table_of(tmp_path)
    assert find(table, "yarn")["QuALITY"].stderr_text == ""
    assert sum(note.startswith("Without ±") for note in table.notes) == 1


@pytest.mark.parametrize("setting", [{"gen_kwargs": {"top_k": 5}}, {"apply_chat_template": True}])
def test_runs_with_other_settings_are_not_ranked_together(tmp_path, setting):
    closed(tmp_path, "a", 0.3, "none")
    closed(tmp_path, "b", 0.9, "yarn", **setting)
    assert len(table_of(tmp_path)[0].blocks) == 2


def test_settings_that_differ_between_tasks_alone_set_no_runs_apart(tmp_path):
    for at, method in enumerate(("none", "yarn")):
        closed(tmp_path, f"g{at}", 0.4, method, tasks=["leval_closed_gsm"],
               gen_kwargs={"max_gen_toks": 128})  # fmt: skip
        closed(tmp_path, f"t{at}", 0.4, method, tasks=["leval_closed_toefl"])
    (block,) = table_of(tmp_path)[0].blocks
    assert block.title == "SmolLM2-135M"
    row = find(table_of(tmp_path)[0], "yarn")
    assert row["GSM"].value is not None
    assert row["TOEFL"].value is not None


def test_two_dtypes_of_one_task_stand_in_two_blocks_that_say_so(tmp_path):
    for dtype in ("float32", "bfloat16"):
        model = {"name": "m", "backend": "hf-long", "dtype": dtype, "args": {}}
        for method in ("none", "yarn"):
            cell = closed(tmp_path, f"{dtype}-{method}", 0.4, method, tasks=["leval_closed_gsm"])
            request = json.loads((cell / "cell.json").read_text())
            request["identity"]["model"] = {"dtype": dtype}
            (cell / "cell.json").write_text(json.dumps({**request, "model": model}))
    blocks = table_of(tmp_path)[0].blocks
    assert [block.title for block in blocks] == ["m · dtype bfloat16", "m · dtype float32"]
    assert all(len([r for r in b.rows if r.kind == "ours"]) == 2 for b in blocks)


def change_data(cell, task, digest):
    path = next(cell.glob("results_*.json"))
    content = json.loads(path.read_text())
    content["configs"][task]["metadata"]["data"]["files"] = {"x.jsonl": digest}
    path.write_text(json.dumps(content))
    done = json.loads((cell / "done.json").read_text())
    (cell / "done.json").write_text(json.dumps({**done, "files": {}}))


def test_other_documents_are_not_ranked_together_and_a_row_stays_whole(tmp_path):
    closed(tmp_path, "a", 0.3, "none")
    cell = closed(tmp_path, "b", 0.9, "yarn")
    change_data(cell, "leval_closed_toefl", "11")
    table = table_of(tmp_path)[0]
    assert len(table.blocks) == 2
    assert all(len([r for r in b.rows if r.kind == "ours"]) == 1 for b in table.blocks)
    assert find(table, "yarn")["Avg."].value is not None


def test_tasks_with_files_of_their_own_share_a_block(tmp_path):
    for cell_id, method in (("a", "none"), ("b", "yarn")):
        cell = closed(tmp_path, cell_id, 0.3, method)
        for at, task in enumerate(make.SHAPES):
            change_data(cell, task, f"{at}")
    (block,) = table_of(tmp_path)[0].blocks
    assert len([row for row in block.rows if row.kind == "ours"]) == 2


def test_two_runs_in_one_place_keep_both(tmp_path):
    closed(tmp_path, "a", 0.3, "yarn")
    closed(tmp_path, "b", 0.6, "yarn", metadata={"other": 1})
    rows = [r for r in table_of(tmp_path)[0].blocks[0].rows if r.kind == "ours"]
    assert [row.cells[0].text for row in rows] == ["yarn (run 0)", "yarn (run 1)"]


def test_unknown_baseline_is_an_error(tmp_path):
    closed(tmp_path, "a", 0.3, "yarn")
    with pytest.raises(SettingError, match="baseline: 'nope' is not allowed; allowed: yarn"):
        table_of(tmp_path, baseline="nope")


def test_perplexity_ranks_the_lowest_first(tmp_path):
    for at, (method, gain) in enumerate({"none": 0.1, "yarn": -0.1}.items()):
        rows = make.perplexity_samples((1024, 4096), gain, 7)
        make.write_cell(tmp_path / "r", f"p{at}", {"ppl_govreport": rows}, method=method)
    (table,) = table_of(tmp_path)
    assert "lower is better" in table.title
    assert [column.label for column in table.columns] == ["Method", "1K", "4K"]
    cell = find(table, "yarn")["4K"]
    assert (cell.emphasis, cell.mark) == ("best", "*")
    nats = sum(r["token_perplexity@4096"][0] for r in rows)
    tokens = sum(r["token_perplexity@4096"][1] for r in rows)
    assert cell.value == pytest.approx(2.718281828459045 ** (nats / tokens))


def test_published_rows_appear_for_the_papers_models_and_are_marked(tmp_path):
    closed(tmp_path, "a", 0.3, "yarn", model="meta-llama/Llama-2-7b-chat-hf")
    tables = table_of(tmp_path)
    (published,) = [table for table in tables if "Published" in table.title]
    row = find(published, "Resonance YaRN (s=8, FT@4K, 400)")
    assert row["Avg."].text == "37.58"
    assert row["Avg."].emphasis == "best"
    assert row["Method"].mark == " †"
    assert all(r.kind == "published" for b in published.blocks for r in b.rows)
    assert any("not run here" in note for note in published.notes)
    assert not any("Published" in t.title for t in table_of(tmp_path, published=False))
    assert sum("Published" in t.title for t in table_of(tmp_path, published=True)) == 2


def test_cost_columns(tmp_path):
    closed(tmp_path, "a", 0.3, "none")
    table = table_of(tmp_path, costs=["seconds", "tokens_per_second", "peak_memory"])[0]
    row = find(table, "none")
    assert [row[c].text for c in ("Seconds", "Tokens/s", "Peak GiB")] == ["60.0", "2,040.0", "3.0"]
    with pytest.raises(ValueError, match="columns: 'speed' is not allowed; allowed: seconds"):
        table_of(tmp_path, costs=["speed"])


def test_csv_holds_full_precision_and_an_origin(tmp_path):
    closed(tmp_path, "a", 0.3, "none")
    analysis = analyse(load_results(tmp_path / "r"))
    text = render([details_table(analysis, published=True)], "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    ours = next(
        r for r in rows if r["task"] == "leval_closed_toefl" and r["metric"] == "exact_match"
    )
    samples = make.closed_samples("leval_closed_toefl", 0.3, 1)
    assert float(ours["value"]) == pytest.approx(
        100 * sum(s["exact_match"] for s in samples) / len(samples), rel=1e-12
    )
    assert ours["run_id"] == "a"
    assert {r["origin"] for r in rows} == {"ours", "published"}


SMALL = Table(
    "Scores, %",
    (Column("Method", numeric=False), Column("Task A"), Column("Avg.")),
    (
        Block(
            "Model_1 & friends",
            (
                Row((Cell("a|b"), Cell("51.20", 51.2, "1.10", "*", 1), Cell("50.00", 50.0))),
                Row((Cell("=1+1"), Cell("49.00", 49.0, "1.20", "?", 2), Cell("–"))),
                Row((Cell("c"), Cell("(failed)"), Cell("–")), "stopped"),
            ),
        ),
        Block(
            "Paper (published)",
            (Row((Cell("YaRN", mark=" †"), Cell("37.62", 37.62), Cell("–")), "published"),),
        ),
    ),
    ("a note with 5% & <tags>",),
)


LINES = {
    "md": [
        "### Scores, %",
        "| Method | Task A | Avg. |",
        "| --- | ---: | ---: |",
        r"| **Model\_1 &amp; friends** |  |  |",
        r"| a\|b | **51.20**\* ± 1.10 | 50.00 |",
        "| =1+1 | <u>49.00</u>? ± 1.20 | – |",
        "| c | (failed) | – |",
        "| **Paper (published)** |  |  |",
        "| *YaRN †* | 37.62 | – |",
        "- a note with 5% &amp; &lt;tags&gt;",
    ],
    "csv": [
        "Method,Task A,Avg.",
        "a|b,51.2,50.0",
        "'=1+1,49.0,–",
        "c,(failed),–",
        "YaRN,37.62,–",
    ],
    "tex": [
        r"\caption{Scores, \%}",
        r"\begin{tabular}{lrr}",
        r"Method & Task A & Avg. \\",
        r"\multicolumn{3}{l}{\textbf{Model\_1 \& friends}} \\",
        r"a\textbar{}b & \textbf{51.20}{*} $\pm$ 1.10 & 50.00 \\",
        r"=1+1 & \underline{49.00}{?} $\pm$ 1.20 & \textendash{} \\",
        r"c & (failed) & \textendash{} \\",
        r"\multicolumn{3}{l}{\textbf{Paper (published)}} \\",
        r"\textit{YaRN \textdagger{}} & 37.62 & \textendash{} \\",
        r"a note with 5\% \& \textless{}tags\textgreater{}\par",
    ],
    "html": [
        "<h2>Scores, %</h2>",
        '<tr><th colspan="3" scope="rowgroup">Model_1 &amp; friends</th></tr>',
        '<tr class="ours"><td>a|b</td><td class="number"><span class="best">51.20</span>* ± 1.10'
        '</td><td class="number">50.00</td></tr>',
        '<tr class="ours"><td>=1+1</td><td class="number"><span class="second">49.00</span>? ± 1.20'
        '</td><td class="number">–</td></tr>',
        '<tr class="stopped"><td>c</td><td class="number">(failed)</td>'
        '<td class="number">–</td></tr>',
        '<tr><th colspan="3" scope="rowgroup">Paper (published)</th></tr>',
        '<tr class="published"><td>YaRN †</td><td class="number">37.62</td>'
        '<td class="number">–</td></tr>',
        "<ul><li>a note with 5% &amp; &lt;tags&gt;</li></ul>",
    ],
}
"""Lines that say something about the small table, in their order."""


@pytest.mark.parametrize("output", LINES)
def test_small_table(output):
    lines = render([SMALL], output).splitlines()
    assert [line for line in lines if line in LINES[output]] == LINES[output]


def test_unknown_format():
    allowed = ", ".join(format_names())
    with pytest.raises(ValueError, match=f"'xls' is not allowed; allowed: {allowed}"):
        render([SMALL], "xls")


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="1 cells"):
        Table("t", SMALL.columns, (Block("", (Row((Cell("x"),)),)),))


def unescape_markdown(text):
    return html.unescape(re.sub(r"\\([\\`*_\[\]#|~$])", r"\1", text))


@pytest.mark.parametrize("char", list(SPECIAL))
def test_each_special_character_survives(char):
    text = f"a{char}b"
    assert html.unescape(html_format.escape(text)) == text
    assert not re.search(r"[<>\"']|&(?!\w+;|#\d+;)", html_format.escape(text))
    assert unescape_markdown(md.escape(text)) == text
    assert "|" not in re.sub(r"\\\|", "", md.escape(text))
    assert "<" not in md.escape(text)
    table = Table("t", (Column("a", numeric=False),), (Block("", (Row((Cell(char + "b"),)),)),))
    ((_,), (field,)) = csv.reader(io.StringIO(render([table], "csv")))
    assert field.lstrip("'") == (char + "b").lstrip("'")
    assert csv_format.escape(char + "b")[0] not in "=+-@"


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x07", "\u202e", "\u2066"])
@pytest.mark.parametrize("output", [md.escape, html_format.escape, tex.escape, csv_format.escape])
def test_control_characters_and_direction_overrides_never_pass(char, output):
    assert char not in output(f"a{char}b")
    assert output("a\nb\tc") == "a b c"


def test_html_table_holds_no_markup_from_names(tmp_path):
    closed(tmp_path, "a", 0.3, "<script>x</script>", model="</td><b>")
    text = render(table_of(tmp_path), "html")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "</td><b>" not in text


@pytest.mark.latex
def test_latex_compiles_and_prints_every_character(tmp_path):
    assert shutil.which("pdflatex"), "pdflatex is needed (texlive-latex-base, -recommended)"
    closed(tmp_path, "a", 0.3, SPECIAL + UNICODE, model=SPECIAL)
    closed(tmp_path, "b", 0.6, "none", model=SPECIAL)
    tables = [*table_of(tmp_path, published=True), SMALL]
    document = (
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{textcomp}"
        "\\usepackage{booktabs}\\usepackage[landscape,margin=5mm]{geometry}\\begin{document}\n"
        + render(tables, "tex")
        + "\\end{document}\n"
    )
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "t.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Missing character" not in done.stdout
    assert (tmp_path / "t.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("char", [c for c in SPECIAL if not c.isalnum()])
def test_latex_maps_active_characters(char):
    mapped = tex.escape(char)
    if char in "\\{}$&#%_~^":
        assert mapped != char
        assert mapped.startswith("\\")
    assert unicodedata.is_normalized("NFC", mapped)


def test_note_on_chance():
    assert chance_note().startswith(
        "Chance: one of four letters for QuALITY and TOEFL (25%), true or false for SFiction "
        "(50%), nothing for GSM and CodeU. Coursera questions may have several right letters; "
    )
