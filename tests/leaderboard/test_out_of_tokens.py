"""Answers that ran out of tokens: their share, those cut while thinking, and a score's bounds."""

import fixture_results as make
import pytest

from leval_harness.analysis import analyse
from leval_harness.old_results import load_results
from leval_harness.page.data import leaderboard
from leval_harness.old_tables import build_tables, details_table, leaderboard_table
from leval_harness.old_tables.formats import render

OURS, THEIRS = "leval_closed_gsm", "gsm8k"


def written(folder, thinking):
    """A task of ours and one of lm-eval's; every seventh answer of ours may think to its end."""
    ours = make.closed_samples(OURS, 0.5, 1)
    for at, row in enumerate(ours):
        row["reached_limit"] = float(at % 5 == 0)
        row["thinking_unfinished"] = float(thinking and at % 7 == 0)
    theirs = [
        {"doc_id": at, "doc": {}, "resps": [["x"]], "filter": "none", "metrics": ["exact_match"],
         "exact_match": float(at % 2), "reached_limit": float(at < 3), "thinking_unfinished": 0.0}
        for at in range(20)
    ]  # fmt: skip
    make.write_cell(folder, "a", {OURS: ours}, method="none")
    make.write_cell(folder, "b", {THEIRS: theirs}, method="none")
    return ours


def cells(analysis):
    return [
        dict(zip([column.label for column in table.columns], row.cells, strict=True))
        for table in build_tables(analysis)
        for row in table.blocks[0].rows[:1]
    ]


def test_shares_stand_beside_cut_and_unparsed_in_tables_of_ours_and_others(tmp_path):
    written(tmp_path, thinking=False)
    ours, theirs = cells(analyse(load_results(tmp_path)))
    assert (ours["Hit max tokens"].text, theirs["Hit max tokens"].text) == ("20.0", "15.0")
    assert "Thinking cut" not in {*ours, *theirs}
    assert "[" not in ours["GSM"].spread


def test_a_score_has_the_bounds_that_answers_cut_while_thinking_leave(tmp_path):
    ours = written(tmp_path, thinking=True)
    analysis = analyse(load_results(tmp_path))
    cell = cells(analysis)[0]
    given = [row["exact_match"] for row in ours if not row["thinking_unfinished"]]
    cut = len(ours) - len(given)
    wrong, right = sum(given), sum(given) + cut  # of 100 questions: percent
    assert cell["GSM"].bounds == f"[{wrong:.2f} to {right:.2f}]"
    assert cell["Thinking cut"].text == f"{cut:.1f}"
    text = render(build_tables(analysis), "md")
    assert "if all of these were wrong, and if all were right" in text
    record = next(
        each for each in details_table(analysis).records() if each["metric"] == "exact_match"
    )
    assert record["if_wrong"] == pytest.approx(wrong)
    assert record["if_right"] == pytest.approx(right)
    row = leaderboard(leaderboard_table(analysis), analysis)["rows"][0]
    shown = next(each for each in row["cells"].values() if each["n"] == 100)
    assert (shown["lim"], shown["open"], shown["ends"]) == (20, cut, [wrong, right])
