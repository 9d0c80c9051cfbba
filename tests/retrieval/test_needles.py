"""Needles, prompts and scores against lm-eval's RULER, from the same random numbers."""

import random
import re
import sys
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace

import pytest

from leval_tasks.retrieval.haystack import (
    BLANK,
    LINE_BREAK,
    NOISE,
    Haystack,
    lines,
    sentences,
)
from leval_tasks.retrieval.needles import (
    DRAWN,
    GRID,
    NEEDLE,
    VARIANTS,
    KeyWords,
    Variant,
    draw_question,
    key_words,
    move_needle,
    share_found,
)

SEED = 17
TEXT = " ".join(f"This is sentence {n} of a text. Is it long? It is!" for n in range(60))


WORDS_OF_EACH_KIND = 40


def copy_of(name: str):
    """Run the code of a module once more, without changing what others import."""
    spec = find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ruler():
    """lm-eval's module with few of its words, and with our sentences.

    All of its words take a minute, and a model that divides text into sentences would be fetched.
    """
    import nltk
    import wonderwords

    categories = wonderwords.RandomWord()._categories
    few = {kind: words[:WORDS_OF_EACH_KIND] for kind, words in categories.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wonderwords, "RandomWord", lambda: SimpleNamespace(_categories=few))
        patch.setattr(nltk.data, "find", lambda name: name)
        module = copy_of("lm_eval.tasks.ruler.prepare_niah")
        module.cached_sent_tokenize = lambda text: list(sentences([text]))
        patch.setitem(sys.modules, module.__name__, module)
        module.TEMPLATE = copy_of("lm_eval.tasks.ruler.niah_utils").TEMPLATE
        key_words.cache_clear()
        yield module
    key_words.cache_clear()


def made_by_lm_eval(ruler, variant: Variant, haystack, kind: str, keys: str, values: str, number):
    """Text, answers and query of lm-eval from one state of its random numbers."""
    random.seed(SEED)
    return ruler.generate_input_output(
        number, haystack, type_haystack=kind, template=ruler.TEMPLATE,
        num_needle_k=variant.keys, num_needle_v=variant.values, num_needle_q=variant.queries,
        type_needle_k=keys, type_needle_v=values,
    )  # fmt: skip


@pytest.mark.parametrize("values", ["numbers", "uuids"])
@pytest.mark.parametrize("name", VARIANTS)
def test_sample_in_text_is_that_of_lm_eval(ruler, name, values):
    """RULER's niah_single_2 and _3, multikey_1, multivalue and multiquery."""
    words = TEXT.split(" ")
    theirs = made_by_lm_eval(ruler, VARIANTS[name], words, "essay", "words", values, len(words))
    question = draw_question(VARIANTS[name], "words", values, random.Random(SEED))
    pieces = list(sentences([TEXT]))
    context = Haystack(pieces, BLANK, []).with_needles(question, len(pieces))
    assert (question.prompt(context), list(question.values), question.query) == theirs


@pytest.mark.parametrize("keys", ["words", "uuids"])
@pytest.mark.parametrize("kind", ["repeat", "needle"])
def test_sample_between_lines_is_that_of_lm_eval(ruler, kind, keys):
    """RULER's niah_single_1, and multikey_2 and _3 whose haystack is of needles."""
    values = {"words": "numbers", "uuids": "uuids"}[keys]
    number = 30
    theirs = made_by_lm_eval(
        ruler, VARIANTS["single"], ruler.get_haystack(kind), kind, keys, values, number
    )
    question = draw_question(VARIANTS["single"], keys, values, random.Random(SEED))
    rng = random.Random(SEED)
    DRAWN[keys](rng)
    DRAWN[values](rng)
    pieces = [NOISE] * number
    if kind == "needle":
        pieces = [
            NEEDLE.format(key=DRAWN[keys](rng), value=DRAWN[values](rng), kind=values)
            for _ in range(number)
        ]
    (position,) = rng.sample(range(number), 1)
    (needle,) = question.needles
    question = move_needle(question, needle.value, (position + 0.5) / number * 100)
    context = Haystack(pieces, LINE_BREAK, []).with_needles(question, number)
    assert (question.prompt(context), list(question.values), question.query) == theirs


@pytest.mark.slow(long=True)
def test_key_words_are_those_of_lm_eval():
    from lm_eval.tasks.ruler.prepare_niah import WORDS

    words = key_words()
    assert len(words) == len(WORDS)
    some = [*range(0, len(words), 997), len(words) - 1]
    assert [words[at] for at in some] == [WORDS[at] for at in some]


def test_key_words_are_sorted_across_adjectives():
    words = KeyWords(["well", "well-known", "a", "well"], ["z", "b", "l", "known-b"])
    assert list(words) == sorted(
        {
            f"{adj}-{noun}"
            for adj in ("well", "well-known", "a")
            for noun in ("z", "b", "l", "known-b")
        }
    )


def test_depths_and_answer_prefix_are_those_of_lm_eval(ruler):
    assert [int(depth) for depth in ruler.DEPTHS] == list(GRID)
    for variant in (VARIANTS["single"], VARIANTS["multiquery"]):
        random.seed(SEED)
        (sample,) = ruler.generate_samples(
            NOISE, lambda text: type("Encoded", (), {"input_ids": text.split()}),
            max_seq_length=600, type_haystack="repeat", type_needle_k="words",
            type_needle_v="numbers", template=ruler.TEMPLATE, num_samples=1,
            num_needle_q=variant.queries,
        )  # fmt: skip
        question = draw_question(variant, "words", "numbers", random.Random(SEED))
        asked = re.search(r" for (.+) mentioned", sample["gen_prefix"])[1]
        theirs = question.answer_prefix.replace(question.query, asked)
        assert theirs == sample["gen_prefix"]


@pytest.mark.parametrize(
    "response", ["", "1234567", "They are 1234567 and 7654321.", "AB-cd", "the ab-CD\x00, 7654321"]
)
def test_score_is_that_of_lm_eval(response):
    from lm_eval.tasks.ruler.common_utils import postprocess_pred, string_match_all

    values = ("1234567", "7654321", "ab-cd")
    expected = string_match_all(postprocess_pred([response]), [list(values)])
    assert share_found(values, response) == pytest.approx(expected)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("depth", [0, 37, 100])
def test_moved_needle_stands_at_its_depth(name, depth):
    question = draw_question(VARIANTS[name], "words", "numbers", random.Random(SEED))
    value = question.values[-1]
    moved = move_needle(question, value, depth)
    (needle,) = (needle for needle in moved.needles if needle.value == value)
    assert needle.depth == depth
    others = {needle for needle in question.needles if needle.value != value}
    assert set(moved.needles) - {needle} == others
    pieces = [f"line {number}" for number in range(100)]
    text = Haystack(pieces, LINE_BREAK, []).with_needles(moved, 100).split(LINE_BREAK)
    at = text.index(moved.sentence(needle))
    assert at == depth + sum(other.depth < depth for other in others)
    assert [line for line in text if line.startswith("line")] == pieces


def test_texts_are_divided_where_needles_may_stand():
    text = "One is. \"Two?\" She said: 'no.' Then 3.5 of it!\n\nAnd e.g. this   goes on."
    assert list(sentences([text])) == [
        "One is.", '"Two?"', "She said: 'no.'", "Then 3.5 of it!", "And e.g. this goes on.",
    ]  # fmt: skip
    assert " ".join(sentences([text])) == " ".join(text.split())
    endless = " ".join(["word"] * 130)
    assert [len(piece.split()) for piece in sentences([endless])] == [60, 60, 10]
    code = "def f():\n    return 1\n\n"
    assert LINE_BREAK.join(lines([code])) == code
