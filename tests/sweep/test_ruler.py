"""lm-eval's RULER in sweeps: as many questions as are asked, and the same ones as without a limit."""

import json
import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from leval_harness.sweep import identity
from leval_harness.sweep.ruler import (
    FILES,
    HOTPOT,
    NEEDLES,
    PUBLISHED,
    SOURCES,
    SQUAD,
    few_questions,
    tasks_of_ruler,
)
from leval_tasks.common.errors import DataError

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


@pytest.fixture
def paragraphs(tmp_path: Path) -> Path:
    """Files with the columns of SQuAD and HotpotQA, five questions each."""
    articles = []
    rows = []
    for number in range(5):
        text = f"Town {number} was founded in {1800 + number}. It has a river."
        answer = {"text": str(1800 + number), "answer_start": 0}
        question = {"question": f"When was town {number} founded?", "is_impossible": False}
        asked = [{**question, "answers": [answer]}, {**question, "is_impossible": True}]
        articles.append({"title": f"{number}", "paragraphs": [{"context": text, "qas": asked}]})
        context = [[f"Town {number}", [text]], ["A river", ["It is long."]]]
        rows.append({"question": "Where?", "answer": f"in {number}", "context": context})
    (tmp_path / SQUAD).write_text(json.dumps({"data": articles}))
    (tmp_path / HOTPOT).write_text(json.dumps(rows))
    return tmp_path


def questions_of(task: str, folder: Path, limit: int) -> list[dict[str, object]]:
    name = {"ruler_qa_squad": "get_squad", "ruler_qa_hotpot": "get_hotpotqa"}[task]
    settings = {"pretrained": TOKENIZER, "max_seq_lengths": [1024], "data_dir": str(folder)}
    with few_questions([task], limit, seed=5, data_dir=str(folder)):
        made = getattr(import_module("lm_eval.tasks.ruler.qa_utils"), name)
        data = made(**settings)["test"]
        assert made(**settings)["test"] is data, "it is made once"
    return list(data)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import requests

    def unreachable(url: str, timeout: int) -> None:
        raise requests.ConnectionError("no route")

    module = import_module("lm_eval.tasks.ruler.qa_utils")
    monkeypatch.setattr(module.requests, "get", unreachable)
    yield
    module.download_json.cache_clear()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("task", FILES)
def test_questions_on_paragraphs_are_read_from_a_folder(
    task: str, paragraphs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        few = questions_of(task, paragraphs, limit=3)
    assert "is not the published file" in caplog.text
    assert len(few) == 3
    assert all(row["outputs"][0] in row["input"] or "Where" in row["input"] for row in few)
    changed = paragraphs / "other"
    changed.mkdir()
    for name in PUBLISHED:
        content = (paragraphs / name).read_text().replace("town", "city").replace("Where", "Why")
        (changed / name).write_text(content)
    assert questions_of(task, changed, limit=3) != few, "another folder, another text"
    with pytest.raises(DataError, match="has fewer questions than limit asks for"):
        questions_of(task, paragraphs, limit=6)
    read = [identity.documents([task], {"data_dir": str(at)}) for at in (paragraphs, changed)]
    assert list(read[0]["ruler"]) == [FILES[task]]
    assert read[0] != read[1]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("task", FILES)
def test_questions_on_paragraphs_without_their_file(task: str, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / FILES[task]).write_text("{")
    with pytest.raises(DataError) as error:
        questions_of(task, tmp_path, limit=3)
    assert str(error.value).startswith(f"{FILES[task]}, from which")
    assert f"is missing in {tmp_path} (data_dir), but the folder {below} has it" in str(error.value)
    assert str(error.value).endswith("the download fails: no route")
    with pytest.raises(DataError, match="is not JSON"):
        questions_of(task, below, limit=3)
