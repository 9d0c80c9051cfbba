"""Counting a prompt's tokens without tokenising its document again.

A document is tokenised once. The length of a prompt is stitched together: the document's own
tokens in its middle, and short windows across the borders to the frame and across the cut, where
merges may differ. The windows are accepted only where their tokens agree with the document's on a
run of tokens; where they do not, the whole prompt is tokenised.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 512  # characters on each side of a border
RUN = 8  # tokens that must agree before two tokenisations count as in step


@dataclass(frozen=True)
class Cut:
    """What is kept of a document.

    Attributes:
        spans: character ranges of the document that are kept, in order.
        head: kept tokens at the beginning; all tokens where nothing is cut.
        tail: kept tokens at the end.
        truncated: whether anything is left out.
    """

    spans: tuple[tuple[int, int], ...]
    head: int
    tail: int
    truncated: bool


class Document:
    """A document with the places of its tokens.

    Attributes:
        text: the document.
        starts: first character of each token.
        ends: character behind each token.
    """

    def __init__(self, text: str, tokenizer: Any) -> None:
        self.text = text
        self.tokenizer = tokenizer
        offsets = token_offsets(tokenizer, text)
        self.starts = [start for start, _ in offsets]
        self.ends = [end for _, end in offsets]

    def __len__(self) -> int:
        return len(self.starts)

    def keep(self, count: int, side: str) -> Cut:
        """Keep `count` tokens; `side` is where the cut is made (the middle, the right, the left).

        Args:
            count: 1 or more.
            side: `middle` keeps both ends, `right` the beginning, `left` the end.
        """
        n = len(self)
        if count >= n:
            return Cut(((0, len(self.text)),), n, 0, truncated=False)
        head = {"right": count, "left": 0, "middle": (count + 1) // 2}[side]
        tail = count - head
        spans = []
        if head:
            spans.append((0, self.ends[head - 1]))
        if tail:
            spans.append((self.starts[n - tail], len(self.text)))
        return Cut(tuple(spans), head, tail, truncated=True)

    def kept(self, cut: Cut) -> str:
        """The text that a cut keeps."""
        return "".join(self.text[start:end] for start, end in cut.spans)


def token_offsets(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Character ranges of a text's tokens, without special tokens added at its ends."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoding["offset_mapping"])


def special_tokens(tokenizer: Any, text: str, add_bos: bool | None) -> int:
    """How many tokens the backend adds around a prompt.

    Args:
        tokenizer: the run's tokenizer.
        text: the prompt's beginning; one that already has the token gets no second one.
        add_bos: the backend's own setting, None where it follows the tokenizer.
    """
    bos = getattr(tokenizer, "bos_token", None)
    if add_bos is False or (bos and text.startswith(bos)):
        return 0
    return int(tokenizer.num_special_tokens_to_add())


def count_tokens(document: Document, cut: Cut, before: str, after: str) -> int:
    """Tokens of `before + kept document + after`, without special tokens at the ends."""
    stitched = _stitch(document, cut, before, after)
    if stitched is not None:
        return stitched
    return len(token_offsets(document.tokenizer, before + document.kept(cut) + after))


def _stitch(document: Document, cut: Cut, before: str, after: str) -> int | None:
    spans = cut.spans
    if not spans or min(end - start for start, end in spans) < 4 * WINDOW:
        return None
    first, last = spans[0], spans[-1]
    head = _Window(document, before, first[0], right=True)
    tail = _Window(document, after, last[1], right=False)
    if head.sync is None or tail.sync is None:
        return None
    if len(spans) == 1:
        return head.outside + _between(document, head.sync, tail.sync) + tail.outside
    left, right = spans[0][1], spans[1][0]
    joined = document.text[left - WINDOW : left] + document.text[right : right + WINDOW]
    starts = [start for start, _ in token_offsets(document.tokenizer, joined)]
    p = _agreement(document, starts, left - WINDOW, (WINDOW // 4, 3 * WINDOW // 4))
    q = _agreement(document, starts, right - WINDOW, (WINDOW + WINDOW // 4, 2 * WINDOW - 64))
    if p is None or q is None:
        return None
    middle = bisect_left(starts, q - (right - WINDOW)) - bisect_left(starts, p - (left - WINDOW))
    return (
        head.outside
        + _between(document, head.sync, p)
        + middle
        + _between(document, q, tail.sync)
        + tail.outside
    )


class _Window:
    """Tokens of a frame and the neighbouring stretch of the document.

    Attributes:
        sync: document character from which on (to which) the document's own tokens hold.
        outside: tokens of the window on the frame's side of that character.
    """

    def __init__(self, document: Document, frame: str, border: int, *, right: bool) -> None:
        text = document.text
        if right:  # frame, then document
            window, shift = frame + text[border : border + WINDOW], border - len(frame)
            area = (len(frame) + WINDOW // 4, len(frame) + WINDOW - 64)
        else:
            window, shift = text[border - WINDOW : border] + frame, border - WINDOW
            area = (WINDOW // 4, 3 * WINDOW // 4)
        starts = [start for start, _ in token_offsets(document.tokenizer, window)]
        self.sync = _agreement(document, starts, shift, area)
        self.outside = 0
        if self.sync is not None:
            index = bisect_left(starts, self.sync - shift)
            self.outside = index if right else len(starts) - index


def _agreement(
    document: Document, starts: Sequence[int], shift: int, area: tuple[int, int]
) -> int | None:
    """First document character in an area of a window where both tokenisations run in step.

    Args:
        document: the document.
        starts: first characters of the window's tokens, in the window.
        shift: document character of the window's character 0.
        area: range of window characters in which the whole run must lie.
    """
    low, high = area
    for index in range(bisect_left(starts, low), len(starts) - RUN):
        if starts[index + RUN] >= high:
            return None
        at = starts[index] + shift
        own = bisect_left(document.starts, at)
        if index and starts[index - 1] == starts[index]:
            continue  # the middle of a character that takes several tokens
        run = [start + shift for start in starts[index : index + RUN]]
        if document.starts[own : own + RUN] == run:
            return at
    return None


def _between(document: Document, start: int, end: int) -> int:
    return bisect_left(document.starts, end) - bisect_left(document.starts, start)
