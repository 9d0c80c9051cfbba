"""Every prompt of the frozen sample in both frames, and what the tasks make of the answers.

The tasks run in lm-eval's own evaluator with a model that answers from a list.
"""

import hashlib
import json
from functools import cache
from typing import Any

import pytest
from golden_access import SAMPLE, TASK_YAML, TASKS, TOKENIZER, run
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

CHAT = {"plain": False, "chat": True}
# name -> what is asked for beside the frame
SETTINGS: dict[str, dict[str, Any]] = {
    "2048": {"context_length": 2048},
    "middle": {"context_length": 2600, "truncation": "middle", "num_docs": 2},
    "left": {"context_length": 1800, "truncation": "left", "num_docs": 1, "min_questions": 2},
    "whole": {"context_length": 16384, "answer_prefix": "user", "num_docs": 1},
    # L-Eval's own cut fits at few lengths
    "words": {"context_length": 1500, "truncation_unit": "words", "num_docs": 1},
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


def asked(sample: dict[str, Any]) -> dict[str, Any]:
    """What one question's prompts were, in few characters."""
    texts = [argument[0] for argument in sample["arguments"]]
    return {
        "sha256": [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts],
        "tokens": [len(tokenizer()(text)["input_ids"]) for text in texts],
        **sample["doc"]["prompt"],
        "cluster": sample["doc"]["cluster"],
    }


def scored(sample: dict[str, Any]) -> dict[str, Any]:
    """What was made of the answers."""
    names = sorted(set(sample["metrics"]))
    return {"extracted": sample["filtered_resps"], **{name: sample[name] for name in names}}


@pytest.mark.parametrize("frame", CHAT)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_prompt(golden, setting, frame):
    samples = evaluated(setting, frame)["samples"]
    found = {
        f"{task} {row['doc']['document_id']} {row['doc']['question_id']}": asked(row)
        for task, rows in sorted(samples.items())
        for row in rows
    }
    golden(f"prompts/{setting}-{frame}.json", found)


@pytest.mark.parametrize("frame", CHAT)
@pytest.mark.parametrize("file", TASKS)
def test_the_first_prompt_to_read(golden, file, frame):
    document = json.loads((SAMPLE / file).open(encoding="utf-8").readline())["input"]
    sample = evaluated("whole", frame)["samples"][TASKS[file]][0]
    texts = [argument[0] for argument in sample["arguments"]]
    assert document in texts[0]
    shown = texts[0].replace(document, f"{document[:80]}[…]{document[-80:]}")
    golden(f"prompts/text/{file}-{frame}.txt", "\n=====\n".join([shown, *texts[1:]]))


@pytest.mark.parametrize("frame", CHAT)
def test_every_answer(golden, frame):
    samples = evaluated("2048", frame)["samples"]
    found = {
        f"{task} {row['doc']['document_id']} {row['doc']['question_id']}": scored(row)
        for task, rows in sorted(samples.items())
        for row in rows
    }
    golden(f"answers/{frame}.json", found)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_result(golden, setting):
    results = evaluated(setting, "plain")
    found = {**results["results"], "groups": results["groups"]}
    for task, config in results["configs"].items():
        about = config["metadata"]
        found[f"{task} recorded"] = {
            "data": {k: v for k, v in about["data"].items() if k != "path"},
            "prompt": {k: v for k, v in about["prompt"].items() if k != "tokenizer"},
            **{k: about[k] for k in ("settings", "documents", "partial", "chance")},
        }
    golden(f"answers/results-{setting}.json", found)


REAL = ("coursera", "gsm", "quality", "toefl", "sfiction", "topic_retrieval")


@pytest.mark.parametrize("frame", CHAT)
@pytest.mark.parametrize("task", REAL)
def test_prompts_of_the_published_documents(golden, real_data, task, frame):
    flags = ["--model", TOKENIZER, "--data-dir", real_data / "leval" / "closed", "-n", 8]
    flags += ["--context-length", 4096] + ["--apply-chat-template"] * CHAT[frame]
    ran = run("prompt", task, *flags, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    found = {"about": {k: v for k, v in told["about"].items() if k != "tokenizer"}}
    for at, row in enumerate(told["questions"]):
        texts = row.pop("prompts")
        row["sha256"] = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        row["question"] = hashlib.sha256(row["question"].encode()).hexdigest()
        found[f"question {at}"] = row
    golden(f"prompts/published/{task}-{frame}.json", found)
