"""The two reads of a text whose losses are compared: in full, and in windows that move through it.

Both score the same tokens, those from a quarter of the trained length on. Windows are as in
`leval_tasks.perplexity.windows`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from leval_tasks.perplexity.windows import Window, make_windows
from leval_tasks.statistics.effective_context import Floats, block_sums, clipped_difference
from leval_tasks.token_logprobs import Logprobs

FULL, WINDOWS = "full", "windows"

Losses = Mapping[str, Logprobs]
"""Read -> nats of each scored token, float32 `[tokens]`."""

COLUMNS = ("start", "tokens", "full", "windows", "gain")
"""What a block holds: its first position, BOS counted, and sums over its tokens. A gain is the loss
in windows minus the loss of the full read, clipped token by token."""


def windows_of(n: int, start: int, window: int, reads: str, bos: bool) -> list[tuple[str, Window]]:
    """Every window of a text of `n` tokens, with the read that it belongs to.

    Windows move by half of their size, so that a token past the first one has half a window of
    context at least. Of the first one, the tokens from `start` on are scored.

    Args:
        n: tokens of the text, without BOS.
        start: the first token that is scored.
        window: positions of a window, BOS included.
        reads: `all`, `full` or `windows`.
        bos: whether windows begin with BOS.
    """
    found = []
    if reads != WINDOWS:
        found.append((FULL, Window(n + bos, 0, start, n, bos)))
    if reads != FULL:
        moving = make_windows(n, window, window // 2, "sliding", bos)
        found += [
            (WINDOWS, Window(window, each.start, max(each.score_start, start), each.end, bos))
            for each in moving
            if each.end > start
        ]
    return found


def joined(
    parts: Sequence[tuple[str, Window, Logprobs]], start: int, n: int
) -> dict[str, Logprobs]:
    """Losses of tokens `start..n-1` by read, from the log-probabilities of its windows."""
    losses: dict[str, Logprobs] = {}
    for read, window, logprobs in parts:
        of_read = losses.setdefault(read, np.full(n - start, np.nan, np.float32))
        of_read[window.score_start - start : window.end - start] = -logprobs
    return losses


def block_rows(losses: Losses, start: int) -> list[list[float | None]]:
    """Sums over blocks of tokens, a row of `COLUMNS` each; None where a read is missing.

    `start` is the position of the first token of the losses, BOS counted.
    """
    reads = [losses.get(FULL), losses.get(WINDOWS), gains(losses)]
    found = [None if each is None else block_sums(np.asarray(each, np.float64)) for each in reads]
    tokens = next(each[1] for each in found if each is not None)
    starts = start + np.cumsum(tokens) - tokens
    sums = [[None] * tokens.size if each is None else each[0].tolist() for each in found]
    return [list(row) for row in zip(starts.tolist(), tokens.tolist(), *sums, strict=True)]


def gains(losses: Losses) -> Floats | None:
    """Clipped gain of each token of the full read over that in windows; None without both."""
    if FULL not in losses or WINDOWS not in losses:
        return None
    return -clipped_difference(losses[FULL], losses[WINDOWS])
