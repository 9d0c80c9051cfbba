"""Questions of a task with the answers of all methods side by side, for the page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from leval_harness.report.labels import length_label, task_titles
from leval_harness.report.selection import main_numbers
from leval_harness.results.lm_eval_samples import sample_lines, samples_file
from leval_harness.results.load import Results

LONGEST_TEXT = 1_200
"""Letters of a text on a page of questions."""

NOTES = {
    "unparsed": "no answer found",
    "truncated": "document truncated",
    "reached_limit": "hit the limit of generated tokens",
}
GRADES = {"1": "right", "0": "wrong"}


@dataclass(frozen=True)
class Answer:
    """What one method answered.

    Attributes:
        text: of the answer, shortened.
        score: as it is written; empty without one.
        grade: `right`, `wrong` or empty.
        notes: what is to be known of it, separated by commas.
    """

    text: str
    score: str
    grade: str
    notes: str


@dataclass
class Question:
    """One question, with the answers by method."""

    document: str
    question: str
    expected: str
    answers: dict[str, Answer] = field(default_factory=dict)


@dataclass
class AnswerPage:
    """The questions of one task that the methods of one block were asked."""

    block: str
    title: str
    methods: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def answer_pages(results: Results, compared: pd.DataFrame) -> Iterator[AnswerPage]:
    """Yield a page for each block and task with logged answers.

    Args:
        results: what was read.
        compared: its compared frame.
    """
    numbers = compared[main_numbers(compared) & compared["status"].eq("done")]
    numbers = numbers[numbers["kind"].eq("score")].drop_duplicates(["run", "task"])
    for (block, task), part in numbers.groupby(["block", "task"], sort=False):
        page = AnswerPage(str(block), f"{task_titles(part).iloc[0]}, {block}")
        questions: dict[tuple[str, str, str], Question] = {}
        for number in part.itertuples():
            method = f"{number.label} at {length_label(number.context_length)}"
            page.methods.append(method)
            for line in _lines_of(number, str(task)):
                question = _question(line)
                key = (question.document, question.question, question.expected)
                questions.setdefault(key, question).answers[method] = _answer(line, number.name)
        page.questions = list(questions.values())
        if page.questions:
            yield page


def _lines_of(number: Any, task: str) -> Iterator[Mapping[str, Any]]:
    """Yield the samples that a number was made from."""
    for path in number.files:
        file = samples_file(path, task)
        if file is None:
            continue
        for line in sample_lines(file):
            if line.get("filter", number.filter) == number.filter:
                yield line


def _question(line: Mapping[str, Any]) -> Question:
    """Return the question of a sample, its document and what was expected."""
    doc = line["doc"] if isinstance(line.get("doc"), dict) else {}
    document = doc.get("document_id", line.get("doc_id", ""))
    question = doc.get("question") or doc.get("query") or f"question {line.get('doc_id')}"
    expected = str(doc.get("gold", line.get("target")))
    choices = doc.get("choices")
    if isinstance(choices, list) and expected.isdecimal() and int(expected) < len(choices):
        expected = choices[int(expected)]
    return Question(_shortened(document), _shortened(question), _shortened(expected))


def _answer(line: Mapping[str, Any], metric: str) -> Answer:
    """Return what a model answered, its score, and whether it was right."""
    score = line.get(metric)
    text = f"{score:g}" if isinstance(score, int | float) else ""
    notes = ", ".join(note for name, note in NOTES.items() if line.get(name))
    return Answer(_shortened(_response(line)), text, GRADES.get(text, ""), notes)


def _response(line: Mapping[str, Any]) -> str:
    """Return the text of an answer; of scored choices the most likely one."""
    responses = [_first_response(response) for response in line.get("resps") or []]
    if responses and all(_is_scored_choice(response) for response in responses):
        best = max(range(len(responses)), key=lambda at: float(responses[at][0]))
        requests = list((line.get("arguments") or {}).values())
        return str(requests[best].get("arg_1", "")) if best < len(requests) else ""
    return "\n\n".join(map(str, responses))


def _first_response(responses: Any) -> Any:
    """Return the first of several responses to one request."""
    return responses[0] if isinstance(responses, list) and responses else responses


def _is_scored_choice(response: object) -> bool:
    """Return whether a response is a log-likelihood and whether it is the greedy one."""
    return isinstance(response, list) and str(response[-1]) in ("True", "False")


def _shortened(value: object) -> str:
    text = "" if value is None else str(value)
    if len(text) <= LONGEST_TEXT:
        return text
    return text[:LONGEST_TEXT] + " … (shortened)"
