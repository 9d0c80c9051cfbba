"""A pytest plugin: a test that passes without having checked anything fails.

What counts: an `assert` that passed, `pytest.raises`, `pytest.warns`, `pytest.fail` behind a
condition does not; a function of `torch.testing`, `numpy.testing` or `pandas.testing`; a property
of Hypothesis. An `assert` that checks a type or that something is not None does not count: it is
true of nearly every wrong answer.
"""

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import util

TESTING = ("torch.testing", "numpy.testing", "pandas.testing")
HELPERS = {
    file.stem
    for file in Path(__file__).parents[1].rglob("*.py")
    if not file.stem.startswith(("test_", "conftest", "assertion_count", "at_hand", "restored"))
}
"""Modules of tests that hold shared checks: their assertions are rewritten, thus counted."""

pytest.register_assert_rewrite(*HELPERS)  # here, because conftest.py imports some of them


@functools.cache
def is_weak(expression: str) -> bool:
    """Whether an asserted expression is about a type or about not being None alone."""
    try:
        node = ast.parse(f"({expression})", mode="eval").body
    except SyntaxError:
        return False
    return _weak(node)


def _weak(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return all(map(_weak, values))
        case ast.Call(func=ast.Name(id="isinstance" | "callable")):
            return True
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Constant():
            return True
    return False


class AssertionCount:
    """Counts what the running test has checked."""

    def __init__(self) -> None:
        self.checks = 0
        self._called = False  # what fixtures check does not count
        self._wrapped: set[str] = set()

    def pytest_assertion_pass(self, item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
        """An `assert` passed; after the first that counts no further one has to be explained."""
        if self._called and not is_weak(orig):
            self.checks += 1
            # pytest writes an explanation of each passed assertion, which costs more than the test
            util._assertion_pass = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Begin to count; a property of Hypothesis is a check by itself."""
        self._count_testing_functions()
        function = getattr(item, "function", None)
        self.checks = int(getattr(function, "is_hypothesis_test", False))
        self._called = True
        try:
            return (yield)
        finally:
            self._called = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: "pytest.CallInfo[None]"
    ) -> Iterator[None]:
        """Fail a test that passed and checked nothing; a subtest, reported before, may."""
        report = yield
        if call.when == "call" and report.passed and not (self.checks or self._called):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} passed without checking anything"
        return report

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, each call of which is a check."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.checks += 1
            return function(*args, **kwargs)

        return call

    def _count_testing_functions(self) -> None:
        """Wrap the functions of the libraries' `testing` modules once they are imported."""
        for name in set(TESTING) - self._wrapped & set(sys.modules):
            module = sys.modules.get(name)
            if module is None:
                continue
            self._wrapped.add(name)
            for key, value in list(vars(module).items()):
                if key.startswith("assert_") and callable(value):
                    setattr(module, key, self.counted(value))


def install(config: pytest.Config) -> None:
    """Register the plugin with this run of pytest."""
    counting = AssertionCount()
    config.pluginmanager.register(counting, "assertion-count")
    pytest.raises = counting.counted(pytest.raises)  # type: ignore[assignment]
    pytest.warns = counting.counted(pytest.warns)  # type: ignore[assignment]
