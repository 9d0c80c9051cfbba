"""Long-context evaluation: run sweeps, read their results, and show them.

    import leval_harness as lh
    lh.run("quickstart").to_pandas()
    lh.diff("hf:MODEL", "vllm:MODEL,kv_cache_dtype=fp8_e4m3")

The names of `__all__` are imported when they are first used, so that importing this package loads
neither torch nor pandas.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leval_harness.api import Comparison, check, compare, load, rope, run
    from leval_harness.diff.compare import diff
    from resonance_vllm.check import CheckReport
    from resonance_vllm.core.features import RopeFeatures

    __version__: str

__all__ = [
    "CheckReport", "Comparison", "RopeFeatures", "__version__", "check", "compare", "diff", "load",
    "rope", "run",
]  # fmt: skip

_OTHER_MODULES = {
    "CheckReport": "resonance_vllm.check",
    "RopeFeatures": "resonance_vllm.core.features",
}
"""Public names that are not defined in `leval_harness.api`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("leval-harness")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "diff":
        return importlib.import_module("leval_harness.diff")  # a package that can be called
    module = _OTHER_MODULES.get(name, "leval_harness.api")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
