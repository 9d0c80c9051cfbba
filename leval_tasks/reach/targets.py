"""Which tokens a reach task scores, after how much context, and which of them are key tokens.

The same tokens are scored at every context length, so that a harder fragment cannot be mistaken for
a loss of the model. Windows are as in `leval_tasks.perplexity.windows`.

A key token is one that a long context helps to predict (LongPPL, arXiv 2410.23771): its loss after
a short context is more than 2 nats above its loss after the long one, and the latter is below 2
nats. LongPPL is the exponential of the mean loss on them. Key tokens travel between tokenizers as
stretches of text.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from leval_border.errors import SettingError, not_allowed
from leval_tasks.perplexity.windows import Window, document_tokens

GAP = 2.0
"""Nats that the long context must gain: the authors' `alpha`."""

MOST = 2.0
"""Nats that may be left after it: the authors' `-beta`."""

Span = tuple[int, int]
"""Where a stretch of text begins and ends, in characters."""

SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2))
"""Lengths of the default, in shares of the trained length; then it is doubled."""


def default_lengths(trained: int, longest: int) -> tuple[int, ...]:
    """The default lengths: shares of the trained one, up to the longest.

    Args:
        trained: what the checkpoint's own config claims, in tokens.
        longest: what the model reads; itself one of the lengths.
    """
    lengths = {int(trained * share) for share in SHARES}
    doubled = 4 * trained
    while doubled <= longest:
        lengths.add(doubled)
        doubled *= 2
    return tuple(sorted({each for each in lengths if 2 <= each <= longest} | {longest}))


def check_targets(lengths: Sequence[int], target_tokens: int, bos: bool) -> None:
    """Refuse targets that the shortest window does not hold.

    Raises:
        SettingError: `target_tokens` leaves no token in front of the first target.
    """
    most = document_tokens(lengths[0], bos) - (0 if bos else 1)
    if target_tokens > most:
        raise SettingError(
            not_allowed(
                "target_tokens", target_tokens, f"1 to {most}, what the shortest context holds"
            )
        )


def spacing(lengths: Sequence[int], target_tokens: int, targets: int, bos: bool) -> int:
    """Tokens between the ends of neighbouring targets of a text: what makes reading cheapest.

    Where two windows begin at the same token the longer one reads what the shorter one needs:
    `c` tokens before one end are `c + spacing` before the next. Of equally cheap spacings the
    widest is taken, whose targets are least alike.
    """
    steps = {b - a for a in lengths for b in lengths if b - a >= target_tokens} or {target_tokens}
    return min(steps, key=lambda step: (_cost(lengths, step, targets, bos), -step))


def _cost(lengths: Sequence[int], step: int, targets: int, bos: bool) -> int:
    ends = [lengths[-1] + step * index for index in range(targets)]
    return shared_positions(Window(c, e - c, e - 1, e, bos) for e in ends for c in lengths)


def shared_positions(windows: Iterable[Window]) -> int:
    """Positions that are computed where windows of one text with one beginning share it."""
    longest: dict[int, int] = {}
    for window in windows:
        longest[window.start] = max(longest.get(window.start, 0), window.positions)
    return sum(longest.values())


def target_ends(n: int, longest: int, step: int, targets: int, bos: bool) -> list[int]:
    """Where targets of a text of `n` tokens end, the last at its end.

    Only targets with full context count; there may be none.
    """
    room = n - document_tokens(longest, bos)
    return [n - step * index for index in range(targets) if step * index <= room][::-1]


def target_windows(
    ends: Iterable[int], lengths: Sequence[int], target_tokens: int, bos: bool
) -> list[Window]:
    """One window a context length and target, shortest length first; all score the same tokens."""
    ends = list(ends)
    return [
        Window(length, end - document_tokens(length, bos), end - target_tokens, end, bos)
        for length in lengths
        for end in ends
    ]


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
