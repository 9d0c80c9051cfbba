"""Question texts and answers as script files that load when somebody compares two methods."""

import hashlib
import json
from pathlib import Path
from typing import Any

from leval_leaderboard.page.data import number, script
from leval_leaderboard.results import Results
from leval_leaderboard.results.fields import finite
from leval_leaderboard.results.rescore import responses_of
from leval_leaderboard.results.samples import parsed_lines, question_key

LONGEST_QUESTION = 2_000
LONGEST_ANSWER = 1_500


def write_samples(results: Results, folder: Path) -> dict[str, dict[str, str]]:
    """Write the texts of every closed-ended task of every run.

    Questions are written once for all runs that asked the same ones. Documents and prompts are not
    copied. File names are counters, never taken from results.

    Args:
        results: what was read.
        folder: the page's `data` folder.

    Returns:
        `"run task" -> {"q": name of the questions, "a": name of the answers}`.
    """
    index: dict[str, dict[str, str]] = {}
    question_sets: dict[str, str] = {}
    for (run, task), samples in results.samples.items():
        if results.runs[run].status != "done" or task.startswith("ppl_"):
            continue
        questions, answers = _texts(samples.path)
        content = json.dumps(questions, ensure_ascii=False)
        digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()
        if digest not in question_sets:
            name = f"q{len(question_sets):05d}"
            question_sets[digest] = name
            _write(folder / f"{name}.js", script(name, questions))
        name = f"a{len(index):06d}"
        _write(folder / f"{name}.js", script(name, answers))
        index[f"{run} {task}"] = {"q": question_sets[digest], "a": name}
    return index


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", errors="replace")


def _texts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`key -> [question, gold, document]` and `key -> [answer, extracted, score, ...]`."""
    questions: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    seen: object = None
    for row in parsed_lines(path):
        if row is None:
            continue
        seen = row.get("filter") if seen is None else seen
        if row.get("filter") != seen:
            continue
        key, document, _ = question_key(row)
        doc = row.get("doc") if isinstance(row.get("doc"), dict) else {}
        assert isinstance(doc, dict)
        gold = doc.get("gold", row.get("target"))
        questions[key] = [
            _cut(doc.get("question"), LONGEST_QUESTION), _cut(gold, LONGEST_QUESTION),
            document[:100],
        ]  # fmt: skip
        answers[key] = _answer(row, doc)
    return questions, answers


def _answer(row: dict[str, Any], doc: dict[str, Any]) -> list[Any]:
    extracted = row.get("filtered_resps")
    if isinstance(extracted, list) and extracted:  # SFiction asks twice: both answers are shown
        extracted = ", ".join(text for text in extracted if isinstance(text, str)) or extracted[0]
    prompt = doc.get("prompt") if isinstance(doc.get("prompt"), dict) else {}
    assert isinstance(prompt, dict)
    score = next(
        (
            value
            for m in ("exact_match", "acc", "score")
            if (value := finite(row.get(m))) is not None
        ),
        None,
    )
    return [
        _cut("\n\n".join(responses_of(row)), LONGEST_ANSWER), _cut(extracted, 200), number(score),
        1 if finite(row.get("unparsed")) else 0, 1 if prompt.get("truncated") is True else 0,
        finite(prompt.get("document_tokens")), finite(prompt.get("kept_head")),
        finite(prompt.get("kept_tail")),
    ]  # fmt: skip


def _cut(value: object, longest: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)[:longest]
    return text if len(text) <= longest else text[:longest] + " … (shortened)"
