"""Every prompt of the frozen sample in both frames, and what the tasks make of the answers.

The tasks run in lm-eval's own evaluator with a model that answers from a list.
"""

import hashlib
import json
from functools import cache
from statistics import fmean
from typing import Any

import pytest
from golden_access import SAMPLE, TASK_YAML, TASKS, TOKENIZER, fine
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from leval_harness.lm_eval_samples import notes_of
from leval_tasks.closed.definition import MARKS

CHAT = {"plain": False, "chat": True}
# name -> what is asked for beside the frame
SETTINGS: dict[str, dict[str, Any]] = {
    "2048": {"context_length": 2048},
    "middle": {"context_length": 2600, "truncation": "middle", "num_docs": 2},
    "left": {"context_length": 1800, "truncation": "left", "num_docs": 1, "min_questions": 2},
    "whole": {"context_length": 16384, "answer_prefix": "user", "num_docs": 1},
    "skip": {"context_length": 12000, "truncation": "skip"},
}
NONSENSE = ("", "I cannot say.", "(B) or (C)", "The answer is 12.", "ACD", "True", "<think>A", "D.")


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


class Reader(LM):
    """Right on even questions, with thinking before it on every fourth; else nonsense."""

    tokenizer_name = "reader"

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return [self.answer(at, request) for at, request in enumerate(requests)]

    def answer(self, at: int, request: Any) -> str:
        if at % 2:
            return NONSENSE[at // 2 % len(NONSENSE)]
        gold = str(request.doc["gold"])
        if " [fact: " in gold:
            gold = gold.rstrip("]").split(" [fact: ")[request.idx]
        return f"<think>B?</think>\n{gold}" if at % 4 else gold

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> str:
        return str(
            tokenizer().apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )

    def chat_template(self, chat_template: Any = False) -> str:
        return "template"


@cache
def evaluated(setting: str, frame: str) -> dict[str, Any]:
    metadata = {"data_dir": str(SAMPLE), "own_data": True, "pretrained": str(TOKENIZER)}
    metadata |= {"max_length": SETTINGS[setting]["context_length"], **SETTINGS[setting]}
    return simple_evaluate(
        model=Reader(),
        tasks=["leval_closed", TASKS["topic_retrieval_longchat.jsonl"]],
        task_manager=TaskManager(
            include_path=str(TASK_YAML), include_defaults=False, metadata=metadata
        ),
        apply_chat_template=CHAT[frame],
        bootstrap_iters=0,
        log_samples=True,
    )


def digest(texts: Any) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def line_of(name: str, rows: list[dict[str, Any]]) -> str:
    """All prompts of a task in one line: what differs is shown by `prompt` on both versions."""
    texts = [argument[0] for row in rows for argument in row["arguments"]]
    cuts = [row["doc"]["prompt"] for row in rows]
    kept = sum(cut["kept_head"] + cut["kept_tail"] for cut in cuts)
    numbers = f"{sum(cut['prompt_tokens'] for cut in cuts)} tokens, {kept} of documents kept"
    truncated = sum(cut["truncated"] for cut in cuts)
    return f"{name}: {len(texts)} prompts {digest(texts)}, {numbers}, {truncated} truncated\n"


def test_every_prompt(golden):
    golden(
        "prompts.txt",
        "".join(
            line_of(f"{setting} {frame} {task}", rows)
            for setting in SETTINGS
            for frame in CHAT
            for task, rows in sorted(evaluated(setting, frame)["samples"].items())
        ),
    )


@pytest.mark.parametrize("frame", CHAT)
def test_the_first_prompts_to_read(golden, frame):
    shown = []
    for file, task in TASKS.items():
        document = json.loads((SAMPLE / file).open(encoding="utf-8").readline())["input"]
        first, *more = (a[0] for a in evaluated("whole", frame)["samples"][task][0]["arguments"])
        assert document in first
        cut = first.replace(document, f"{document[:80]}[…]{document[-80:]}")
        shown.append("\n=====\n".join([f"## {task}", cut, *more]))
    golden(f"prompts-{frame}.txt", "\n\n".join([*shown, ""]))


FIGURES = ("exact_match", "exact_match_stderr", "exact_match_strict")
NOTED = (*MARKS, "truncated", "prompt_tokens", "kept_tokens")


def test_every_result(golden):
    """A row for each setting and task, a column for each figure."""
    rows = [["setting", "task", *FIGURES, *NOTED]]
    for setting in SETTINGS:
        results = evaluated(setting, "plain")
        for task, found in {**results["results"], **results["groups"]}.items():
            figures = [found.get(f"{name},none", "-") for name in FIGURES]
            notes = [notes_of(sample) for sample in results["samples"].get(task, [])]
            figures += [fmean(each[name] for each in notes) for name in NOTED if notes]
            texts = (each if isinstance(each, str) else f"{each:.6g}" for each in figures)
            rows.append([setting, task.removeprefix("leval_closed_"), *texts])
    golden("results.txt", "\n".join([*(" ".join(row) for row in rows), ""]))


REAL = ("coursera", "gsm", "quality", "toefl", "sfiction", "topic_retrieval")


def test_prompts_of_the_published_documents(golden, real_data):
    lines = []
    for task in REAL:
        for frame, chat in CHAT.items():
            flags = ["--model", TOKENIZER, "--data-dir", real_data / "leval" / "closed", "-n", 2]
            flags += ["--context-length", 4096] + ["--apply-chat-template"] * chat
            rows = json.loads(fine("prompt", task, *flags, "--json"))["questions"]
            texts = [text for row in rows for text in row["prompts"]]
            cuts = [(row["prompt"]["kept_head"], row["prompt"]["kept_tail"]) for row in rows]
            lines.append(f"{task} {frame}: {len(texts)} prompts {digest(texts)}, kept {cuts}")
    golden("prompts-published.txt", "\n".join([*lines, ""]))
