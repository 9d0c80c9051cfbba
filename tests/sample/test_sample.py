"""The bundled sample: its layout, and that its answers follow from its documents."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from leval_tasks.closed.catalog import TASKS, task_named
from leval_tasks.data import SAMPLE

FILES = sorted(path.name for path in SAMPLE.glob("*.jsonl"))


def documents(file):
    return [json.loads(line) for line in (SAMPLE / file).read_text("utf-8").splitlines()]


def questions(file):
    """(document, question, answer) of a file."""
    for record in documents(file):
        for pair in zip(record["instructions"], record["outputs"], strict=True):
            yield record["input"], *pair


def options(question):
    """Option texts by letter, in either layout."""
    found = re.findall(r"^(?: \(([A-D])\) |([A-D])\. )(.*)$", question, flags=re.MULTILINE)
    return {bracket or plain: text.strip().rstrip(".") for bracket, plain, text in found}


def test_every_task_has_a_file_in_the_layout_of_l_eval():
    assert sorted(task.file.name for task in TASKS.values()) == FILES
    for file in FILES:
        for record in documents(file):
            assert set(record) == {"instructions", "outputs", "input", "evaluation", "source"}
            assert (record["evaluation"], record["source"]) == ("exam", "sample")
            assert len(record["instructions"]) == len(record["outputs"]) >= 1
            assert 7_000 < len(record["input"]) < 16_000  # a few thousand tokens


@pytest.mark.parametrize("file", FILES)
def test_the_reference_is_a_right_answer(file):
    rule = next(task.rule for task in TASKS.values() if task.file.name == file)
    for _, _, answer in questions(file):
        assert rule.judge(answer, answer).right


@pytest.mark.parametrize("file", ["coursera.jsonl", "quality.jsonl", "tpo.jsonl"])
def test_the_text_states_what_is_right_and_nothing_else(file):
    letters = Counter()
    for text, question, answer in questions(file):
        right = task_named("coursera").rule.reference(answer)
        letters.update(right)
        lines = options(question)
        assert sorted(lines) == list("ABCD")
        if "Which statements" in question:
            assert "".join(letter for letter in lines if f"{lines[letter]}." in text) == right
            continue
        who = re.search(r"[A-Z]\w+ [A-Z]\w+", question.replace("Question ", "").split("\n")[0][5:])
        stated = " ".join(line for line in re.split(r"(?<=\.) ", text) if who.group() in line)
        assert [k for k, v in lines.items() if re.search(rf"\b{v}\b", stated)] == [right]
    assert len(letters) == 4
    if file != "coursera.jsonl":
        assert len(set(letters.values())) == 1


# of the numbers in a question: the hill, rows, plants, kilograms, kept, crate, price
def dollars(_, rows, plants, weight, kept, crate, price):
    return (rows * plants * weight - kept) / crate * price


def test_arithmetic_follows_from_the_numbers_and_in_every_step():
    for text, question, answer in questions("gsm100.jsonl"):
        assert dollars(*map(int, re.findall(r"\d+", question))) == int(answer)
        assert question not in text
    blocks = text.split("\n\n")
    assert (len(blocks), blocks.pop()) == (17, "")
    for block in blocks:
        steps = re.findall(r"(\d+) ([*/-]) (\d+) = (\d+)", block)
        assert all(eval(f"{x} {sign} {y}") == int(result) for x, sign, y, result in steps)
        assert re.search(r"\nThe answer is (\d+)$", block).group(1) == steps[-1][3]


def test_code_prints_the_answer():
    for text, _, answer in questions("codeU.jsonl"):
        shown = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        )
        assert shown.stdout.rstrip("\n") == answer
        # shorter ones are found in almost any response
        assert len(answer) >= 3
