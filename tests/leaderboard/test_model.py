"""Typed scores and entries, the board of everything, and formats that are found by their names."""

import dataclasses
import json

import fixture_results as make
import pytest
from click.testing import CliRunner

from leval_harness.analysis import analyse
from leval_harness.cli.main import app
from leval_harness.format_names import format_names
from leval_harness.old_results import Score, load_results
from leval_harness.old_tables import build_tables, details_table, leaderboard_table
from leval_harness.old_tables.formats import load_format
from resonance_vllm.errors import SettingError


def change_metadata(cell, task, **stated):
    path = next(cell.glob("results_*.json"))
    content = json.loads(path.read_text())
    content["configs"][task]["metadata"].update(stated)
    path.write_text(json.dumps(content))
    done = json.loads((cell / "done.json").read_text())
    (cell / "done.json").write_text(json.dumps({**done, "files": {}}))


def test_a_score_is_frozen_and_knows_nothing_that_is_not_told():
    score = Score(run=0, task="ppl_pg19", metric="token_perplexity@8192", value=7.5)
    assert (score.family, score.at, score.percent, score.finished) == (
        "token_perplexity", 8192, 1.0, True,
    )  # fmt: skip
    assert (score.chance, score.stderr, score.n) == (None, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        score.value = 1.0
    stretch = Score(run=0, task="ppl_pg19", metric="nll@0-8192")
    assert (stretch.family, stretch.at, stretch.finished) == ("nll", None, False)


def test_chance_and_a_part_are_read_from_what_the_results_state(tmp_path):
    both = ("leval_closed_gsm", "leval_closed_coursera")
    samples = {name: make.closed_samples(name, 0.3, 1) for name in both}
    cell = make.write_cell(tmp_path, "a", samples, metadata={"num_docs": 200})
    change_metadata(cell, "leval_closed_coursera", chance=0.125, partial=False)
    change_metadata(cell, "leval_closed_gsm", partial=True)
    scores = {s.task: s for s in load_results(tmp_path).scores if s.metric == "exact_match"}
    assert (scores["leval_closed_coursera"].chance, scores["leval_closed_coursera"].partial) == (
        0.125,
        False,
    )
    assert scores["leval_closed_gsm"].partial


def test_older_results_that_state_nothing_are_read_as_before(tmp_path):
    samples = {"leval_closed_toefl": make.closed_samples("leval_closed_toefl", 0.3, 1)}
    cell = make.write_cell(tmp_path, "a", samples, metadata={"num_docs": 3})
    change_metadata(cell, "leval_closed_toefl", chance=None, partial=None)
    (score, *_) = load_results(tmp_path).scores
    assert (score.chance, score.partial) == (0.25, True)


def test_what_others_wrote_may_hold_anything(tmp_path):
    cell = make.write_cell(
        tmp_path, "a", {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.3, 1)}
    )
    change_metadata(
        cell, "leval_closed_gsm", data=["a list"], chance="high", partial="yes", unknown={}
    )
    (score, *_) = load_results(tmp_path).scores
    assert (score.status, score.source, score.chance, score.partial) == ("done", "", 0.0, False)


@pytest.fixture(scope="module")
def analysis(sweep):
    return analyse(load_results(sweep))


def test_the_board_repeats_the_numbers_of_the_tables(analysis):
    board, closed = leaderboard_table(analysis), build_tables(analysis)[0]
    labels = [column.label for column in board.columns]
    assert labels[:9] == [
        "Method", "Ctx", "Coursera", "GSM", "QuALITY", "TOEFL", "CodeU", "SFiction", "Avg.",
    ]  # fmt: skip
    assert labels[9:] == ["GovReport token ppl"]
    perplexities = {row.length for row in board.blocks[0].rows if row.cells[-1].entry}
    assert perplexities == {1024, 2048, 4096}  # in the rows of their lengths
    rows = {(row.method, row.length): row for row in board.blocks[0].rows}
    compared = 0
    for block in closed.blocks:
        for row in block.rows:
            if row.kind == "ours" and block.title == board.blocks[0].title:
                same = rows[row.method, row.length].cells[2:9]
                assert [cell.text for cell in same] == [cell.text for cell in row.cells[2:9]]
                assert [cell.emphasis for cell in same] == [c.emphasis for c in row.cells[2:9]]
                compared += 1
    assert compared == 8


def test_every_number_of_a_task_names_the_entry_behind_it(analysis):
    board = leaderboard_table(analysis)
    kinds = [column.kind for column in board.columns]
    numbers = 0
    for block in board.blocks:
        for row in block.rows:
            for kind, cell in zip(kinds, row.cells, strict=True):
                if kind == "task" and isinstance(cell.value, float):
                    assert cell.entry is not None
                    assert cell.value == cell.entry.score.value * cell.entry.score.percent
                    assert (cell.entry.block, cell.entry.label) == (block.title, row.method)
                    numbers += 1
    assert numbers == 4 * 2 * 6 + 4 * 3


def test_another_baseline_changes_comparisons_alone(analysis):
    again = analysis.against("linear")
    fresh = analyse(analysis.results, "linear")
    assert again.baselines == fresh.baselines
    assert again.baselines != analysis.baselines
    assert again.entries == fresh.entries
    bare = [dataclasses.replace(entry, difference=None) for entry in analysis.entries]
    assert bare == [dataclasses.replace(entry, difference=None) for entry in again.entries]
    with pytest.raises(SettingError, match="baseline: 'nope' is not allowed"):
        analysis.against("nope")


def test_the_frame_has_a_row_for_each_entry(analysis):
    frame = analysis.frame()
    assert len(frame) == len(analysis.entries)
    known = (at for at, each in enumerate(analysis.entries) if each.difference)
    at = next(at for at in known if analysis.entries[at].difference.low is not None)
    difference = analysis.entries[at].difference
    assert frame.loc[at, "difference"] == difference.difference
    assert frame.loc[at, "diff_low"] == difference.low
    assert frame["p"].notna().sum() == sum(e.difference is not None for e in analysis.entries)


@pytest.mark.parametrize("name", format_names())
def test_each_format_renders_and_is_offered(name, analysis):
    form = load_format(name)
    tables = [details_table(analysis)] if form.every_number else build_tables(analysis)
    assert "resonance" in form.text(tables)
    assert form.suffix == name
    for command in (["table"], ["posgen", "table"]):
        assert name in CliRunner().invoke(app, [*command, "--help"]).output


def test_an_unknown_format_is_wrong_usage(sweep):
    assert CliRunner().invoke(app, ["table", str(sweep), "--format", "xls"]).exit_code == 2
