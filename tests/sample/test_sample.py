"""The bundled sample: its layout, and that its answers follow from its documents."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from leval_border.errors import SettingError
from leval_tasks import sample
from leval_tasks.closed.catalog import TASKS, task_named

DIGEST = "c8dc606d00d2203827c1f56dc49d22d19efc17adfd5d4f58755ac24e8d7d8c7d"
DUMP = """
import json
from leval_tasks import sample
print(json.dumps([sample.documents(file) for file in sample.FILES]))
"""


def questions(file):
    """(document, question, answer) of a file."""
    for record in sample.documents(file):
        for pair in zip(record["instructions"], record["outputs"], strict=True):
            yield record["input"], *pair


def options(question):
    """Option texts by letter, in either layout."""
    found = re.findall(r"^(?: \(([A-D])\) |([A-D])\. )(.*)$", question, flags=re.MULTILINE)
    return {bracket or plain: text.strip().rstrip(".") for bracket, plain, text in found}


def test_every_task_has_a_file_in_the_layout_of_l_eval():
    assert set(sample.FILES) == {task.file.name for task in TASKS.values()}
    for file in sample.FILES:
        for record in sample.documents(file):
            assert set(record) == {"instructions", "outputs", "input", "evaluation", "source"}
            assert (record["evaluation"], record["source"]) == ("exam", "sample")
            assert len(record["instructions"]) == len(record["outputs"]) >= 1


@pytest.mark.parametrize("file", sample.FILES)
def test_documents_are_a_few_thousand_tokens_long(file):
    # Between 3 and 5.5 characters a token
    assert all(7_000 < len(record["input"]) < 16_000 for record in sample.documents(file))


def test_the_same_in_every_process_and_pinned():
    dumps = [
        subprocess.run(
            [sys.executable, "-c", DUMP],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert dumps[0] == dumps[1]
    assert hashlib.sha256(dumps[0].strip()).hexdigest() == DIGEST


def test_an_unknown_file_is_named_with_a_near_match():
    with pytest.raises(SettingError, match=r"'codeu.jsonl' is not allowed.*mean 'codeU.jsonl'"):
        sample.documents("codeu.jsonl")


@pytest.mark.parametrize("file", sample.FILES)
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


def test_statements_of_the_stories_are_true_where_the_story_holds_them():
    cells = Counter()
    for text, question, answer in questions("sci_fi.jsonl"):
        claim = question.split("\t")[1].split(", True or False?")[0]
        loyal, factual = re.fullmatch(r"(True|False) \[fact: (True|False)\]", answer).groups()
        assert (f"{claim[1:]}." in text) == (loyal == "True")
        cells[loyal, factual] += 1
    assert list(cells.values()) == [6] * 4


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


def test_conversations_ask_for_their_topics_in_order():
    for record in sample.documents("topic_retrieval_longchat.jsonl"):
        told = re.findall(r"discuss the topic of (.*?)\. ", record["input"])
        assert [answer.lower() for answer in record["outputs"]] == [t.lower() for t in told[:3]]
        assert len(told) == 12
