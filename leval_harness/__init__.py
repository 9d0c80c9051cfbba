"""Long-context evaluation: run sweeps, read their results, and show them.

    import leval_harness as lh
    lh.run("quickstart").to_pandas()
    lh.diff("hf:MODEL", "vllm:MODEL,kv_cache_dtype=fp8_e4m3")

The names of `__all__` are imported when they are first used, so that importing this package loads
neither torch nor pandas.
"""

import importlib
from typing import Any

_API = "leval_harness.api"
_MODULES = {
    "Comparison": _API,
    "LibraryCheck": _API,
    "ModelCheck": _API,
    "RopeFeatures": _API,
    "check": _API,
    "compare": _API,
    "diff": "leval_harness.diff.compare",
    "load": _API,
    "rope": _API,
    "run": _API,
}
"""Public name -> module that defines it."""

__all__ = [
    "Comparison", "LibraryCheck", "ModelCheck", "RopeFeatures", "__version__", "check", "compare",
    "diff", "load", "rope", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("leval-harness")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
