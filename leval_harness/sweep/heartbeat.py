"""Keeps the claim of a worker alive, and ends what should not be kept alive.

The claim is touched by a thread, so that it also lives through a request of an hour. A thread would
keep the claim of a hung request alive, too: so it watches whether answers arrive.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leval_harness.sweep.claims import Claim, Folder
from resonance_vllm.common.errors import UserError

log = logging.getLogger("leval_harness.sweep.worker")
GAVE_UP = 75
"""Exit code of a worker that gave up its run and has recorded why (`EX_TEMPFAIL`)."""
BEAT_SECONDS = 1.0


class LostClaimError(UserError):
    """Another worker has taken the run over, because this one gave no sign of life for too long."""


class Heartbeat:
    """Watches over the run, and the part of it, that a worker computes.

    Args:
        folder: of the sweep.
        log_file: the worker's own log, which a failure keeps.
        time_limit: seconds that this worker may take for a run, loading included; None: any.
        stall_limit: seconds that may pass without an answer; None: any.
        details: what the claims of this worker say beside its process and host.
    """

    def __init__(
        self,
        folder: Folder,
        log_file: Path,
        time_limit: float | None = None,
        stall_limit: float | None = None,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.log_file = log_file
        self.time_limit = time_limit
        self.stall_limit = stall_limit
        self.details = details
        self.claim: Claim | None = None
        self.doing = ""
        self.report: Callable[[], int] | None = None
        """Writes how far the run is and returns its tokens so far; set while requests are answered."""
        self.tokens = 0
        self.claimed_at = self.progress_at = time.monotonic()

    def begin(self, claim: Claim) -> None:
        """Watch over a run of which a part was just claimed."""
        self.claimed_at = self.progress_at = time.monotonic()
        self.doing = "loading the model or preparing the task"
        self.claim = claim

    def go_on(self, claim: Claim) -> None:
        """Watch over another claim on the same run, and free the one before it."""
        before = self.claim
        self.claim = claim
        self.progress_at = time.monotonic()
        if before is not None and self.folder.owns(before):
            self.folder.release(before.path)

    def end(self) -> None:
        """Watch over nothing, the run is over, and free its claim."""
        claim = self.claim
        self.claim = None
        if claim is not None and self.folder.owns(claim):
            self.folder.release(claim.path)

    def progress(self, doing: str) -> None:
        """Note that the run has made progress, and what it does next.

        Raises:
            LostClaimError: the run belongs to another worker now, so that going on is of no use.
        """
        self.progress_at = time.monotonic()
        self.doing = doing
        if self.claim is not None and not self.folder.owns(self.claim):
            raise LostClaimError("another worker has taken this run over")

    def live_with(self, parent: int) -> None:
        """Beat until the parent process ends; then end this process and all it has started."""
        while os.getppid() == parent:
            with contextlib.suppress(OSError):  # a file server that does not answer now
                self._beat()
            time.sleep(BEAT_SECONDS)
        if self.claim is not None and self.folder.owns(self.claim):
            self.folder.release(self.claim.path)
        os.killpg(0, signal.SIGKILL)

    def start(self, parent: int) -> None:
        """Beat in a thread of its own, see `live_with`."""
        threading.Thread(target=self.live_with, args=(parent,), daemon=True).start()

    def _beat(self) -> None:
        """Renew the claim; end this process where its run takes too long or makes no progress."""
        claim = self.claim
        if claim is None or not self.folder.owns(claim):
            return
        os.utime(claim.path)
        now = time.monotonic()
        report = self.report
        tokens = self.tokens
        if report is not None:
            tokens = report()
        if tokens != self.tokens:  # a long document is progress, too, before it has an answer
            self.tokens = tokens
            self.progress_at = now
        if self.time_limit is not None and now - self.claimed_at > self.time_limit:
            reason = (
                f"time_limit: no result after {self.time_limit:g} s, while {self.doing}; answers "
                "so far are kept: the same command continues, with a larger time_limit to its end"
            )
            self.folder.write_failure(claim.run, reason, self.log_file.read_bytes())
        elif self.stall_limit is not None and now - self.progress_at > self.stall_limit:
            reason = f"stall_limit: no progress for {self.stall_limit:g} s while {self.doing}"
            self.folder.retry_once(claim.run, reason, self.log_file.read_bytes())
        else:
            return
        self.folder.release(claim.path)
        os._exit(GAVE_UP)  # the main thread may hang in a library: nothing else would end it
