"""Makes the fixture modules beside the tests importable, and one sweep for many tests."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for name in ("fixture_results", "browser", "block_frames"):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)

EVIL = "<script>window.pwned=1</script></td><img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A finished sweep: four methods, two lengths, six tasks, a perplexity, one failed cell."""
    import fixture_results

    return fixture_results.write_sweep(tmp_path_factory.mktemp("results"), evil=EVIL)


@pytest.fixture(scope="session")
def real_runs():
    """Real runs of every kind of task, small."""
    return HERE / "real_runs" / "results"
