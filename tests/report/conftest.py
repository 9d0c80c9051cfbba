"""Names of real runs."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def sweep():
    """A real sweep of all closed-ended tasks, with runs that failed, stopped and were damaged."""
    return HERE.parent / "golden" / "results" / "sweep"


@pytest.fixture(scope="session")
def real_runs():
    """Real runs of every kind of task, small."""
    return HERE / "real_runs" / "results"
