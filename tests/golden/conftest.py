"""`golden(name, text)`: equal to what is on file, or written there with GOLDEN_WRITE=1."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a text with the file of that name."""

    def compare(name: str, text: str) -> None:
        path = EXPECTED / name
        if os.environ.get("GOLDEN_WRITE"):
            path.write_text(text, encoding="utf-8", newline="\n")
        assert text.splitlines() == path.read_text(encoding="utf-8").splitlines(), name

    return compare
