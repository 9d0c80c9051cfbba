"""The bundled sample: its layout, its truth, and what can be guessed without the documents."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from leval_tasks import sample
from leval_tasks.sample import codeu, world

CHOICE_FILES = ("coursera.jsonl", "quality.jsonl", "tpo.jsonl")
DIGEST = "ce0fc242c791b2757ad1ef5feda4ffa940e0cc275b776619ee7dbe499ebb0661"
DUMP = """
import json
from leval_tasks import sample
print(json.dumps([sample.documents(file) for file in sample.FILES]))
"""


def _options(instruction):
    """Option texts by letter, read from any of the three layouts."""
    found = re.findall(r"^(?: \(([A-D])\) |([A-D])\. )(.*)$", instruction, flags=re.MULTILINE)
    return {bracket or plain: text.strip().rstrip(".") for bracket, plain, text in found}


def _sentences(text):
    return re.split(r"(?<=[.:]) |\n+", text)


def _names(text):
    surnames = {head + tail for head in world._SURNAME_HEADS for tail in world._SURNAME_TAILS}
    return {name for name in re.findall(r"[A-Z]\w+ [A-Z]\w+", text) if name.split()[1] in surnames}


def _letters(output):
    return re.sub("[^A-D]", "", output.split()[0])


def _questions(file, seeds=None):
    """(document, instruction, output) over the pinned sample, or over many seeds."""
    sets = [sample.documents(file)] if seeds is None else [sample.generate(file, s) for s in seeds]
    for index, records in enumerate(sets):
        for number, record in enumerate(records):
            for pair in zip(record["instructions"], record["outputs"], strict=True):
                yield (index, number), record["input"], *pair


@pytest.mark.parametrize("file", sample.FILES)
def test_records_have_the_layout_of_l_eval(file):
    records = sample.documents(file)
    assert len(records) >= 3
    for record in records:
        assert set(record) == {"instructions", "outputs", "input", "evaluation", "source"}
        assert (record["evaluation"], record["source"]) == ("exam", "sample")
        assert len(record["instructions"]) == len(record["outputs"]) >= 1
        json.loads(json.dumps(record))
    if file in ("gsm100.jsonl", "codeU.jsonl"):
        assert len(records) == 12
        assert all(len(record["instructions"]) == 1 for record in records)
        assert all(r["instructions"][0].endswith("\nLet's think step by step\n") for r in records)
    else:
        assert all(len(record["instructions"]) >= 4 for record in records)


@pytest.mark.parametrize("file", sample.FILES)
def test_documents_are_of_the_promised_size(file):
    # Between 3.5 and 5.5 characters a token, these bounds lie inside 2,000 to 8,000 tokens.
    for record in sample.documents(file):
        assert 7_500 < len(record["input"]) < 28_000


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
    with pytest.raises(ValueError, match=r"'codeu.jsonl' is not in the sample.*codeU.jsonl"):
        sample.documents("codeu.jsonl")


def test_no_two_documents_share_a_fact():
    """Facts are about people (in fiction also about a claim); no subject is in two documents."""
    surnames = {name.split()[1] for name in world.names(sample._generator("any"))}
    owners = Counter()
    for file in (*CHOICE_FILES, "sci_fi.jsonl"):
        for record in sample.documents(file):
            text = record["input"] + " ".join(record["instructions"])
            owners.update({word for word in re.findall(r"\w+", text) if word in surnames})
    assert len(owners) >= 13 * 10
    assert set(owners.values()) == {1}
    claims = [i.split("\t")[1] for _, _, i, _ in _questions("sci_fi.jsonl")]
    assert len(claims) == len(set(claims)) == 24
    bodies = Counter()
    for record in sample.documents("codeU.jsonl"):
        bodies.update(set(re.findall(r"def \w+(\(x\):\n(?:    .*\n)+)", record["input"])))
    assert set(bodies.values()) == {1}


def test_no_word_is_a_value_of_two_attributes():
    values = [value.lower() for attribute in world.ATTRIBUTES for value in attribute.values]
    assert len(values) == len(set(values))


@pytest.mark.parametrize("file", ["quality.jsonl", "tpo.jsonl", "coursera.jsonl"])
def test_the_text_states_the_answer_and_no_other_option(file):
    for _, text, instruction, output in _questions(file):
        options = _options(instruction)
        assert sorted(options) == list("ABCD")
        if "following statements" in instruction:
            continue
        who = next(name for name in _names(text) if name in instruction)
        stated = " ".join(s for s in _sentences(text) if who in s)
        holds = {x for x, value in options.items() if re.search(rf"\b{value}\b", stated)}
        assert holds == {_letters(output)}
        if file == "quality.jsonl":
            letter = _letters(output)
            assert output == f"({letter}) {options[letter]}."


def test_statements_are_supported_exactly_where_the_answer_says_so():
    checked = 0
    values = {v: a for a in world.ATTRIBUTES for v in a.values}
    for _, text, instruction, output in _questions("coursera.jsonl"):
        if "following statements" not in instruction:
            continue
        true = set()
        for letter, claim in _options(instruction).items():
            who = re.search(r"[A-Z]\w+ [A-Z]\w+", claim.replace("The coat of ", "")).group()
            value = next(v for v in values if re.search(rf"\b{v}\b", claim))
            stated = " ".join(s for s in _sentences(text) if who in s)
            if re.search(rf"\b{value}\b", stated):
                true.add(letter)
        assert "".join(sorted(true)) == output
        checked += 1
    assert checked == 16


def test_fiction_statements_are_true_where_the_story_holds_them():
    cells = Counter()
    for _, text, instruction, output in _questions("sci_fi.jsonl"):
        claim = instruction.split("\t")[1].split(", True or False?")[0]
        assert instruction.endswith("based on the world described in the document.")
        loyal, factual = re.fullmatch(r"(True|False) \[fact: (True|False)\]", output).groups()
        assert (claim[1:] in text) == (loyal == "True")
        cells[loyal, factual] += 1
    assert set(cells.values()) == {6}


def test_arithmetic_of_every_step_and_the_shared_examples():
    records = sample.documents("gsm100.jsonl")
    shared = {record["input"] for record in records}
    assert len(shared) == 1
    blocks = shared.pop().split("\n\n")
    assert blocks.pop() == ""
    assert len(blocks) == 16
    for block in blocks:
        steps = re.findall(r"(\d+) ([*+/-]) (\d+) = (\d+)", block)
        assert len(steps) >= 3
        for left, sign, right, result in steps:
            assert eval(f"{left} {sign} {right}") == int(result)
        assert re.search(r"\nThe answer is (\d+)$", block).group(1) == steps[-1][3]
    assert all(record["instructions"][0] not in record["input"] for record in records)


# Each closed form takes the numbers of a question in the order in which its text gives them.
CLOSED_FORMS = {
    "orchard": lambda r, t, w, k, c: (r * t * w - k) / c,
    "stationery": lambda b, p, n, c, paid: paid - (b * p + n * c),
    "bus": lambda a, off, on, last: (a - off + on) / 2 + last,
    "bicycle and puts": lambda w, n, spent, gift: 2 * (w * n - spent) + gift,
    "bakery": lambda t, n, p, rolls: t * n / 4 * p + rolls,
    "long lake": lambda v, h, s, m, rest: v * h + s * m + rest,
    "library": lambda s, b, lent, gift, rooms: (s * b - lent + gift) / rooms,
    "choir": lambda a, f, less, seats: a + a * f + a - less + seats,
}


def test_arithmetic_answers_follow_from_the_numbers_of_the_question():
    seen = Counter()
    for seed in range(20):
        for _, _, instruction, output in _questions("gsm100.jsonl", [seed]):
            key = next(key for key in CLOSED_FORMS if key in instruction)
            numbers = [int(number) for number in re.findall(r"\d+", instruction)]
            assert CLOSED_FORMS[key](*numbers) == int(output)
            seen[key] += 1
    assert set(seen) == set(CLOSED_FORMS)


def test_code_prints_the_answer_and_calls_stand_at_the_end():
    answers = []
    for record in sample.documents("codeU.jsonl"):
        shown = subprocess.run(
            [sys.executable, "-c", record["input"]], capture_output=True, text=True, check=True
        )
        assert shown.stdout.rstrip("\n") == record["outputs"][0]
        assert re.search(r"\nfirst = .*\nsecond = .*\nprint\(.*\)\n$", record["input"])
        answers.append(record["outputs"][0])
    assert len(set(answers)) == len(answers)
    assert min(map(len, answers)) >= 3
    assert len({record["instructions"][0] for record in sample.documents("codeU.jsonl")}) == 2


def test_run_uses_a_fresh_namespace():
    codeu.run("left_over = 1\n")
    with pytest.raises(NameError):
        codeu.run("print(left_over)\n")


@pytest.mark.parametrize("file", CHOICE_FILES)
def test_answer_letters_are_uniform(file):
    letters = Counter("".join(_letters(output) for _, _, _, output in _questions(file)))
    assert len(set(letters.values())) == 1
    assert set(letters) == set("ABCD")
    if file == "coursera.jsonl":
        lengths = Counter(len(output) for _, _, _, output in _questions(file))
        assert lengths[1] == lengths[2] + lengths[3] == 16
    else:
        for record in sample.documents(file):
            first = {_letters(output) for output in record["outputs"][:4]}
            assert first == set("ABCD")


def _candidates(file, seeds):
    """One row an option: its words, its features, whether it is right, and its document."""
    rows = []
    for group, _, instruction, output in _questions(file, seeds):
        options = _options(instruction)
        lengths = sorted(len(text) for text in options.values())
        for letter, text in options.items():
            question = instruction.split("\n")[0]
            words = f"{text} {question} letter{letter} rank{lengths.index(len(text))}"
            rows.append((words, letter in _letters(output), group, len(_letters(output))))
    return rows


@pytest.mark.parametrize("file", CHOICE_FILES)
def test_a_reader_of_the_question_alone_is_at_chance(file):
    """A bag-of-words classifier over option, question, letter and length, cross-validated."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    rows = [row for row in _candidates(file, range(12)) if row[3] == 1]
    texts, right, groups, _ = zip(*rows, strict=True)
    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=500))
    scores = cross_val_predict(
        model, texts, right, groups=[str(g) for g in groups], cv=GroupKFold(4),
        method="predict_proba",
    )[:, 1]  # fmt: skip
    picks = [max(range(4), key=lambda i, n=n: scores[n + i]) for n in range(0, len(rows), 4)]
    hits = [right[4 * index + pick] for index, pick in enumerate(picks)]
    accuracy, error = sum(hits) / len(hits), (0.25 * 0.75 / len(hits)) ** 0.5
    assert abs(accuracy - 0.25) < 3.5 * error


@pytest.mark.parametrize("part", [0, 1])
def test_fiction_answers_cannot_be_told_from_the_wording(part):
    """Loyalty given the statement; factuality across documents, whose claims differ."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
    from sklearn.pipeline import make_pipeline

    hits = []
    for seed in range(12):
        texts, truth, groups = [], [], []
        for (_, document), _, instruction, output in _questions("sci_fi.jsonl", [seed]):
            texts.append(instruction)
            truth.append(("[fact: True]" if part else "True [") in output)
            groups.append(document)
        model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=500))
        guess = cross_val_predict(model, texts, truth, groups=groups, cv=LeaveOneGroupOut())
        hits += [bool(g) == t for g, t in zip(guess, truth, strict=True)]
    error = (0.25 / len(hits)) ** 0.5
    assert abs(sum(hits) / len(hits) - 0.5) < 3.5 * error
