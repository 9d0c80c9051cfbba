import pytest

from leval_tasks.metrics import compose, split


@pytest.mark.parametrize(
    ("name", "family", "lengths"),
    [("token_perplexity@8192", "token_perplexity", [8192]), ("nll@0-4096", "nll", [0, 4096])],
)
def test_names_are_taken_apart_as_they_are_made(name, family, lengths):
    assert compose(family, *lengths) == name
    assert split(name) == (family, lengths[0] if len(lengths) == 1 else None)


def test_a_name_without_a_length():
    assert split("exact_match") == ("exact_match", None)
