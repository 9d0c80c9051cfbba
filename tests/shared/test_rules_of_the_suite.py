"""What holds for all tests: none ends before its assertions, none is there to be skipped."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("test_*.py"))
SKIPS = {f"pytest.{name}" for name in ("skip", "importorskip", "xfail")}
SKIPS |= {f"pytest.mark.{name}" for name in ("skip", "skipif", "xfail")}
MOST_GOLDEN, MOST_BYTES = 20, 50_000


def nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What a function consists of, without the functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            yield from nodes(node)


def early_ends(source: str) -> list[str]:
    """Test: line, for each `return` in a test and each skip anywhere."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            returns = (each for each in nodes(node) if isinstance(each, ast.Return))
            found += [f"{node.name}: line {each.lineno} returns" for each in returns]
        if isinstance(node, ast.Attribute) and ast.unparse(node) in SKIPS:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_ends_early_or_is_skipped(path: Path) -> None:
    assert early_ends(path.read_text(encoding="utf-8")) == []


def test_early_ends_are_found() -> None:
    source = """
def test_one():
    if value:
        return
    assert value == 1

def test_two():
    def inner():
        return 3
    assert inner() == 3

@pytest.mark.skipif(True)
def test_three():
    pytest.skip("absent")
"""
    assert early_ends(source) == [
        "test_one: line 4 returns",
        "line 12: pytest.mark.skipif",
        "line 14: pytest.skip",
    ]


def test_snapshots_are_few_and_can_be_reviewed() -> None:
    golden = [path for path in (TESTS / "golden" / "expected").iterdir() if path.is_file()]
    assert len(golden) <= MOST_GOLDEN
    assert max(path.stat().st_size for path in golden) < MOST_BYTES
    assert list(TESTS.rglob("*.ambr")) == []
