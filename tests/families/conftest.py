"""Model families: one folder with a config.json each, here and where LEVAL_FAMILIES points.

A test that takes `family` runs once for every folder; nothing else names them.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Imported by its tests as a module; the name is free in every way of running pytest.
_spec = importlib.util.spec_from_file_location("families_record", HERE / "record.py")
assert _spec is not None
assert _spec.loader is not None
sys.modules["families_record"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["families_record"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        folders = sys.modules["families_record"].folders()
        metafunc.parametrize("family", folders, ids=lambda folder: folder.name)


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """Our rope types in transformers, as every command of ours has them."""
    from resonance_vllm import hf

    hf.register()
