"""Shared fixtures: where the real documents are, if they are at hand."""

import os
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with `leval/closed`, `leval/predictions` and `corpora`.

    Set `LEVAL_TEST_DATA` to use a copy elsewhere; tests that need it are skipped without it.
    """
    folder = Path(os.environ.get("LEVAL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real documents are not at hand ({folder}); set LEVAL_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Checkpoint folder of the small real model, made on first use and kept in the cache."""
    from leval_leaderboard.smollm2 import prepare

    return prepare()
