"""The call chains of docs/architecture.md name functions that exist."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
STEPS = re.findall(r"^\| `([\w/]+\.py):([\w.]+)` \|", PAGE, re.M)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_architecture_names_functions_that_exist(file, name):
    module = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(module) if isinstance(node, kinds)}
    assert names.issuperset(name.split("."))  # of a class too


def test_architecture_names_files_that_exist():
    named = re.findall(r"`((?:leval|resonance)_\w+/[\w/]+\.\w+)", PAGE)
    assert len(named) > len(STEPS) > 20
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("package", ["leval_harness", "leval_tasks", "resonance_vllm"])
def test_packages_do_without_mocks(package):
    named = [path for path in (ROOT / package).rglob("*.py") if "mock" in path.read_text("utf-8")]
    assert not named


def test_modules_import_each_other_in_one_direction():
    graph = grimp.build_graph("leval_harness", "leval_tasks", "resonance_vllm")
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    order = list(TopologicalSorter(imports).static_order())  # an error names a cycle
    assert len(order) == len(graph.modules) > 100
