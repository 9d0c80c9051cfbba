"""Long-context evaluation: everything that runs, reads results and shows them.

import leval_harness as lh
result = lh.diff("hf:MODEL", "vllm:MODEL,kv_cache_dtype=fp8_e4m3")
"""

from typing import Any

__all__ = ["diff"]


def __getattr__(name: str) -> Any:
    """The Python API, imported on first use so that importing the package stays quick."""
    if name == "diff":
        from leval_harness.parity.compare import diff

        return diff
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
