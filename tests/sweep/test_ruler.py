"""lm-eval's RULER in sweeps: as many questions as are asked, and the same ones as without a limit."""

import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from leval_harness.sweep.ruler import NEEDLES, SOURCES, few_questions, tasks_of_ruler

TOKENIZER = str(Path(__file__).parents[1] / "golden" / "tokenizer")
MADE = {"ruler_vt": (1280, "get_vt_dataset"), "ruler_fwe": (256, "fwe_download"),
        "ruler_cwe": (700, "get_cw_dataset")}  # fmt: skip


@pytest.mark.parametrize(
    "task", [pytest.param("ruler_vt", marks=pytest.mark.slow), "ruler_fwe", "ruler_cwe"]
)
def test_few_questions_are_the_first_of_lm_eval(task: str) -> None:
    length, name = MADE[task]
    module = import_module(f"lm_eval.tasks.ruler.{SOURCES[task].module}")
    settings = {"pretrained": TOKENIZER, "max_seq_lengths": [length]}
    with few_questions([task], limit=3, seed=5):
        own = getattr(module, name)
        few = own(**settings)["test"]
        assert own(**settings)["test"] is few, "it is made once"
        again = getattr(module, name)(**{**settings, "max_seq_lengths": [length + 50]})["test"]
    with few_questions([task], limit=5, seed=5):
        more = getattr(module, name)(**settings)["test"]
    assert len(few) == len(again) == 3
    assert again[0] != few[0]
    assert list(more)[:3] == list(few)
    if task == "ruler_cwe":  # it has a random generator of its own, which has gone on
        return
    assert getattr(module, name) is not own
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - from which lm-eval draws
    theirs = getattr(module, name)(**settings)["test"]
    assert len(theirs) == 500
    assert list(theirs)[:3] == list(few)


def test_every_task_of_ruler_has_its_source() -> None:
    assert set(tasks_of_ruler(["ruler"])) == set(SOURCES)
    assert tasks_of_ruler(["leval_closed_toefl", "ruler_vt"]) == ["ruler_vt"]
    assert tasks_of_ruler(["wikitext"]) == []
    assert set(NEEDLES) < set(SOURCES)
