"""The reads of a text whose losses are compared: in full, and in windows that move through it.

All reads score the same tokens, those past the first short window. Windows are as in
`leval_tasks.perplexity.windows`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from leval_tasks.perplexity.windows import Window, document_tokens, make_windows
from leval_tasks.statistics.clustered import Floats
from leval_tasks.statistics.effective_context import block_sums, clipped_gain
from leval_tasks.token_logprobs import Logprobs

FULL, SHORT, TRAINED = "full", "short", "trained"

Losses = Mapping[str, Logprobs]
"""Read -> nats of each token past the first short window, float32 `[tokens]`.

`trained` is NaN up to the end of its first window.
"""

COLUMNS = ("start", "tokens", "full", "short", "gain", "trained_gain")
"""What a block holds: its first position, BOS counted, and sums over tokens; gains are clipped."""


def windows_of(
    n: int, short_window: int, trained: int, reads: str, bos: bool
) -> list[tuple[str, Window]]:
    """Every window of a text of `n` tokens, with the read that it belongs to.

    Windows move by half of their size, so that a token has half a window of context at least.

    Args:
        n: tokens of the text, without BOS.
        short_window: positions of a short window, BOS included.
        trained: positions of the second, longer window; 0 for none. It is read where the text goes
            on after it.
        reads: `all`, `full` or `windows`.
        bos: whether windows begin with BOS.
    """
    found = []
    if reads != "windows":
        start = document_tokens(short_window, bos)
        found.append((FULL, Window(n + bos, 0, start, n, bos)))
    if reads != "full":
        sizes = {SHORT: short_window, TRAINED: trained}
        for read, size in sizes.items():
            moving = make_windows(n, size, size // 2, "sliding", bos) if size else []
            found += [(read, window) for window in moving[1:]]
    return found


def joined(
    parts: Sequence[tuple[str, Window, Logprobs]], start: int, n: int
) -> dict[str, Logprobs]:
    """Losses of each read from the log-probabilities of its windows.

    Args:
        parts: read, window, and log-probability of each token that it scores.
        start: first scored token.
        n: tokens of the text.
    """
    losses: dict[str, Logprobs] = {}
    for read, window, logprobs in parts:
        of_read = losses.setdefault(read, np.full(n - start, np.nan, np.float32))
        of_read[window.score_start - start : window.end - start] = -logprobs
    return losses


def block_rows(losses: Losses, start: int) -> list[list[float | None]]:
    """Sums over blocks of tokens, a row of `COLUMNS` each; None where a read is missing.

    Args:
        losses: of a text.
        start: position of the first token that they hold, BOS counted.
    """
    size = next(iter(losses.values())).size
    _, tokens = block_sums(np.zeros(size))
    starts = start + np.cumsum(tokens) - tokens
    columns: list[list[float | None]] = [starts.tolist(), tokens.tolist()]
    for values in (
        losses.get(FULL),
        losses.get(SHORT),
        gain_over(losses, losses, SHORT),
        gain_over(losses, losses, TRAINED),
    ):
        if values is None:
            columns.append([None] * tokens.size)
        else:
            sums, _ = block_sums(np.asarray(values, np.float64))
            columns.append([None if np.isnan(each) else float(each) for each in sums])
    return [list(row) for row in zip(*columns, strict=True)]


def gain_over(windows: Losses, full: Losses, read: str) -> Floats | None:
    """Clipped gain of each token of a full read over a read in windows; None without both."""
    if read not in windows or FULL not in full:
        return None
    return clipped_gain(windows[read].astype(np.float64), full[FULL].astype(np.float64))
