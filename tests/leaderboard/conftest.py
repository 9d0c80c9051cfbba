"""Makes the modules beside the tests importable, and names real runs."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for name in ("browser", "block_frames"):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


@pytest.fixture(scope="session")
def sweep():
    """A real sweep of all closed-ended tasks, with cells that failed, stopped and were damaged."""
    return HERE.parent / "golden" / "results" / "sweep"


@pytest.fixture(scope="session")
def real_runs():
    """Real runs of every kind of task, small."""
    return HERE / "real_runs" / "results"
