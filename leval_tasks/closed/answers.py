"""Extracted answers on their way through lm-eval's filters, with the responses that hold them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import Filter


class Answer(str):
    """An extracted answer that still knows the response it was taken from."""

    response: str

    def __new__(cls, answer: str, response: str) -> "Answer":  # noqa: D102
        made = super().__new__(cls, answer)
        made.response = response
        return made


class AnswerFilter(Filter):
    """Puts the extracted answer into the sample's `filtered_resps`.

    Args:
        answer_in: the answer in a response, given the question's `doc` as well.
    """

    def __init__(self, answer_in: Callable[[str, Mapping[str, Any]], str]) -> None:
        self.answer_in = answer_in

    def apply(self, resps: Iterable[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[Answer]:
        """Extract from the first response of each request."""
        return [
            Answer(self.answer_in(responses[0], doc), responses[0])
            for responses, doc in zip(resps, docs, strict=True)
        ]
