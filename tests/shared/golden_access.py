"""The only place of this suite that knows where things are: adjust it when they move."""

import contextlib
import importlib
import io
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "golden"
REPOSITORY = HERE.parents[1]
SAMPLE = HERE / "sample"
TOKENIZER = HERE / "tokenizer"
RESULTS = HERE / "results"

# L-Eval's file of each task -> name of the task in lm-eval.
TASKS = {
    "coursera.jsonl": "leval_closed_coursera",
    "gsm100.jsonl": "leval_closed_gsm",
    "quality.jsonl": "leval_closed_quality",
    "tpo.jsonl": "leval_closed_toefl",
    "codeU.jsonl": "leval_closed_codeu",
    "sci_fi.jsonl": "leval_closed_sfiction",
    "topic_retrieval_longchat.jsonl": "leval_closed_topic_retrieval",
}


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def entry_point() -> Any:
    """The function that the console command of pyproject.toml calls."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["leval-harness"].partition(":")
    return getattr(importlib.import_module(module), name)


def run(*arguments: object) -> Ran:
    """`leval-harness ARGUMENTS`, in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["leval-harness", *map(str, arguments)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            entry_point()()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return Ran(code, out.getvalue(), err.getvalue())


def fine(*arguments: object) -> str:
    """Standard output of a command that must end with 0."""
    ran = run(*arguments)
    assert ran.code == 0, f"{arguments}: {ran.code}\n{ran.err}"
    return ran.out


def cell(sweep: str, method: str, length: int) -> Path:
    """The folder below `RESULTS` of the first cell of a method and a context length."""
    for path in sorted((RESULTS / sweep).glob("*/cell.json")):
        record = json.loads(path.read_text())
        if (record["method"]["name"], record["context_length"]) == (method, length):
            return path.parent.relative_to(RESULTS)
    raise LookupError(f"{sweep}: no cell of {method} at {length}")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """With `folder` as the working directory, so that no path of a machine is printed."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
