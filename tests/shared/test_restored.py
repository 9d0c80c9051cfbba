"""The check of what tests leave changed finds each kind of change."""

import logging
import os
import signal
import sys

import pytest
import restored


def handler(number, frame):
    """Does nothing."""


@pytest.mark.parametrize(
    ("change", "back", "named"),
    [
        (
            lambda: signal.signal(signal.SIGINT, handler),
            lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            "the handler of SIGINT",
        ),
        (
            lambda: os.environ.__setitem__("LEVAL_X", "1"),
            lambda: os.environ.__delitem__("LEVAL_X"),
            "$LEVAL_X: 'nothing' -> '1'",
        ),
        (
            lambda: logging.disable(logging.INFO),
            lambda: logging.disable(logging.NOTSET),
            "logging.disable",
        ),
        (
            lambda: logging.root.addHandler(HANDLER),
            lambda: logging.root.removeHandler(HANDLER),
            "the logger root",
        ),
    ],
)
def test_a_change_is_named(change, back, named):
    before = restored.state()
    change()
    try:
        (found,) = restored.changes(before, restored.state(), set(sys.modules))
    finally:
        back()
    assert found.startswith(named)
    assert restored.changes(before, restored.state(), set()) == []


HANDLER = logging.NullHandler()


def test_a_registry_that_grows_is_named(monkeypatch):
    from leval_tasks.closed.catalog import TASKS

    before = restored.state()
    monkeypatch.setitem(TASKS, "another", next(iter(TASKS.values())))
    (found,) = restored.changes(before, restored.state(), {"leval_tasks.closed.catalog"})
    assert found.startswith("leval_tasks.closed.catalog.TASKS['another']")
