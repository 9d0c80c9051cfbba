"""Counts beside numbers are the numbers' own, where a results file counts a task's questions."""

import pytest
from lm_eval_output import sample, write

from leval_harness.report.compare import compare
from leval_harness.report.effective_context import compared_frame
from leval_harness.report.retrieval import retrievals
from leval_harness.report.verdict import verdicts
from leval_harness.results.load import load_results

NOT_ASKED = {"16384": -1.0}
"""What RULER writes at a length without questions."""
CASES = {
    "RULER": ("niah_single_1", {"4096": 500, "8192": 500}, 1000),
    "RULER at one length": ("ruler_vt", {"4096": 500}, 500),
    "RULER of three lengths": ("ruler_cwe", {"4096": 10, "8192": 10, "131072": 10}, 30),
    "needles": ("retrieval_niah_single", {"accuracy@4096": 72, "accuracy@8192": 72}, 144),
    "needles by depth": (
        "retrieval_niah_multikey",
        {"accuracy@4096": 30, "accuracy@8192": 30, "depth_0@4096": 15, "depth_50@4096": 15,
         "depth_0@8192": 15, "depth_50@8192": 15},
        60,
    ),
    "MRCR": ("mrcr_2needle", {"mrcr": 100, "mrcr@4096": None, "mrcr@8192": None}, 100),
    "topics": (
        "leval_closed_topic_retrieval",
        {"exact_match": 150, "first": 50, "second": 50, "third": 50},
        150,
    ),
    "parts of every answer": (
        "leval_closed_sfiction", {"exact_match": 64, "loyalty": 64, "factuality": 64}, 64,
    ),
    "perplexity": ("ppl_pg19", {"loss@4096": 20, "loss@8192": 20}, 20),
    "another task": ("arc", {"acc": 25, "acc_norm": 25}, 25),
}  # fmt: skip
"""Task, the questions of each of its numbers, and those of the task."""


def counted(folder, task, names, asked, **more):
    """The numbers of questions beside a task's numbers, by name; None where there is none."""
    values = {f"{name},none": 0.875 for name in names} | {f"{n},none": -1.0 for n in NOT_ASKED}
    samples = {"original": asked, "effective": more.pop("effective", asked)}
    write(folder, values, task, **{"n-samples": {task: samples}}, **more)
    rows = compare(load_results(folder))
    return dict(
        zip(rows["name"], rows["n"].astype(object).where(rows["n"].notna(), None), strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_questions_are_those_of_the_number_itself(tmp_path, case):
    task, expected, asked = CASES[case]
    assert counted(tmp_path, task, expected, asked) == expected


def test_questions_under_a_limit_are_not_guessed(tmp_path):
    """The first 600 of 1,000 questions are all of one length and some of the next."""
    limit = {"effective": 600, "config": {"limit": 600}}
    found = counted(tmp_path / "two", "niah_single_1", ["4096", "8192"], 1000, **limit)
    assert found == {"4096": None, "8192": None}
    assert counted(tmp_path / "one", "niah_single_1", ["4096"], 1000, **limit) == {"4096": 600}


@pytest.mark.parametrize("logged", [False, True])
def test_retrieval_is_decided_by_its_own_questions(tmp_path, logged):
    """872 of 1,000 do not decide about 85.6%; 1,744 of 2,000 would, wrongly."""
    for task in ("niah_single_1", "ruler_vt"):
        values = {"4096,none": 0.9, "8192,none": 0.872}
        rows = [
            sample(at, float(at % 500 < right), length, asked=f"{task} {at}")
            for start, length, right in ((0, "4096", 450), (500, "8192", 436))
            for at in range(start, start + 500)
        ]
        count = {"n-samples": {task: {"original": 1000, "effective": 1000}}}
        write(tmp_path / task, values, task, rows if logged else None, **count)
    (row,) = retrievals(compare(load_results(tmp_path))).to_dict("records")
    assert row["questions"] == (1000, 1000)
    assert row["above"] == "at least 4K"
    (verdict,) = verdicts(compared_frame(load_results(tmp_path)))
    assert any("1000 questions per length" in text for text in verdict.sentences), verdict.sentences
