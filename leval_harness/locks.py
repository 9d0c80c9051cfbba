"""Locks on files, exclusive or shared. The kernel releases them when their process ends."""

import contextlib
import errno
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from resonance_vllm.errors import UserError

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class LockedError(UserError):
    """Another process holds the file; the message names it where it is known."""


@contextlib.contextmanager
def lock(path: Path, shared: bool = False, patience: float = 0.0) -> Iterator[None]:
    """Hold `path` during the block, exclusively or shared.

    Raises:
        LockedError: another process still holds it after `patience` seconds.
        UserError: the file system has no locks.
    """
    until = time.monotonic() + patience
    # unbuffered: what a full disk refuses must not be written again when the file is closed
    with path.open("ab+", buffering=0) as handle:
        while not _acquired(handle.fileno(), path, shared):
            if time.monotonic() >= until:
                handle.seek(0)
                raise LockedError(handle.read(200).decode().strip() or "another process")
            time.sleep(0.1)
        if not shared:
            # a hint for others; on a full disk the lock works without it
            with contextlib.suppress(OSError):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {platform.node()}".encode())
        yield


def is_locked(path: Path) -> bool:
    """Whether some process holds the file."""
    try:
        with lock(path, shared=True):
            return False
    except LockedError:
        return True


def _acquired(descriptor: int, path: Path, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        raise UserError(
            f"{path.parent} is on a file system without file locks ({error.strerror}): two runs "
            "there would write over each other. Choose a folder elsewhere, or have it mounted with "
            "locks (Lustre: -o flock)"
        ) from None
    return True
