"""Long-context evaluation: everything that runs, reads results and shows them.

    import leval_harness as lh
    lh.run("quickstart").to_pandas()
    lh.diff("hf:MODEL", "vllm:MODEL,kv_cache_dtype=fp8_e4m3")

The names of `__all__` are imported when they are first used: importing the package costs nothing.
"""

import importlib
from typing import Any

_PLACES = {
    **dict.fromkeys(("Comparison", "check", "compare", "load", "rope", "run"), "leval_harness.api"),
    "diff": "leval_harness.diff.compare",
}
__all__ = [
    "Comparison", "__version__", "check", "compare", "diff", "load", "rope", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("leval-harness")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
