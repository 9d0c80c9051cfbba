"""The page that says which long-context task answers which question names tasks that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "long-context-tasks.md"
NAMES = {
    "L-Eval": "leval_closed", "Perplexity": "ppl_*", "Effective context": "effective_context_*",
    "Needle grid": "retrieval_niah", "RULER": "ruler", "MRCR": "mrcr_2needle",
    "BABILong": "babilong", "LongBench v2": "longbench2", "GraphWalks": "graphwalks",
    "LongProc": "longproc", "HELMET": "",
}  # fmt: skip
"""Name of a family -> the first task that the page names; none of a program of its own."""


@pytest.fixture(scope="module")
def tasks():
    """Name -> first task, from the second column of the page's first table."""
    rows = re.findall(r"^\| [^|]+\? \| ([^:|]+): ([^|]+) \|", PAGE.read_text("utf-8"), re.M)
    return {name: "".join(re.findall(r"`([^`]+)`", text)[:1]) for name, text in rows}


def test_every_long_context_task_is_named(tasks):
    assert tasks == NAMES


def test_named_tasks_exist(tasks):
    of_lm_eval = Path(find_spec("lm_eval").submodule_search_locations[0]) / "tasks"
    own = [path.stem for path in (ROOT / "leval_tasks").rglob("tasks/*.yaml")]
    for task in filter(None, tasks.values()):
        folder = (of_lm_eval / task).is_dir()
        assert folder or any(Path(name).match(task) for name in own), task
