"""The worked examples of the official scorer, every one run through the unmodified original."""

import pytest

from leval_tasks.closed.catalog import MARKS, marks_in, task_named
from leval_tasks.closed.rules import compare
from leval_tasks.closed.thinking import (
    THINKING,
    opens_thinking,
    remove_thinking,
    thinking_unfinished,
)


def rule(name):
    return task_named(name).rule


def judge(name, response, gold):
    return rule(name).judge(response, gold)


MULTIPLE_CHOICE = [
    ("coursera", "AC", "ABC", "AC", 0.25),
    ("coursera", "BAC", "ABC", "ABC", 1),
    ("coursera", "ABCD", "ABC", "ABCD", 0),
    ("coursera", "A, C", "AC", "A", 0.25),
    ("coursera", "A,B,C", "ABC", "A", 0.25),
    ("coursera", "A B C", "ABC", "AB", 0.25),
    ("coursera", "A and C", "AC", "A", 0.25),
    ("coursera", "A. Analyze data\nC. Foo", "AC", "AC", 1),
    ("coursera", "A) and C)", "AC", "AC", 1),
    ("coursera", "I think A and B are right.", "AB", "AB", 1),
    ("coursera", "The correct options are A, B and D.", "ABD", "BD", 0.25),
    ("coursera", "Answer: AC", "AC", "A", 0.25),
    ("coursera", "answer:AC", "AC", "AC", 1),
    ("coursera", "The answer is B", "B", "B", 1),
    ("coursera", "Based on it, C", "C", "B", 0),
    ("coursera", "A\n\nExplanation: B. is wrong", "A", "AB", 0),
    ("coursera", "the options CAB", "ABC", "CAB", 0.25),
    ("coursera", "ans: AA", "A", "AA", 0.25),
    ("coursera", "AC. Question 2. B.", "AC", "AC", 1),
    ("coursera", "A.Question 2. B.", "A", "A", 1),
    ("coursera", "none", "A", "A", 1),
    ("coursera", "none", "ABC", "A", 0.25),
    ("coursera", "", "A", "None", 0),
    ("coursera", " \n", "ABC", "None", 0),
    ("coursera", "the DNA.", "A", "A", 1),
    ("toefl", "(C)", "C", "C", 1),
    ("toefl", "Based on, C", "C", "B", 0),
    ("toefl", "AC", "A", "A", 1),
    ("toefl", "AB", "A", "AB", 0),
    ("toefl", "c", "C", "A", 0),
    ("toefl", "", "C", "None", 0),
    ("quality", "[ANSWER] C", "C", "A", 0),
    ("quality", "I do not know.", "A", "A", 1),
    ("quality", "B", "(B) Their subconscious knew", "B", 1),
]


@pytest.mark.parametrize(("name", "response", "gold", "prediction", "score"), MULTIPLE_CHOICE)
def test_multiple_choice(name, response, gold, prediction, score):
    judged = judge(name, response, gold)
    assert (judged.answer, judged.score) == (prediction, score)


@pytest.mark.parametrize(
    ("name", "response", "gold"),
    [
        ("coursera", "none", "A"),
        ("quality", "I do not know.", "A"),
        ("toefl", "", "A"),
        ("gsm", "The answer is approximately 18", "18"),
        ("codeu", " \n", "3"),
        ("topic_retrieval", "", "The role of art in society"),
        ("sfiction", "True [fact: No]", "True [fact: False]"),
    ],
)
def test_nothing_guessed_counts(name, response, gold):
    judged = judge(name, response, gold)
    assert not judged.parsed | judged.right
    assert judged.strict == (0.5 if name == "sfiction" else 0.0)


def test_partial_credit_stays_in_the_strict_score():
    assert judge("coursera", "A", "ABC").strict == 0.25
    assert not judge("coursera", "A", "ABC").right
    assert judge("coursera", "BAC", "ABC").right


@pytest.mark.parametrize(
    ("response", "prediction"),
    [
        ("The answer is $18.", "18"),
        ("The answer is 1,000.", "1000"),
        ("The answer is 18.50", "18"),
        ("The answer is .5", ""),
        ("The answer is -5", "5"),
        ("The answer is 1/2", "12"),
        ("The answer is approximately 18", ""),
        ("The answer is: 18", "18"),
        ("the answer is 18 and more 20.", "20"),
        ("x 3\n\nThe answer is 5", "5"),
        ("first 7 apples.\n\nthe final answer: 5", "7"),
        ("the result is 3\n4", "34"),
        ("The answer is\n5", "5"),
        ("The answer is  6", "6"),
        ("no number at all", ""),
        ("018", "018"),
    ],
)
def test_gsm(response, prediction):
    assert rule("gsm").read(response, "").answer == prediction


def test_gsm_compares_numbers():
    assert judge("gsm", "018", "18").score == 1
    assert judge("gsm", "", "18").score == 0
    assert judge("gsm", "The answer is 180", "18").score == 0


CODEU = [
    ("So the final output of the code is `[6, 15]`.", "[6 15]", "`[6 15]`.", 1),
    ("the final output is 13.", "3", "13.", 0),
    ("The output is 13.", "3", "The output 13.", 1),
    ("b = 3", "3", "b = 3", 1),
    (
        "The output is [6, 15]. This is because of the axis argument that we gave to it",
        "[6 15]",
        "that we gave to it",
        0,
    ),
    (
        "the final output is the array that you get, namely [1 2 3]",
        "[1 2 3]",
        "the array that you get",
        0,
    ),
    ("the final output is\n```\n[1 2 3]\n```", "[1 2 3]", "``` [1 2 3] ```", 1),
    ("so it is true.", "True", "so it true.", 1),
    ("the output is 2", "-2", "the output 2", 0),
    ("the final output is -2", "2", "-2", 0),
]


@pytest.mark.parametrize(("response", "gold", "window", "score"), CODEU)
def test_codeu(response, gold, window, score):
    judged = judge("codeu", response, gold)
    assert (judged.answer.strip(), judged.score) == (window, score)


def test_codeu_leading_blank_takes_a_place_of_the_window():
    # after "the final output" the text begins with a blank: n + 3 = 4 places, one of them empty
    assert rule("codeu").read("the final output a b c d e", "x").answer == " a b c"
    assert rule("codeu").read("a b c d e ", "x").answer == "c d e "


def test_codeu_punctuation_gold_is_a_letter_comparison():
    assert judge("codeu", "...", ".. -..").score == 1
    assert judge("codeu", "it prints .. -..", ".. -..").score == 0


def test_codeu_gold_with_is_cannot_be_right():
    assert judge("codeu", "this", "this").score == 0


@pytest.mark.parametrize(
    ("response", "gold", "answers", "scores"),
    [
        ("True [fact: False]", "True [fact: False]", "true, false", (1, 1)),
        ("The statement is untrue. [fact: True]", "True [fact: False]", "true, true", (1, 0)),
        ("Yes [fact: No]", "True [fact: False]", "<error>, <error>", (0, 0)),
        ("True [fact: false", "True [fact: False]", "true, <error>", (1, 0)),
        ("false [fact: true [fact: x]]", "False [fact: True]", "false, true", (1, 1)),
        ("True", "True [fact: False]", "true, <error>", (0, 0)),
    ],
)
def test_sfiction(response, gold, answers, scores):
    judged = judge("sfiction", response, gold)
    assert judged.answer == answers
    assert tuple(judged.parts.values()) == scores
    assert judged.score == sum(scores) / 2


def test_topic_retrieval_ignores_case_and_spaces():
    gold = "The role of art in society"
    assert judge("topic_retrieval", f"The topic is {gold}.", gold).score == 1
    assert judge("topic_retrieval", "the ROLE of artin society", gold).score == 1
    assert judge("topic_retrieval", "The role of art", gold).score == 0


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("1e3", "1000", 1),
        (" 7 ", "7.0", 1),
        ("inf", "7", 0),
        ("nan", "nan", 0),
        ("it is 7", "7", 1),
        ("B the", "B", 1),
        ("a cat", "cat a", 0),
        ("D", "the", 0),
        ("", "the", 1),
    ],
)
def test_comparison(prediction, reference, score):
    assert compare(prediction, reference) == score


@pytest.mark.parametrize(
    ("response", "kept", "removed"),
    [
        ("<think>B? no.</think>\n\nC", "C", True),
        ("B? no.</think> C", "C", True),
        ("a</think>b</think>C", "C", True),
        ("<think>never ends: A", "", True),
        ("<think>a</think>B\n<think>or C", "", True),
        ("a</think> <think>or C", "", True),
        ("<think>a</think>B, for <think> stands there", "B, for <think> stands there", True),
        ("C", "C", False),
    ],
)
def test_thinking_is_not_scored(response, kept, removed):
    assert remove_thinking(response, "</think>") == (kept, removed)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("What?<|assistant|><think>\n", True),
        ("What?<|assistant|><think>\nAnswer:", True),
        ("What?<|assistant|><think>\n\n</think>\n\n", False),
        ("<think> stands in the text. " + "word " * 40 + "<|assistant|>", False),
        ("What?", False),
    ],
)
def test_thinking_opened_by_the_prompt_has_no_answer(prompt, opened):
    assert opens_thinking(prompt, "</think>") == opened
    assert remove_thinking("B?", "</think>", opened=opened)[0] == ("" if opened else "B?")
    assert thinking_unfinished("B?", "</think>", opened=opened) == opened
    assert thinking_unfinished("<think>B?", "</think>", opened=opened)
    assert not thinking_unfinished("B?</think>C", "</think>", opened=opened)
    assert not thinking_unfinished("<think>B?", "", opened=opened)


@pytest.mark.parametrize(("end", "begin"), THINKING.items())
def test_each_mark_of_published_templates_is_known(end, begin):
    assert thinking_unfinished(f"\n{begin}B?", end)
    assert opens_thinking(f"What?{begin}\n", end)
    assert not thinking_unfinished(f"{begin}B?{end}C", end)
    assert remove_thinking(f"{begin}B?{end}C", end) == ("C", True)


def test_thinking_mark_is_a_setting():
    assert remove_thinking("B</think>C", "") == ("B</think>C", False)
    assert remove_thinking("B[/T]C", "[/T]") == ("C", True)


@pytest.mark.parametrize(
    ("response", "score"),
    [("The answer is １８.", 1.0), ("The answer is ١٨", 1.0), ("so 1８ it is", 1.0), ("18²", 1.0)],
)
def test_digits_of_every_script_count_as_officially(response, score):
    assert rule("gsm").judge(response, "The answer is 18").score == score


@pytest.mark.parametrize(
    ("logged", "marks"),
    [
        ([["B", "right"]], {"right"}),
        ([["B", "wrong", "thinking_removed"]], {"wrong", "thinking_removed"}),
        ([["true", "right"], ["false", "wrong"]], {"right"}),  # the first item has the marks
        ([["B", "thinking_removed", "right"]], None),  # how it was read comes first
        ([["right"]], None),
        ([["B", "odd"]], None),
        (["right", "wrong"], None),
        ([], None),
        ("right", None),
        (None, None),
    ],
)
def test_marks_are_read_from_what_is_logged_of_an_answer(logged, marks):
    expected = {} if marks is None else {name: float(name in marks) for name in MARKS}
    assert marks_in(logged) == expected


@pytest.mark.parametrize(
    ("response", "gold", "mark"),
    [
        ("It is B", "B", "right"),
        ("It is C", "B", "wrong"),
        ("nothing fits", "B", "unparsed"),
        ("nothing fits", "A", "unparsed"),  # A is assumed, and is no answer
    ],
)
def test_one_of_the_first_three_marks_holds(response, gold, mark):
    task = task_named("toefl")
    row = task.score_responses([response], gold, 0, "")
    assert {name: row[name] for name in MARKS[:3]} == {n: float(n == mark) for n in MARKS[:3]}


def test_the_three_positions_of_a_conversation_take_turns():
    judged = judge("topic_retrieval", "whales", "Whales")
    parts = [rule("topic_retrieval").part_scores(judged, number) for number in range(4)]
    assert [[name for name, score in each.items() if score is not None] for each in parts] == [
        ["first"],
        ["second"],
        ["third"],
        ["first"],
    ]
