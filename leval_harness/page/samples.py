"""Questions, texts and answers as script files that load when somebody opens a number."""

import json
from pathlib import Path
from typing import Any

from leval_harness.old_results import Results
from leval_harness.old_results.fields import finite
from leval_harness.old_results.sample_lines import Sample, parsed_lines
from leval_harness.page.data import number, script
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
    for sample in filter(None, parsed_lines(path)):
        key, document, _ = sample.key
        texts = [_shortened(each, LONGEST_QUESTION) for each in sample.asked]
        questions.setdefault(key, [*texts, document[:100]])
        answers.setdefault(str(sample.row.get("filter", "")), {})[key] = _answer(sample, task)
    return questions, answers


def _answer(sample: Sample, task: str) -> dict[str, Any]:
    """What a model made of one question or text; what is not known is left out.

    `m`: `metric -> [value, 1]`, of a loss `[nats, tokens]` (or words, bytes). `t`, `r`: its text
    and what was read from it. `c`: `[text, log-likelihood]` of each choice, the best first. `doc`:
    tokens of the document, and how many were kept at its beginning and end. `parts`: tenths of the
    prompt that hold the needles.
    """
    values = {name[:100]: _value(sample, name, task) for name in sample.metrics}
    choices, notes = sorted(sample.choices, key=lambda each: -each[1]), sample.notes
    # SFiction asks twice: both answers are shown; what is no text is no answer
    read = ", ".join(each for each in sample.answers if isinstance(each, str))
    tokens = [finite(sample.prompt.get(n)) for n in ("document_tokens", "kept_head", "kept_tail")]
    answer: dict[str, Any] = {
        "m": {name: value for name, value in values.items() if value},
        "t": "" if choices else _shortened("\n\n".join(sample.responses), LONGEST_ANSWER),
        "r": "" if choices else _shortened(read, 200),
        "c": [[_shortened(text, 200), number(likelihood)] for text, likelihood in choices],
        "doc": [] if tokens[0] is None else tokens,
        "parts": sorted({part for part, _ in sample.needles}),
        **{short: 1 for short, note in FLAGS.items() if notes.get(note)},
    }
    return {name: value for name, value in answer.items() if value}


def _value(sample: Sample, name: str, task: str) -> list[float | None] | None:
    """A metric of one question as a ratio; None where the question alone has no value.

    lm-eval logs log-likelihoods for losses, our tasks their negatives.
    """
    ratio, is_loss = sample.ratio(name), metric_of(name, task).kind == "loss"
    if ratio is None or (isinstance(sample.row[name], list) and not is_loss):
        return None  # also a pair of other meaning, such as an answer beside its reference
    sign = -1 if is_loss and task not in FAMILY_OF else 1
    return [number(sign * ratio[0]), number(ratio[1])]


def _shortened(value: object, longest: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)[:longest]
    return text if len(text) <= longest else text[:longest] + " … (shortened)"
