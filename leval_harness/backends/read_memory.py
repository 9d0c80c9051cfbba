"""Log-probabilities of documents that were read before under the same RoPE settings.

The reference of effective context reads a document in windows of the native context length. The
first of them is the beginning of the document, which the unmodified model also reads in full: its
tokens have the same context there, and are not computed again.
"""

from collections import deque

from leval_harness.backends.scoring import Passage

MOST_PASSAGES = 64
"""Passages that are remembered; of 100,000 tokens each they take 50 MB."""


class ReadMemory:
    """Passages that were scored, with the rotation under which they were read."""

    def __init__(self) -> None:
        self._passages: deque[tuple[str, Passage]] = deque(maxlen=MOST_PASSAGES)

    def add(self, rotation: str, passage: Passage) -> None:
        """Remember a scored passage."""
        self._passages.append((rotation, passage))

    def recall(self, rotation: str, passage: Passage) -> bool:
        """Give a passage the numbers of one that begins with it and scores its targets.

        Args:
            rotation: under which the passage would be read.
            passage: gets its log-probabilities.

        Returns:
            Whether such a passage is known.
        """
        for known_rotation, known in self._passages:
            if known_rotation == rotation and is_scored_by(passage, known):
                start = passage.first - known.first
                passage.logprob = known.logprob[start : start + len(passage.targets)].clone()
                return True
        return False


def is_scored_by(passage: Passage, longer: Passage) -> bool:
    """Return whether a longer passage begins with a passage, and scores all of its targets."""
    length = len(passage.inputs)
    if length >= len(longer.inputs) or passage.first < longer.first:
        return False
    # The last target is not an input of the passage, but is one of the longer passage.
    last_target = longer.inputs[length]
    return passage.targets[-1] == last_target and passage.inputs == longer.inputs[:length]
