"""A cell's log keeps its head and its tail, and no credential."""

import os
import threading
from pathlib import Path

import pytest

from leval_harness.sweep.supervisor import BoundedLog, copy_redacted

ISSUED = "hf_MarkedTokenOfAService0123"


def copied(log: Path, content: bytes) -> bytes:
    """What `copy_redacted` makes of the output of a process."""
    reading, writing = os.pipe()
    with log.open("wb") as file:
        copier = threading.Thread(target=copy_redacted, args=(reading, file.fileno()))
        copier.start()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        copier.join()
    return log.read_bytes()


def test_a_short_log_is_whole(tmp_path: Path) -> None:
    content = b"one\n 10%\r 20%\r\ntwo\xff\nlast line without end"
    assert copied(tmp_path / "log", content) == content


def test_a_long_log_keeps_head_and_tail(tmp_path: Path) -> None:
    lines = [b"%07d of many lines\n" % number for number in range(400_000)]
    whole = b"".join(lines)
    found = copied(tmp_path / "log", whole)
    assert len(found) <= BoundedLog.HEAD + 2 * BoundedLog.TAIL + 100
    head, tail = found.split(b"\n[... ")
    left_out, tail = tail.split(b" bytes left out ...]\n")
    assert head == whole[: BoundedLog.HEAD]
    assert len(tail) >= BoundedLog.TAIL
    assert tail == whole[-len(tail) :]
    assert len(head) + int(left_out) + len(tail) == len(whole)


def test_the_last_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = BoundedLog(file.fileno())
        for number in range(60):
            line = b"%03d" % number * 40_000 + b"\n"
            log.write(line)
            assert path.read_bytes().endswith(line)
            assert path.stat().st_size <= log.HEAD + 2 * log.TAIL + 100


@pytest.mark.parametrize("before", [0, 65_500, 65_536, 131_050])
def test_no_credential_passes_in_a_line_without_end(tmp_path: Path, before: int) -> None:
    content = b"x" * 100 + b" y" * (before // 2) + b" " + ISSUED.encode() + b" z" * 100_000
    found = copied(tmp_path / "log", content)
    assert found == content.replace(ISSUED.encode(), b"***")
