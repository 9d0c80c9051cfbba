"""The GPU kit as a module."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

KIT = Path(__file__).parents[2] / "benchmarks" / "gpu"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, KIT / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    return module("kit")


@pytest.fixture(scope="session")
def prepare() -> ModuleType:
    return module("prepare")


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
