"""Question texts and answers as script files that load when somebody compares two methods."""

import json
from pathlib import Path
from typing import Any

from leval_harness.page.data import number, script
from leval_harness.results import Results
from leval_harness.results.fields import finite, pair
from leval_harness.results.needles import needles_in
from leval_harness.results.sample_lines import (
    logged_metrics,
    parsed_lines,
    question_key,
    responses_of,
    rows_of_first_filter,
)

LONGEST_QUESTION = 2_000
LONGEST_ANSWER = 1_500
SCORES = ("exact_match", "acc", "score")
"""Metrics that can say whether an answer is right; the first one logged does."""


def write_samples(results: Results, folder: Path) -> dict[str, dict[str, str]]:
    """Write the texts of every closed-ended task of every run into the page's `data` folder.

    Questions are written once for all runs that asked the same ones. Documents and prompts are not
    copied. File names are counters, never taken from results. Gives back `"run task" -> {"q": name
    of the questions, "a": name of the answers}`.
    """
    index: dict[str, dict[str, str]] = {}
    question_sets: dict[str, str] = {}
    for (run, task), samples in results.samples.items():
        if results.runs[run].status != "done":
            continue
        questions, answers = _texts(samples.path)
        if not any(text for text, *_ in [*questions.values(), *answers.values()]):
            questions, answers = _measured(samples.path)  # texts: nothing was asked in words
        content = json.dumps(questions)
        if content not in question_sets:
            name = question_sets[content] = f"q{len(question_sets):05d}"
            _write(folder, name, questions)
        name = f"a{len(index):06d}"
        _write(folder, name, answers)
        index[f"{run} {task}"] = {"q": question_sets[content], "a": name}
    return index


def _write(folder: Path, name: str, value: object) -> None:
    (folder / f"{name}.js").write_text(script(name, value), encoding="utf-8")


def _texts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`key -> [question, gold, document]` and `key -> [answer, extracted, score, ...]`."""
    questions: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for row in rows_of_first_filter(parsed_lines(path)):
        key, document, _ = question_key(row)
        doc = _object(row.get("doc"))
        texts = (_cut(text, LONGEST_QUESTION) for text in _asked(row, doc))
        questions[key] = [*texts, document[:100]]
        answers[key] = _answer(row, doc)
    return questions, answers


def _measured(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`key -> [nothing, nothing, document]` and `key -> {metric: [nats, tokens]}` of texts."""
    texts: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for row in rows_of_first_filter(parsed_lines(path)):
        key, document, _ = question_key(row)
        ratios = {name: pair(row.get(name)) for name in logged_metrics(row)}
        texts[key] = ["", "", document[:100]]
        numbers[key] = {
            name[:100]: [number(each) for each in ratio] for name, ratio in ratios.items() if ratio
        }
    return texts, numbers


def _answer(row: dict[str, Any], doc: dict[str, Any]) -> list[Any]:
    prompt, length = _object(doc.get("prompt")), str(doc.get("max_length"))  # RULER's own metric
    extracted = row.get("filtered_resps")
    if isinstance(extracted, list) and extracted:  # SFiction asks twice: both answers are shown
        extracted = ", ".join(text for text in extracted if isinstance(text, str)) or extracted[0]
    scores = (finite(row.get(metric)) for metric in (*SCORES, length))
    return [
        _cut("\n\n".join(responses_of(row)), LONGEST_ANSWER),
        _cut(extracted, 200),
        number(next((score for score in scores if score is not None), None)),
        1 if finite(row.get("unparsed")) else 0,
        1 if prompt.get("truncated") is True else 0,
        *(finite(prompt.get(name)) for name in ("document_tokens", "kept_head", "kept_tail")),
        *(1 if finite(row.get(name)) else 0 for name in ("reached_limit", "thinking_unfinished")),
        *([parts] if (parts := sorted({needle.part for needle in needles_in(row)})) else ()),
    ]


def _asked(row: dict[str, Any], doc: dict[str, Any]) -> tuple[object, object]:
    """The question and what was expected; RULER's question is the last line of its prompt."""
    outputs = doc.get("outputs")
    if "max_length" not in doc or not isinstance(outputs, list):
        return doc.get("question"), doc.get("gold", row.get("target"))
    before, _, last = str(doc.get("input", "")).rstrip().rpartition("\n")
    return last if before else None, ", ".join(map(str, outputs))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cut(value: object, longest: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)[:longest]
    return text if len(text) <= longest else text[:longest] + " … (shortened)"
