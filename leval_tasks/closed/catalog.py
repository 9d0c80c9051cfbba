"""The closed-ended tasks: which file, which prompt, which rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from leval_tasks.closed import extract, prompts
from leval_tasks.errors import one_of


@dataclass(frozen=True)
class ClosedTask:
    """One closed-ended task.

    Attributes:
        name: lm-eval's name of the task.
        title: name in tables, as in the paper.
        file: L-Eval's file.
        rule: scoring rule, see `scoring.RULES`.
        frame: how it asks.
        truncation: side that is cut where a document is too long, as the official scripts do.
        own_clusters: questions are independent although they share a text (GSM's worked examples)
            or have a document each.
        in_group: whether it counts in `leval_closed`, the paper's Avg.
    """

    name: str
    title: str
    file: str
    rule: str
    frame: prompts.Frame
    truncation: str = "right"
    own_clusters: bool = False
    in_group: bool = True


TASKS = {
    task.name: task
    for task in (
        ClosedTask(
            "leval_coursera",
            "Coursera",
            "coursera.jsonl",
            "coursera",
            prompts.Frame(prompts.SYSTEM_COURSERA, framed=True, closed=True),
        ),
        ClosedTask(
            "leval_gsm",
            "GSM",
            "gsm100.jsonl",
            "gsm",
            prompts.Frame(prompts.SYSTEM_GSM, framed=False, closed=False),
            own_clusters=True,
        ),
        ClosedTask(
            "leval_quality",
            "QuALITY",
            "quality.jsonl",
            "quality",
            prompts.Frame(prompts.SYSTEM_CHOICE, framed=True, closed=True),
        ),
        ClosedTask(
            "leval_toefl",
            "TOEFL",
            "tpo.jsonl",
            "toefl",
            prompts.Frame(prompts.SYSTEM_CHOICE, framed=True, closed=True),
        ),
        ClosedTask(
            "leval_codeu",
            "CodeU",
            "codeU.jsonl",
            "codeu",
            prompts.Frame(prompts.SYSTEM_CODEU, framed=False, closed=False),
            truncation="left",
            own_clusters=True,
        ),
        ClosedTask(
            "leval_sfiction",
            "SFiction",
            "sci_fi.jsonl",
            "sfiction",
            prompts.Frame(prompts.SYSTEM_SFICTION, framed=True, closed=True),
        ),
        ClosedTask(
            "leval_topic_retrieval",
            "TopicRet",
            "topic_retrieval_longchat.jsonl",
            "topic_retrieval",
            prompts.Frame(prompts.SYSTEM_TOPIC, framed=False, closed=True),
            in_group=False,
        ),
    )
}


def closed_task(name: str) -> ClosedTask:
    """A task by name, the `leval_` prefix may be left out.

    Raises:
        SettingError: an unknown name, with the nearest one.
    """
    if name in TASKS:
        return TASKS[name]
    short = [task.removeprefix("leval_") for task in TASKS]
    if name.startswith("leval_"):
        return TASKS[one_of("task", name, TASKS)]
    return TASKS["leval_" + one_of("task", name, short)]


def chance_level(task: ClosedTask, golds: Sequence[str]) -> float:
    """Expected official score of a reader who guesses, a fraction.

    One of four letters where one is right; any of the 15 sets of letters for Coursera, where a
    part of the right set earns 0.25; true or false for SFiction; nothing where an answer must be
    written.
    """
    if task.rule in ("quality", "toefl"):
        return 0.25
    if task.rule == "sfiction":
        return 0.5
    if task.rule != "coursera" or not golds:
        return 0.0
    sizes = [len(set(extract.choice_gold(gold))) for gold in golds]
    return sum((1 + 0.25 * (2**size - 2)) / 15 for size in sizes) / len(sizes)
