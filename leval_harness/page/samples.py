"""Question texts and answers as script files that load when somebody compares two methods."""

import json
from pathlib import Path
from typing import Any

from leval_harness.page.data import number, script
from leval_harness.results import Results
from leval_harness.results.fields import finite, pair
from leval_harness.results.sample_lines import (
    document_of,
    logged_metrics,
    needles_in,
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
    """Write questions and answers of every finished task of every run into the `data` folder.

    Questions are written once for all runs that asked the same ones. Documents and prompts are not
    copied. File names are counters, never taken from results.

    Returns:
        `"run task" -> {"q": name of the questions, "a": name of the answers}`.
    """
    index: dict[str, dict[str, str]] = {}
    question_sets: dict[str, str] = {}
    for (run, task), samples in results.samples.items():
        if results.runs[run].status != "done":
            continue
        questions, answers = _read(samples.path)
        content = json.dumps(questions)
        if content not in question_sets:
            name = question_sets[content] = f"q{len(question_sets):05d}"
            (folder / f"{name}.js").write_text(script(name, questions), encoding="utf-8")
        name = f"a{len(index):06d}"
        (folder / f"{name}.js").write_text(script(name, answers), encoding="utf-8")
        index[f"{run} {task}"] = {"q": question_sets[content], "a": name}
    return index


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Questions and answers by key.

    Questions are `[question, gold, document]` and answers `[answer, extracted, score, ...]`. Of
    texts, which are read and not asked about, they are `["", "", document]` and
    `{metric: [nats, tokens]}`.
    """
    questions: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    losses: dict[str, Any] = {}
    for row in rows_of_first_filter(parsed_lines(path)):
        key, document, _ = question_key(row)
        question, gold = _asked(row)
        questions[key] = [
            _shortened(question, LONGEST_QUESTION),
            _shortened(gold, LONGEST_QUESTION),
            document[:100],
        ]
        answers[key] = _answer(row)
        texts[key] = ["", "", document[:100]]
        losses[key] = {
            name[:100]: [number(each) for each in ratio]
            for name in logged_metrics(row)
            if (ratio := pair(row.get(name)))
        }
    asked = any(text for text, *_ in (*questions.values(), *answers.values()))
    return (questions, answers) if asked else (texts, losses)


def _answer(row: dict[str, Any]) -> list[Any]:
    doc = document_of(row)
    prompt = doc.get("prompt")
    prompt = prompt if isinstance(prompt, dict) else {}
    extracted = row.get("filtered_resps")
    if isinstance(extracted, list) and extracted:  # SFiction asks twice: both answers are shown
        extracted = ", ".join(text for text in extracted if isinstance(text, str)) or extracted[0]
    metrics = (*SCORES, str(doc.get("max_length")))  # the last is RULER's own
    scores = (finite(row.get(metric)) for metric in metrics)
    return [
        _shortened("\n\n".join(responses_of(row)), LONGEST_ANSWER),
        _shortened(extracted, 200),
        number(next((score for score in scores if score is not None), None)),
        1 if finite(row.get("unparsed")) else 0,
        1 if prompt.get("truncated") is True else 0,
        *(finite(prompt.get(name)) for name in ("document_tokens", "kept_head", "kept_tail")),
        *(1 if finite(row.get(name)) else 0 for name in ("reached_limit", "thinking_unfinished")),
        *([parts] if (parts := sorted({needle.part for needle in needles_in(row)})) else ()),
    ]


def _asked(row: dict[str, Any]) -> tuple[object, object]:
    """The question and its expected answer; RULER's question is the last line of its prompt."""
    doc = document_of(row)
    outputs = doc.get("outputs")
    if "max_length" not in doc or not isinstance(outputs, list):
        return doc.get("question"), doc.get("gold", row.get("target"))
    before, _, last = str(doc.get("input", "")).rstrip().rpartition("\n")
    return last if before else None, ", ".join(map(str, outputs))


def _shortened(value: object, longest: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)[:longest]
    return text if len(text) <= longest else text[:longest] + " … (shortened)"
