"""Questions, texts and answers as script files that load when somebody opens a number."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leval_harness.page.data import number, script
from leval_harness.results import Results
from leval_harness.results.fields import finite, pair
from leval_harness.results.sample_lines import (
    Row,
    answers_of,
    document_of,
    logged_metrics,
    needles_in,
    notes_of,
    parsed_lines,
    question_key,
    responses_of,
)
from leval_tasks.metrics import FAMILY_OF, metric_of

LONGEST_QUESTION = 2_000
LONGEST_ANSWER = 1_500
FLAGS = {
    "un": "unparsed", "cut": "truncated", "lim": "reached_limit", "open": "thinking_unfinished",
}  # fmt: skip
"""Short name of what an answer may be besides right and wrong -> the note in the samples."""


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
        questions, answers = _read(samples.path, task)
        content = json.dumps(questions)
        if content not in question_sets:
            name = question_sets[content] = f"q{len(question_sets):05d}"
            (folder / f"{name}.js").write_text(script(name, questions), encoding="utf-8")
        name = f"a{len(index):06d}"
        (folder / f"{name}.js").write_text(script(name, answers), encoding="utf-8")
        index[f"{run} {task}"] = {"q": question_sets[content], "a": name}
    return index


def _read(path: Path, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`{key: [question, expected, document]}` and `{filter: {key: answer}}`, see `_answer`."""
    questions: dict[str, Any] = {}
    answers: dict[str, dict[str, Any]] = {}
    for row in parsed_lines(path):
        if not row:
            continue
        key, document, _ = question_key(row)
        texts = [_shortened(each, LONGEST_QUESTION) for each in _asked(row)]
        questions.setdefault(key, [*texts, document[:100]])
        answers.setdefault(str(row.get("filter", "")), {})[key] = _answer(row, task)
    return questions, answers


def _answer(row: Row, task: str) -> dict[str, Any]:
    """What a model made of one question or text; what is not known is left out.

    `m`: `metric -> [value, 1]`, of a loss `[nats, tokens]` (or words, bytes). `t`, `r`: its text
    and what was read from it. `c`: `[text, log-likelihood]` of each choice, the best first. `doc`:
    tokens of the document, and how many were kept at its beginning and end. `parts`: tenths of the
    prompt that hold the needles.
    """
    prompt = document_of(row).get("prompt")
    prompt = prompt if isinstance(prompt, dict) else {}
    # SFiction asks twice: both answers are shown; what is no text is no answer
    read = ", ".join(each for each in answers_of(row) if isinstance(each, str))
    choices, notes = _choices(row), notes_of(row)
    answer: dict[str, Any] = {
        "m": {
            name[:100]: value for name in logged_metrics(row) if (value := _value(row, name, task))
        },
        "t": "" if choices else _shortened("\n\n".join(responses_of(row)), LONGEST_ANSWER),
        "r": "" if choices else _shortened(read, 200),
        "c": choices,
        "doc": [finite(prompt.get(name)) for name in ("document_tokens", "kept_head", "kept_tail")],
        "parts": sorted({needle.part for needle in needles_in(row)}),
        **{short: 1 for short, note in FLAGS.items() if notes.get(note)},
    }
    if answer["doc"][0] is None:
        answer["doc"] = []
    return {name: value for name, value in answer.items() if value}


def _value(row: Row, name: str, task: str) -> list[float | None] | None:
    """A metric of one question as a ratio; None where the question alone has no value.

    lm-eval logs log-likelihoods for losses, our tasks their negatives.
    """
    value = row.get(name)
    single = finite(value)
    ratio = pair(value) if single is None else (single, 1.0)
    if ratio is None:
        return None
    is_loss = metric_of(name, task).kind == "loss"
    if single is None and not is_loss:
        return None  # a pair of other meaning, such as an answer beside its reference
    sign = -1 if is_loss and task not in FAMILY_OF else 1
    return [number(sign * ratio[0]), number(ratio[1])]


def _choices(row: Row) -> list[list[Any]]:
    """The continuations of a prompt with their log-likelihoods, the most likely first."""
    requests, responses = row.get("arguments"), row.get("resps")
    if not isinstance(requests, Mapping) or not isinstance(responses, list):
        return []
    found = []
    for request, repeats in zip(requests.values(), responses, strict=False):
        text = request.get("arg_1") if isinstance(request, Mapping) else None
        first = repeats[0] if isinstance(repeats, list) and repeats else None
        likelihood = _likelihood(first)
        if not isinstance(text, str) or likelihood is None:
            return []
        found.append([_shortened(text.strip(), 200), number(likelihood)])
    return sorted(found, key=lambda each: -each[1])


def _likelihood(response: object) -> float | None:
    """The log-likelihood of a response `[likelihood, whether greedy]`; None of another one."""
    if not isinstance(response, list) or len(response) != 2 or isinstance(response[0], list):
        return None
    try:
        return finite(float(response[0]))
    except (TypeError, ValueError):
        return None


def _asked(row: Row) -> tuple[object, object]:
    """The question and its expected answer; RULER's question is the last line of its prompt."""
    doc = document_of(row)
    outputs = doc.get("outputs")
    if "max_length" not in doc or not isinstance(outputs, list):
        choices, gold = doc.get("choices"), doc.get("gold", row.get("target"))
        at = int(gold) if isinstance(gold, str) and gold.isdecimal() and len(gold) < 4 else gold
        if isinstance(choices, list) and isinstance(at, int) and 0 <= at < len(choices):
            gold = choices[at]
        return doc.get("question"), gold
    before, _, last = str(doc.get("input", "")).rstrip().rpartition("\n")
    return last if before else None, ", ".join(map(str, outputs))


def _shortened(value: object, longest: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)[:longest]
    return text if len(text) <= longest else text[:longest] + " … (shortened)"
