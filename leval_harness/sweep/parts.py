"""How a run is divided: by documents, into parts that several workers can compute side by side.

The parts follow from the requests of the run alone, however many workers there are. A worker passes
the requests of a part on together, so that batches are the same for one worker and for eight.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from leval_harness.backends import BACKENDS

MOST_REQUESTS = 64
"""Requests that are passed on at a time: so many are repeated after a kill, at most."""
MOST_TOKENS = 16_384
"""Tokens of windows or prompts of several documents that are passed on at a time."""
MOST_PROMPT_TOKENS_OF_ENGINE = 131_072
"""The same for prompts on an engine or a server, which answers many questions side by side."""
DOCUMENTS_ON_SERVER = 8
"""Documents of any length that a server is asked about at a time, if `num_concurrent` lets it."""
CHARACTERS_PER_TOKEN = 4
"""Of a prompt whose tokens have not been counted."""
FEWEST_PARTS = 8
"""Parts of a run that has as many documents, where a document is a batch of its own anyway."""
MOST_PARTS = 128
"""Parts of a run, each with a claim of its own."""

Numbered = tuple[int, Any]
"""Place of a request in its list, and the request."""


class Portion(NamedTuple):
    """Requests of one kind that are passed on to the model together.

    Attributes:
        kind: lm-eval's name of the requests' kind, which is also the method that answers them.
        requests: in the order of the run.
    """

    kind: str
    requests: list[Numbered]


class Limits(NamedTuple):
    """The most that a portion of several documents has.

    Attributes:
        prompt_tokens: estimated tokens of prompts.
        documents: number of documents.
        window_tokens: tokens of windows.
    """

    prompt_tokens: int
    documents: int
    window_tokens: int = MOST_TOKENS


Part = list[Portion]
"""What one worker takes of a run at a time."""


def divide(requests: Mapping[str, Sequence[Any]], backend: str) -> list[Part]:
    """Return the parts of a run, in the order of its documents; none without requests.

    Answers that are drawn at random depend on what was drawn before them: such a run is one part.

    Args:
        requests: kind -> all requests of this kind, in lm-eval's order.
        backend: name of the backend that answers them.
    """
    in_order: list[Portion] = []
    for kind, of_kind in requests.items():
        numbered = list(enumerate(of_kind))
        limits = _limits(numbered, backend)
        in_order += [Portion(kind, portion) for portion in portions(numbered, limits)]
    if any(map(_is_sampled, in_order)):
        return [in_order]
    size = -(-len(in_order) // MOST_PARTS)
    return [in_order[first : first + size] for first in range(0, len(in_order), size or 1)]


def _limits(requests: Sequence[Numbered], backend: str) -> Limits:
    """Return the most that a portion may have.

    An engine is fast when it has many requests, and a server reads long documents side by side. On
    transformers, a document of several questions and a window are read alone, so that small portions
    cost nothing and let more workers take part.
    """
    if backend not in BACKENDS:
        window_tokens = DOCUMENTS_ON_SERVER * _most_window_tokens(requests)
        most = max(MOST_TOKENS, window_tokens)
        return Limits(MOST_PROMPT_TOKENS_OF_ENGINE, MOST_REQUESTS, most)
    if is_engine(backend):
        return Limits(MOST_PROMPT_TOKENS_OF_ENGINE, MOST_REQUESTS)
    documents = sum(1 for _ in groupby(requests, text_of))
    if documents == len(requests) and not _has_windows(requests):
        return Limits(MOST_TOKENS, MOST_REQUESTS)
    return Limits(MOST_TOKENS, max(1, documents // FEWEST_PARTS))


def is_engine(backend: str) -> bool:
    """Return whether a backend answers requests of several documents side by side."""
    return backend not in BACKENDS or not BACKENDS[backend].runs_in_torch


def _most_window_tokens(requests: Sequence[Numbered]) -> int:
    """Return the tokens of the windows of the document that has most of them."""
    by_document = groupby(requests, text_of)
    return max((sum(map(_window_tokens, of_document)) for _, of_document in by_document), default=0)


def _has_windows(requests: Sequence[Numbered]) -> bool:
    return any(_window_tokens(numbered) for numbered in requests)


def portions(requests: Sequence[Numbered], limits: Limits) -> Iterator[list[Numbered]]:
    """Yield requests in portions; those about one document stay together as far as possible."""
    portion: list[Numbered] = []
    documents = 0
    for _, requests_of_document in groupby(requests, text_of):
        neighbours = list(requests_of_document)
        documents += 1
        for first in range(0, len(neighbours), MOST_REQUESTS):
            added = neighbours[first : first + MOST_REQUESTS]
            if portion and (documents > limits.documents or _is_full(portion + added, limits)):
                yield portion
                portion = []
                documents = 1
            portion = portion + added
    if portion:
        yield portion


def _is_full(portion: Sequence[Numbered], limits: Limits) -> bool:
    """Return whether a portion has more than is passed on at a time."""
    window_tokens = sum(map(_window_tokens, portion))
    if len(portion) > MOST_REQUESTS or window_tokens > limits.window_tokens:
        return True
    # the prompts of a document begin alike, and are read once by backends that share it
    prompt_tokens = sum(
        max(map(_prompt_tokens, of_document)) for _, of_document in groupby(portion, text_of)
    )
    return prompt_tokens > limits.prompt_tokens


def _window_tokens(numbered: Numbered) -> int:
    """Return the number of tokens of a window; 0 for other requests."""
    _, context, scored = getattr(numbered[1], "token_parts", (None, (), ()))
    return len(context) + len(scored)


def _prompt_tokens(numbered: Numbered) -> int:
    """Return about how many tokens a prompt has; 0 for a window, whose tokens are known."""
    request = numbered[1]
    prompt = request.args[0]
    if hasattr(request, "token_parts") or not isinstance(prompt, str):
        return 0
    return len(prompt) // CHARACTERS_PER_TOKEN


def document_of(numbered: Numbered) -> object:
    """Return the document of a request, which a backend may prefill once for several requests."""
    number, request = numbered
    return request.doc.get("document_id", number) if isinstance(request.doc, dict) else number


def text_of(numbered: Numbered) -> object:
    """Return what identifies the text that a request has in common with its neighbours.

    That is its document, or a text that several documents begin with, as the needle grid says.
    """
    return getattr(numbered[1], "shared_text", None) or document_of(numbered)


def _is_sampled(portion: Portion) -> bool:
    """Return whether an answer is drawn at random."""
    for _, request in portion.requests:
        for argument in request.args:
            if not isinstance(argument, Mapping):
                continue
            if argument.get("do_sample") or float(argument.get("temperature") or 0) > 0:
                return True
    return False
