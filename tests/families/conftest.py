"""Model families: one folder with a config.json each, here and where LEVAL_FAMILIES points.

A test that takes `family` runs once for every folder, unless it names the families that it is
about; no test names a folder.
"""

import families_record
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any(
        "family" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "family" in metafunc.fixturenames and not chosen:
        folders = families_record.folders()
        metafunc.parametrize("family", folders, ids=lambda folder: folder.name)


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """Register the RoPE types in transformers, as every command does."""
    from resonance_vllm import hf

    hf.register()
