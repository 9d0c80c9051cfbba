"""How far a running run is: what its worker writes once a second, and every machine reads."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from leval_harness.sweep.cost import ComputedShare

TOO_MANY = 1.05
"""Multiple of the estimated tokens above which the estimate was too low. That of a reference relies
on losses of full reads, which a worker that has not read these documents does not have."""


class RunProgress(NamedTuple):
    """What a worker has done for its run.

    Attributes:
        requests: of the run, as far as they are made.
        answered: how many of them have an answer.
        resumed: how many of these an earlier attempt has answered.
        prefilled: tokens of prompts and documents that were computed.
        decoded: tokens that were generated.
        seconds: since the first request was passed on.
    """

    requests: int = 0
    answered: int = 0
    resumed: int = 0
    prefilled: int = 0
    decoded: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Return the tokens that this attempt has computed."""
        return self.prefilled + self.decoded

    @property
    def resumed_share(self) -> float:
        """Return the share of the requests that an earlier attempt has answered."""
        return self.resumed / max(1, self.requests)

    def share(self, computed: ComputedShare | None) -> float:
        """Return the share of the run that is computed, from 0 to 1.

        Within a document it is measured in tokens, on a backend that counts none in answers. Both
        count for questions, whose tokens are estimated from a few. Where text is scored the tokens
        are known, and answers that another read has given already cost nothing.

        Args:
            computed: the share of the run that some tokens are; None if it is not known.
        """
        by_answers = self.answered / max(1, self.requests)
        by_tokens = 0.0
        if computed is not None and self.tokens:
            by_tokens = self.resumed_share + computed.after(self.tokens)
            is_too_low = self.tokens > TOO_MANY * computed.total_tokens
            if is_too_low and 0 < self.answered < self.requests:
                return by_answers
        if by_tokens and not self.decoded:
            return min(1.0, by_tokens)
        return min(1.0, max(by_answers, by_tokens))


def write_progress(path: Path, progress: RunProgress) -> None:
    """Write the progress of a run; a disk that is full does not end it."""
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(progress._asdict()), encoding="utf-8")


def read_progress(path: Path) -> RunProgress | None:
    """Return the progress of a run; None if there is none, or it is just being written."""
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return RunProgress(**content)
    except (OSError, ValueError, TypeError):
        return None


def together(workers: Sequence[RunProgress]) -> RunProgress | None:
    """Return the progress of a run from that of the workers which take part in it.

    Args:
        workers: what each has written. What one has found answered, others may have computed just
            before: the least of it was there before them all.

    Returns:
        Counts and seconds of all workers; None without any.
    """
    if not workers:
        return None
    resumed = min(one.resumed for one in workers)
    answered = resumed + sum(one.answered - one.resumed for one in workers)
    requests = max(one.requests for one in workers)
    return RunProgress(
        requests=requests,
        answered=min(answered, requests),
        resumed=resumed,
        prefilled=sum(one.prefilled for one in workers),
        decoded=sum(one.decoded for one in workers),
        seconds=sum(one.seconds for one in workers),
    )
