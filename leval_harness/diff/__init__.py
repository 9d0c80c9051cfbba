"""Does setup B still read like setup A? Both score the same tokens of the same documents.

The package can be called: `leval_harness.diff("hf:MODEL", "vllm:MODEL")` is
`leval_harness.diff.compare.diff`. As a name of `leval_harness`, the function would be replaced by
this package as soon as anything imports it.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leval_harness.diff.compare import Sided
    from leval_harness.diff.result import DiffResult


class _CallablePackage(ModuleType):
    def __call__(self, a: "Sided", b: "Sided", **options: Any) -> "DiffResult":
        """Compare two setups, see `leval_harness.diff.compare.diff`."""
        from leval_harness.diff.compare import diff

        return diff(a, b, **options)


sys.modules[__name__].__class__ = _CallablePackage
