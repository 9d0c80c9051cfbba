"""A cell's log is what its process wrote, without credentials."""

import os
import threading
from pathlib import Path

import pytest

from leval_harness.sweep.supervisor import copy_redacted

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


@pytest.mark.parametrize("before", [0, 65_500, 65_536, 131_050])
def test_no_credential_passes_in_a_line_without_end(tmp_path: Path, before: int) -> None:
    content = b"x" * 100 + b" y" * (before // 2) + b" " + ISSUED.encode() + b" z" * 100_000
    found = copied(tmp_path / "log", content)
    assert found == content.replace(ISSUED.encode(), b"***")
