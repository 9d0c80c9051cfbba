"""Where the golden files are, and commands in this process."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

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


def run(*arguments: object) -> Ran:
    """`leval-harness ARGUMENTS`, in this process."""
    from leval_harness.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch.object(sys, "argv", ["leval-harness", *map(str, arguments)]),
        ):
            main()
    except SystemExit as end:
        code = end.code or 0
    return Ran(code, out.getvalue(), err.getvalue())


def fine(*arguments: object) -> str:
    """Standard output of a command that must end with 0."""
    ran = run(*arguments)
    assert ran.code == 0, f"{arguments}: {ran.code}\n{ran.err}"
    return ran.out
