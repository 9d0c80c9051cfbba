"""Scripts outside of the packages as modules: benchmarks, and what `make` runs."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script(path: str) -> ModuleType:
    """The module of a file, such as `benchmarks/diff_cases.py`, executed anew at each call.

    As with `python FILE`, it may import other scripts of its folder.
    """
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:  # no assertion: it would count as one of the test
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
