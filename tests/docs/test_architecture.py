"""The walks of docs/architecture.md name functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
STEPS = re.findall(r"^\| `([\w/]+\.py):([\w.]+)` \|", PAGE, re.M)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_is_a_function_of_its_module(file, name):
    module = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    there = {each.name for each in ast.walk(module) if isinstance(each, kinds)}
    assert there.issuperset(name.split("."))  # of a class too


def test_every_file_that_is_named_exists():
    named = re.findall(r"`((?:leval|resonance)_\w+/[\w/]+\.\w+)", PAGE)
    assert len(named) > len(STEPS) > 20
    assert [each for each in named if not (ROOT / each).is_file()] == []
