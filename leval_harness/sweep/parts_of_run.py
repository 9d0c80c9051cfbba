"""The parts of a run that one worker computes: claimed one by one, beside other workers."""

from collections.abc import Iterator, Mapping
from typing import Any

from leval_harness.sweep.claims import Claim
from leval_harness.sweep.heartbeat import Heartbeat
from resonance_vllm.common.errors import UserError


class PartsOfOthersError(UserError):
    """Other workers compute the parts of a run that are left; one of them puts them together."""


class PartsOfRun:
    """The parts of a run that are free, claimed while a worker iterates over them.

    After the last part is finished, this worker has a claim on the run itself if it is the one that
    puts the results together.

    Args:
        heartbeat: of the worker, with its first claim on the run. Without a claim all parts are
            its own.
        number: how many parts the run has.
        attempt: name of this worker's attempt at the run.
    """

    def __init__(self, heartbeat: Heartbeat, number: int, attempt: str) -> None:
        self.heartbeat = heartbeat
        self.folder = heartbeat.folder
        self.number = number
        self.attempt = attempt
        self.is_claimed = heartbeat.claim is not None

    def __iter__(self) -> Iterator[int]:
        """Yield the number of each part that this worker is to compute.

        Raises:
            PartsOfOthersError: other workers have parts that they have not finished.
        """
        if not self.is_claimed:
            yield from range(self.number)
            return
        claim = self.claim
        self.folder.begin_parts(claim.run, self.number)
        while claim.part is not None:
            is_part = claim.part < self.number  # fewer may exist than were expected
            if is_part and not self.folder.is_finished(claim.run, claim.part):
                yield claim.part
            self._claim_next(claim)
            claim = self.claim

    def finish(self, part: int, counts: Mapping[str, Any]) -> None:
        """Record that the answers of a part are stored, with what this worker has done so far."""
        if self.is_claimed:
            self.folder.finish_part(self.claim.run, part, self.attempt, counts)

    @property
    def claim(self) -> Claim:
        """Return the claim that this worker has now."""
        claim = self.heartbeat.claim
        assert claim is not None
        return claim

    def _claim_next(self, claim: Claim) -> None:
        """Claim another part of the run, or the run itself once all parts are finished.

        Raises:
            PartsOfOthersError: neither can be claimed.
        """
        state = self.folder.state(claim.run)
        numbers = range(self.number)
        taken = state.finished | state.claimed
        candidates: list[int | None] = [number for number in numbers if number not in taken]
        if state.finished.issuperset(numbers):
            candidates = [None]  # the run itself: its results are put together
        for candidate in candidates:
            following = self.folder.claim(claim.run, candidate, **self.heartbeat.details)
            if following is not None:
                self.heartbeat.go_on(following)
                return
        raise PartsOfOthersError("other workers compute the parts that are left")
