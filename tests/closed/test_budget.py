"""Budgets are exact: every recorded length equals that of tokenising the whole prompt."""

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.closed import prompts as fitting
from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.prompts import Prompt, PromptWriter
from leval_tasks.common import data
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.posgen.sequences import build_tokenizer

TOEFL = TASKS["leval_closed_toefl"]
DOCUMENTS = [row.document for row in data.load(data.Source("sample", ""), TOEFL).records]
BETWEEN = ["", "\n\n", "  ", "café ", "日本語", "🙂🙂", "=====", "12345 ", "\t", " A"]


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "tokenizer")


def asked(*questions: str) -> list[Prompt]:
    writer = PromptWriter("llama2")
    return [writer.prompts(TOEFL, question)[0] for question in questions]


def tokens_of(text: str) -> int:
    return len(tokenizer()(text)["input_ids"])


pieces = st.tuples(
    st.sampled_from(DOCUMENTS), st.integers(0, 5000), st.integers(1, 400), st.sampled_from(BETWEEN)
)


@given(
    parts=st.lists(pieces, min_size=1, max_size=30),
    room=st.integers(60, 2000),
    side=st.sampled_from(["middle", "right", "left"]),
)
def test_prompts_never_exceed_the_room_and_waste_little(parts, room, side):
    text = "".join(document[at : at + size] + end for document, at, size, end in parts)
    asking = asked("Who?", "What did Ann say? " * 3, "日本語" * 5)
    document = fitting.TokenizedDocument(text, tokenizer())
    try:
        cut, lengths = fitting.fit(document, asking, room, side)
    except ContextLengthError:
        assert max(tokens_of(each.before + each.after) for each in asking) >= room - 2
        return
    assert lengths == [tokens_of(each.argument("".join(cut.pieces))) for each in asking]
    assert max(lengths) <= room
    assert cut.truncated == ("".join(cut.pieces) != text)
    if cut.truncated:
        assert max(lengths) >= room - 16  # merges at the cut may cost a few tokens
        assert cut.head + cut.tail < len(document)


def test_sides():
    document = fitting.TokenizedDocument("one two three four five six", tokenizer())
    n = len(document)
    assert document.keep(n, "middle") == fitting.Cut((document.text,), n, 0, truncated=False)
    assert document.keep(3, "right").pieces == (document.text[: document.offsets[2][1]],)
    assert document.keep(3, "left").pieces == (document.text[document.offsets[-3][0] :],)
    pieces = document.text[: document.offsets[1][1]], document.text[document.offsets[-1][0] :]
    assert document.keep(3, "middle") == fitting.Cut(pieces, 2, 1, truncated=True)


def test_skip_leaves_out_instead_of_cutting():
    document = fitting.TokenizedDocument(DOCUMENTS[0], tokenizer())
    assert fitting.fit(document, asked("Who?"), 500, "skip")[0] is None
    assert fitting.fit(document, asked("Who?"), 10**6, "skip")[0] is not None


def test_count_tokens_of_prompt_with_bos():
    tokenizer = build_tokenizer(17)  # which puts its BOS before everything
    assert fitting.count_tokens(tokenizer, ["3 4", "3"]) == [3, 2]
    assert fitting.count_tokens(tokenizer, [f"{tokenizer.bos_token} 3 4"]) == [3]


def test_context_too_small_names_the_numbers():
    document = fitting.TokenizedDocument("word " * 3000, tokenizer())
    with pytest.raises(ContextLengthError, match=r"take \d+ tokens and 40 are left"):
        fitting.fit(document, asked("Who?"), 40, "right")
