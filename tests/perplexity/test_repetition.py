"""Repeated passages: how they are counted and left out, and that the corpus has none."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leval_tasks.perplexity.documents import language_reference
from leval_tasks.repetition import repeated_share, without_repeats


def test_positions_of_a_second_copy_are_counted():
    passage = [f"p{at}" for at in range(100)]
    between = [f"b{at}" for at in range(1000)]
    twice = passage + between + passage
    # the copy's last 31 positions start sequences that the text does not hold in full
    assert repeated_share(twice) == (100 - 31) / (len(twice) - 31)
    assert repeated_share(passage + between[:900] + passage) == 0
    assert repeated_share(passage[:31]) == 0


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 4), st.integers(0, 6))
def test_the_share_is_that_of_a_plain_search(tokens, ngram, apart):
    starts = range(len(tokens) - ngram + 1)
    found = [
        any(tokens[a : a + ngram] == tokens[b : b + ngram] for a in range(b) if b - a > apart)
        for b in starts
    ]
    assert repeated_share(tokens, ngram, apart) == (sum(found) / len(found) if found else 0)


def test_paragraphs_that_were_mostly_seen_are_left_out():
    first = "the quick brown fox jumps over the lazy dog in the old garden"
    new = "a text that shares no sequence of eight words with any other paragraph"
    longer = f"{first} and then sleeps there until the late evening of that very long day"
    assert without_repeats([first, new, first, "short", "short", " "]) == [first, new, "short"]
    assert without_repeats([first, longer]) == [first, longer]
    assert without_repeats([longer, first]) == [longer]
    shuffled = [first, new, longer]
    random.Random(0).shuffle(shuffled)
    assert set(without_repeats(shuffled * 3)) <= set(shuffled)


def installed() -> list[Path]:
    """The language references of the Pythons on this machine's PATH."""
    found = {Path(os.__file__).parent / "pydoc_data" / "topics.py"}
    for minor in range(8, 20):
        if path := shutil.which(f"python3.{minor}"):
            root = Path(path).resolve().parent.parent
            found.add(root / "lib" / f"python3.{minor}" / "pydoc_data" / "topics.py")
    return sorted(each for each in found if each.is_file())


@pytest.mark.parametrize("path", installed(), ids=str)
def test_the_language_reference_repeats_no_passage(path):
    content: dict[str, dict[str, str]] = {}
    exec(path.read_text(encoding="utf-8"), content)
    topics = content["topics"]
    text, _ = language_reference(topics)
    words = re.compile(r"\w+|[^\w\s]+").findall
    assert len(words(text)) > 50_000
    assert repeated_share(words(text)) < 0.01
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    assert repeated_share(words(whole)) > 0.1
