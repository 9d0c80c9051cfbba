"""The page of real runs: behind every number of every kind of metric stands what was logged."""

import json
import math
import re
from pathlib import Path

import pytest
from browser import chromium, ready, script, texts

from leval_harness.analysis import analyse
from leval_harness.analysis.effective_context import effective_lines
from leval_harness.analysis.effective_sentences import sentence
from leval_harness.old_results import load_results
from leval_harness.page import write_page

pytestmark = pytest.mark.browser
RUNS = Path(__file__).parent / "real_runs" / "results"
EFFECTIVE = RUNS.parents[1] / "effective"
THEIRS = "real_"
LOSSES = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""Tasks that are lm-eval's own, and their losses: they log log-likelihoods, ours the negatives."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    index = write_page(analyse(load_results(RUNS)), tmp_path_factory.mktemp("page") / "out")
    with chromium(tmp_path_factory.mktemp("profile"), width=1440) as driver:
        driver.get(index.as_uri())
        ready(driver)
        yield driver
        assert [e for e in driver.get_log("browser") if e["level"] != "INFO"] == []


def logged(cell_id, task, chosen):
    """The rows of a samples file under a filter."""
    (path,) = (RUNS / cell_id).glob(f"samples_{task}_*")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["filter"] == chosen]


def value_of(row, metric, task):
    """`(value, denominator)` of a metric of one row as lm-eval logged it; None without one."""
    value = row[metric]
    sign = -1 if task.startswith(THEIRS) and metric in LOSSES else 1
    if isinstance(value, list):
        is_ratio = all(isinstance(each, int | float) for each in value)
        return (sign * value[0] / value[1], value[1]) if is_ratio and value[1] else None
    return sign * value, 1


def compared(own, other, metric, task, lower):
    """How many questions one run answers better, alike and worse than another."""
    counts = [0, 0, 0]
    for mine, theirs in zip(own, other, strict=True):
        one, two = (value_of(row, metric, task)[0] for row in (mine, theirs))
        gap = 0 if math.isclose(one, two, rel_tol=1e-6) else (one - two) * (-1 if lower else 1)
        counts[0 if gap > 0 else 2 if gap < 0 else 1] += 1
    return counts


def numbers(driver):
    """Every number of the board whose samples were logged."""
    return script(
        driver,
        "return LEVAL.board.rows.flatMap((row) => LEVAL.board.columns.filter((column) => {"
        " pair.column = column; return samplesOf(row); }).map((column) => (pair.column = column, {"
        " row: row.at, column: column.at, task: column.task, label: column.label,"
        " lower: column.lower, cell: row.cells[column.at], method: row.method,"
        " id: LEVAL.board.runs[row.cells[column.at].run].Run,"
        " rivals: LEVAL.board.rows.filter((r) => r !== row && r.block === row.block &&"
        "   r.ctx === row.ctx && samplesOf(r)).map((r) =>"
        "   LEVAL.board.runs[r.cells[column.at].run].Run)})))",
    )


def show(driver, number):
    script(
        driver,
        "by('compare-status').textContent = '';"
        "openDetail(LEVAL.board.rows[arguments[0]], LEVAL.board.columns[arguments[1]]);",
        *(number["row"], number["column"]),
    )
    ready(driver, "by('compare-status').textContent.includes('shown')")
    script(driver, "by('which').value = 'all'; by('which').dispatchEvent(new Event('change'))")


def test_behind_every_number_stands_what_was_logged(opened):
    seen = set()
    for number in numbers(opened):
        metric, task = number["cell"]["m"], number["task"]
        seen.add((task, metric))
        own = logged(number["id"], task, number["cell"]["f"])
        (other_id,) = number["rivals"]
        other = logged(other_id, task, number["cell"]["f"])
        show(opened, number)
        status = script(opened, "return by('compare-status').textContent")
        facts = script(opened, "return by('facts').textContent")
        values = [value_of(row, metric, task) for row in own]
        noun = "text" if "unit" in number["cell"] else "question"
        plural = "" if len(own) == 1 else "s"
        assert status.startswith(f"{len(own)} common {noun}{plural}"), (task, metric, status)
        if all(values):
            counts = compared(own, other, metric, task, number["lower"])
            assert "{} won, {} tied, {} lost".format(*counts) in status, (task, metric, status)
            if "Win / tie / loss" in facts and noun == "question":
                assert "{} / {} / {}".format(*counts) in facts, (task, metric)
        if noun == "text":
            lines = texts(opened, ".texts span")
            lines = [lines[at : at + 5] for at in range(5, len(lines), 5)]
            found = [(float(line[1]), float(line[2]), float(line[3])) for line in lines]
            theirs = [value_of(row, metric, task) for row in other]
            expected = [(v[1], v[0], w[0]) for v, w in zip(values, theirs, strict=True)]
            assert found == [pytest.approx(each, abs=6e-4) for each in expected], (task, metric)
        else:
            check_questions(opened, number, own)
    assert len({task for task, _ in seen}) == 10
    for task, metric in (
        ("real_choice", "acc_norm"), ("real_last_word", "perplexity"),
        ("ppl_pydocs", "token_perplexity@256"),
        ("real_rolling", "bits_per_byte"), ("real_answer", "bleu"), ("niah_single_1", "1024"),
        ("leval_closed_gsm", "exact_match"), ("posgen_recursive", "ood_accuracy"),
    ):  # fmt: skip
        assert (task, metric) in seen


def check_questions(driver, number, rows):
    """Each question shows what was expected, what came, and the score by this very metric."""
    metric, task = number["cell"]["m"], number["task"]
    cards = script(
        driver,
        "return [...document.querySelectorAll('.question')].map((each) =>"
        " [each.textContent, each.querySelector('.answers > div').textContent])",
    )
    assert len(cards) == len(rows)
    for row, (card, answer) in zip(rows, cards, strict=True):
        value = value_of(row, metric, task)
        assert "['" not in card
        if value is None:
            assert "not scored by itself" in answer, (task, metric)
        else:
            shown = [float(each) for each in re.findall(r"(?<![\w.-])-?\d+\.?\d*", answer)]
            assert any(math.isclose(each, value[0], rel_tol=1e-3) for each in shown), (task, answer)
        if task == "real_choice":
            gold = row["doc"]["choices"][row["doc"]["answer"]]
            assert f"Expected: {gold}" in card
            assert all(choice in answer for choice in row["doc"]["choices"])
            best = max(range(3), key=lambda at: float(row["resps"][at][0][0]))
            first = answer.partition("each choice:")[2].split()[1]
            assert first.startswith(row["doc"]["choices"][best][:4])
        elif "question" in row["doc"]:
            assert row["doc"]["question"][:60] in card
        if task == "niah_single_1":
            assert row["doc"]["outputs"][0] in card
        if number["cell"]["f"] in ("first_word", "whole"):
            read = row["filtered_resps"][0]
            assert f"Read as: {read}" in answer


def test_gains_by_position_are_the_first_figure(opened, tmp_path):
    """A point for each method and bin, at its end, under the names that the verdict uses."""
    analysis = analyse(load_results(EFFECTIVE))
    lines, _ = effective_lines(analysis)
    opened.get(write_page(analysis, tmp_path / "page").as_uri())
    ready(opened, "document.querySelectorAll('#hero .point').length")
    assert texts(opened, "#hero-title") == ["Gain from context by position"]
    marks = "return [...document.querySelectorAll('#hero .point title')].map((t) => t.textContent)"
    drawn = dict(each.split(": ") for each in script(opened, marks))
    expected = {
        f"{analysis.titles[line.method]}, {label(each.end)}": each.gain
        for line in lines
        for each in line.these.bins
    }
    assert {name: float(value) for name, value in drawn.items()} == pytest.approx(expected, 1e-4)
    sentences = texts(opened, "#verdict li")
    for line in lines:
        assert analysis.titles[line.method] + sentence(line).removeprefix(line.method) in sentences


def label(position):
    """A position as the page writes it."""
    return f"{position // 1024}K" if position % 1024 == 0 else f"{position:,}"
