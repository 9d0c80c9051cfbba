"""Tokens that a long context helps to predict: LongPPL's key tokens (arXiv 2410.23771).

A token is one where its loss after a short context is more than 2 nats above its loss after the
long one, and the latter is below 2 nats. LongPPL is the exponential of the mean loss on them. Key
tokens travel between tokenizers as stretches of text.
"""

from collections.abc import Iterable, Sequence

GAP = 2.0
"""Nats that the long context must gain: the authors' `alpha`."""

MOST = 2.0
"""Nats that may be left after it: the authors' `-beta`."""

Span = tuple[int, int]
"""Where a stretch of text begins and ends, in characters."""


def key_places(short: Sequence[float], long: Sequence[float]) -> list[int]:
    """Places of the key tokens among some tokens.

    Args:
        short: nats of each token after the short context.
        long: nats of the same tokens after the long one.
    """
    pairs = enumerate(zip(short, long, strict=True))
    return [place for place, (a, b) in pairs if a - b > GAP and b < MOST]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Stretches of text in order; those that touch are one."""
    out: list[Span] = []
    for start, end in spans:
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def places_within(spans: Sequence[Span], tokens: Sequence[Span]) -> list[int]:
    """Places of the tokens that lie within one of some stretches, both in order."""
    places, at = [], 0
    for place, (start, end) in enumerate(tokens):
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        if at < len(spans) and spans[at][0] <= start and end <= spans[at][1]:
            places.append(place)
    return places
