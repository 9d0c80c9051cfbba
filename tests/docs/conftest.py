"""`docs_shell_blocks`: the blocks of the documentation."""

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "docs_shell_blocks", Path(__file__).with_name("shell_blocks.py")
)
assert _spec is not None
assert _spec.loader is not None
sys.modules["docs_shell_blocks"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["docs_shell_blocks"])
