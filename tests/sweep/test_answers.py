"""What a killed run has already been answered, and who gets it."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook

from leval_harness.sweep.answers import Answers
from leval_harness.sweep.claims import Folder
from leval_harness.sweep.heartbeat import Heartbeat
from leval_harness.sweep.parts import MOST_REQUESTS, MOST_TOKENS, Limits, portions
from leval_harness.sweep.run_record import RunRecord

RUN = RunRecord.model_validate(
    {"schema_version": 1, "run_id": "c", "model": {"name": "m"}, "method": {"name": "r"},
     "tasks": ["one", "two"]}
)  # fmt: skip


class Counting:
    """A model whose every answer is another number, told at once or not; it ends at a number."""

    def __init__(self, first: int, last: int, tells: bool = True) -> None:
        self.numbers, self.cache_hook = iter(range(first, last)), CacheHook(None)
        self.tells = tells

    def generate_until(self, requests: list[Any]) -> list[str]:
        answers = []
        for request in requests:
            answers.append(str(next(self.numbers)))  # StopIteration stands for a kill
            if self.tells:
                self.cache_hook.add_partial("generate_until", request.args, answers[-1])
        return answers


def attempt(folder: Folder, turn: int, model: Counting, requests: list[Instance]) -> Any:
    with Answers(model, None, RUN, Heartbeat(folder, folder.path), f"c.{turn}"):
        return model.generate_until(requests)


def asked(task: str, number: int, document: str = "d") -> Instance:
    """A question that both tasks ask in the same words."""
    arguments = ("How much?", {"do_sample": True})
    return Instance(
        "generate_until", {"document_id": document}, arguments, number, (task, number, 1)
    )


def test_equal_questions_take_each_answer_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    questions = [asked(task, number) for task in ("one", "two") for number in range(2)]
    with pytest.raises(StopIteration):
        attempt(folder, 1, Counting(0, 3), questions)
    assert attempt(folder, 2, Counting(10, 20), questions) == ["0", "1", "2", "10"]
    progress = folder.progress("c")
    assert progress is not None
    assert (progress.answered, progress.requests, progress.resumed) == (4, 4, 0), "of both attempts"
    assert attempt(folder, 3, Counting(30, 30), questions) == ["0", "1", "2", "10"]


def test_answers_of_silent_backend_are_stored_by_portion(tmp_path: Path) -> None:
    requests = [asked("one", number) for number in range(MOST_REQUESTS + 6)]
    folder = Folder(tmp_path)
    with pytest.raises(StopIteration):
        attempt(folder, 1, Counting(0, MOST_REQUESTS, tells=False), requests)
    found = attempt(folder, 2, Counting(100, 106, tells=False), requests)
    assert found == [*map(str, range(MOST_REQUESTS)), *map(str, range(100, 106))]


@pytest.mark.parametrize(
    ("tokens", "documents", "sizes"),
    [
        (0, ["a"] * 40 + ["b"] * 40, [40, 40]),
        (0, ["a"] * 30 + ["b"] * 30, [60]),
        (0, ["a"] * 100, [MOST_REQUESTS, 36]),
        (4_000, ["a"] * 3 + ["b"] * 4, [3, 4]),
        (1_000, ["a"] * 3 + ["b"] * 4 + ["c"] * 10, [7, 10]),
    ],
)
def test_portions_hold_whole_documents(tokens: int, documents: list[str], sizes: list[int]) -> None:
    """Of windows several documents while they are short: of a book no other is read again."""
    numbered = [(at, asked("one", at, name)) for at, name in enumerate(documents)]
    for _, request in numbered:
        request.token_parts = (None, [1], [1] * (tokens - 1))
    found = list(portions(numbered, Limits(MOST_TOKENS, len(documents))))
    assert [len(each) for each in found] == sizes
    assert [at for each in found for at, _ in each] == list(range(len(documents)))
