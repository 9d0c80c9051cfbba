"""`golden(name, value)`: equal to what is on file, or written there with GOLDEN_WRITE=1."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"


def as_text(value: Any) -> str:
    """A text as it is; else JSON, a line an entry of the outermost dictionary."""
    if isinstance(value, str):
        return value
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.fixture(scope="session")
def golden() -> Callable[[str, Any], None]:
    """Compares a text, or a dictionary of JSON values, with the file of that name."""

    def compare(name: str, value: Any) -> None:
        path = EXPECTED / name
        if os.environ.get("GOLDEN_WRITE"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_text(value), encoding="utf-8", newline="\n")
            return
        before = path.read_text(encoding="utf-8")
        if isinstance(value, str):
            assert value == before
            return
        after, expected = json.loads(as_text(value)), json.loads(before)
        assert list(after) == list(expected)
        for key, found in after.items():
            assert found == expected[key], f"{name}: {key}"

    return compare
