"""The tables of docs/reference/million-tokens.md are those of the cost model."""

import subprocess
import sys

from docs_shell_blocks import ROOT

PAGE = (ROOT / "docs" / "reference" / "million-tokens.md").read_text("utf-8")


def test_million_tokens_table_is_the_models() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "million_tokens.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.count("\n") == 2 + 5 * 3
    assert printed in PAGE
