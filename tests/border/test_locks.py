"""Locks hold where there is room for nothing, and tell who has them."""

import os
import resource
from pathlib import Path

import pytest

from leval_harness.locks import LockedError, is_locked, lock


def test_a_lock_tells_who_has_it(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with lock(file):
        assert is_locked(file)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on"), lock(file):
            pass
    assert not is_locked(file)


def test_a_lock_holds_where_nothing_can_be_written(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with lock(tmp_path / "lock"):
            held = is_locked(tmp_path / "lock")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert held
