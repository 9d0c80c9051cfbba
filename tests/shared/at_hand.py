"""A pytest plugin: tests for which this machine lacks something are deselected, and named.

A test says what it needs by `pytest.mark.needs(NAME)` with a name of `NEEDED`, or by the fixture
`real_data`. The names of deselected tests are printed at the end of the run.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCUMENTS = Path(os.environ.get("LEVAL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
CAP_SYS_ADMIN = 21


def may_mount() -> bool:
    """Whether this process may mount file systems, and has the command for it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    (capabilities,) = (line.split()[1] for line in status.splitlines() if "CapEff" in line)
    return bool(int(capabilities, 16) >> CAP_SYS_ADMIN & 1) and shutil.which("mount") is not None


def has_compiler() -> bool:
    """Whether there is a C++ compiler; in CI its absence is an error of the test."""
    return bool(os.environ.get("CI") or shutil.which("g++") or shutil.which("clang++"))


NEEDED: dict[str, tuple[Callable[[], bool], str]] = {
    "documents": (DOCUMENTS.is_dir, f"the published documents ({DOCUMENTS}); set LEVAL_TEST_DATA"),
    "mount": (may_mount, "the right to mount a file system"),
    "compiler": (has_compiler, "a C++ compiler, for flex_attention"),
}


class AtHand:
    """Deselects, collects the names of all processes of pytest-xdist, and prints them."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}  # id of a test -> what it needs

    @pytest.hookimpl(trylast=True)  # after -m and -k: what would not run anyway is not named
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Take out the tests that cannot run here."""
        lacking = {name: text for name, (is_there, text) in NEEDED.items() if not is_there()}
        for item in items:
            needs = {mark.args[0] for mark in item.iter_markers("needs")}
            needs |= {"documents"} if "real_data" in getattr(item, "fixturenames", ()) else set()
            for name in needs & lacking.keys():
                self.named[item.nodeid] = lacking[name]
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in self.named])
        items[:] = [each for each in items if each.nodeid not in self.named]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the names to the process that prints."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["not_at_hand"] = self.named

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the names of a process that has ended."""
        self.named |= getattr(node, "workeroutput", {}).get("not_at_hand", {})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the names under what they need."""
        for need in sorted(set(self.named.values())):
            terminalreporter.write_line(f"Not run here; they need {need}:")
            for name in sorted(name for name, needs in self.named.items() if needs == need):
                terminalreporter.write_line(f"  {name}")
