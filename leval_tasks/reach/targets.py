"""Fixed targets under contexts of growing length: which tokens are scored, and after how much.

The same tokens are scored at every context length, so that what a longer fragment adds in
difficulty cannot be mistaken for what a model loses. Integer arithmetic only; windows as in
`leval_tasks.perplexity.windows`.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from leval_border.errors import SettingError, not_allowed
from leval_tasks.perplexity.windows import Window, document_tokens

SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2))
"""Lengths of the default, in shares of the trained length; then it is doubled."""


def default_lengths(trained: int, longest: int) -> tuple[int, ...]:
    """The lengths that are asked for where none are: shares of the trained one, up to the longest.

    Args:
        trained: what the checkpoint's own config claims, in tokens.
        longest: what the model can be asked; itself a length, so that nothing is left out.
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
    """Where targets of a text of `n` tokens end, the last at its end; as many as have full context.

    Empty where not even one has.
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
