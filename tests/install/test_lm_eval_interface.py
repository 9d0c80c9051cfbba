"""What we use of lm-eval is there, found in our own sources."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where its package is installed beside lm-eval alone.
OPTIONAL = {"lm_eval.models.vllm_causallms": "vllm"}


def _used():
    for file in sorted(ROOT.glob("leval_*/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lm_eval"):
                yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(*used, marks=pytest.mark.vllm if used[0] in OPTIONAL else ())
        for used in sorted(set(_used()))
    ],
    ids=str,
)
def test_what_we_import_is_there(module, name):
    if module in OPTIONAL:
        assert importlib.util.find_spec(module).name == module
    else:
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}")


def test_requests_are_made_as_our_tasks_make_them():
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task

    assert "doc_id" not in inspect.signature(Task.construct_requests).parameters
    assert {"request_type", "doc", "arguments", "idx", "metadata"} <= set(
        inspect.signature(Instance).parameters
    )
