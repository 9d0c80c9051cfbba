"""A test that passes without having checked anything fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest
from assertion_count import is_weak

SUITE = """
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy.testing
import pytest
from checks_of_several import equal


def test_nothing():
    pass


def test_type():
    assert isinstance(3, int)


def test_not_none():
    value = 3
    assert value is not None and isinstance(value, int)


def test_loop_over_nothing():
    for each in []:
        assert each == 1


@pytest.fixture
def checked():
    assert 1 + 1 == 2


def test_only_its_fixture_checks(checked):
    pass


def test_value():
    assert 1 + 1 == 2


def test_its_subtest_does_nothing(subtests):
    with subtests.test("one"):
        pass
    assert 1 + 1 == 2


def test_nothing_in_subtests(subtests):
    with subtests.test("one"):
        pass


def test_helper():
    equal(2, 2)


def test_raises():
    with pytest.raises(ZeroDivisionError):
        1 / 0


def test_warns():
    with pytest.warns(UserWarning):
        warnings.warn("here", UserWarning)


def test_arrays():
    numpy.testing.assert_allclose([1.0], [1.0])


@hypothesis.given(st.integers())
def test_property(number):
    int(str(number))
"""
CONFTEST = """
import assertion_count


def pytest_configure(config):
    assertion_count.install(config)
"""
CHECKS_NOTHING = {
    "test_nothing",
    "test_type",
    "test_not_none",
    "test_loop_over_nothing",
    "test_only_its_fixture_checks",
    "test_nothing_in_subtests",
}


@pytest.mark.parametrize("processes", ["0", "1"])
def test_tests_that_check_nothing_fail_and_no_others(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path[:0] = {[str(Path(__file__).parent), str(tmp_path)]}\n"
        f"import pytest\npytest.register_assert_rewrite('checks_of_several'){CONFTEST}"
    )
    (tmp_path / "checks_of_several.py").write_text("def equal(a, b):\n    assert a == b\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p", "no:cacheprovider"]
    command += ["-o", "enable_assertion_pass_hook=true", "--tb=line", "-rfp", "test_suite.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if "test_suite.py::" in line]
    failed = {each[1].split("::")[1] for each in lines if each[0] == "FAILED"}
    passed = {each[1].split("::")[1] for each in lines if each[0] == "PASSED"}
    assert (done.returncode, failed) == (1, CHECKS_NOTHING), done.stdout
    assert len(passed) == SUITE.count("\ndef test_") - len(CHECKS_NOTHING)


@pytest.mark.parametrize(
    ("expression", "weak"),
    [
        ("isinstance(a, int)", True),
        ("callable(a)", True),
        ("a is not None", True),
        ("a is not None and isinstance(a, int)", True),
        ("True", True),
        ("a is None", False),
        ("isinstance(a, int) and a > 2", False),
        ("a == 2", False),
        ("a", False),
    ],
)
def test_types_and_not_none_are_no_checks(expression: str, weak: bool) -> None:
    assert is_weak(expression) == weak
