"""The closed-ended tasks: what one is, and an entry for each, in the order of the tables' columns.

Files are those of OpenLMLab/LEval cd34b050, LEval-data/Closed-ended-tasks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leval_tasks.closed.rules import (
    LastNumber,
    Letters,
    PrintedOutput,
    Rule,
    TopicName,
    TrueTwice,
    mean,
)
from leval_tasks.closed.thinking import remove_thinking, thinking_unfinished
from resonance_vllm.common.errors import check_choice

PREFIX = "leval_closed_"
"""Before a task's key, its name in lm-eval."""

VERSION = 1
"""Of the tasks; another version gives other results."""

SCORES = ("exact_match", "exact_match_strict")

MARKS = ("right", "wrong", "unparsed", "thinking_removed", "thinking_unfinished")
"""What holds of the answer to a question or does not; one of the first three does."""

Row = Mapping[str, float | None]
"""Scores and marks of one question; None for a part that it does not have."""


def marks_in(filtered_resps: Any) -> dict[str, float]:
    """Return 1 or 0 for each of `MARKS` from a sample's `filtered_resps`; empty for other tasks' samples.

    The first item is the extracted answer followed by the marks that hold.
    """
    if not isinstance(filtered_resps, list) or not filtered_resps:
        return {}
    first = filtered_resps[0]
    if not isinstance(first, list) or len(first) < 2 or first[1] not in MARKS[:3]:
        return {}
    return {name: float(name in first[1:]) for name in MARKS}


@dataclass(frozen=True, kw_only=True)
class ClosedTask:
    """One closed-ended task.

    Attributes:
        key: short name; with `PREFIX` lm-eval's name of the task.
        title: name in tables, as in the paper.
        file: name of L-Eval's file.
        sha256: of the published file; empty where no copy was available.
        system_prompt: the official one.
        rule: how an answer is read and scored.
        references: regular expression that a raw reference begins with, by which predictions for
            another task are noticed.
        first_references: digest of the published file's first references
            (`leval_tasks.closed.predictions`), where they could be those of another task.
        form: how a prompt is laid out: a `question` inside a frame with `Answer:` at its end; a
            `record` followed by the question; `steps`, where the question begins the reasoning
            that the model continues.
        second_question: makes the question of a second prompt, which is separate, without system
            prompt and document, from the first (SFiction).
        truncation: side that is cut where a document is too long, as in the official scripts.
        own_clusters: questions are independent although they share a text (GSM's worked examples)
            or have a document each.
        in_group: whether it counts in `leval_closed`, the paper's Avg.
    """

    key: str
    title: str
    file: str
    sha256: str = ""
    system_prompt: str
    rule: Rule
    references: str = ""
    first_references: str = ""
    form: Literal["question", "record", "steps"] = "question"
    second_question: Callable[[str], str] | None = None
    truncation: str = "right"
    own_clusters: bool = False
    in_group: bool = True

    @property
    def name(self) -> str:
        """Return lm-eval's name of the task."""
        return PREFIX + self.key

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the scores."""
        return (*SCORES, *self.rule.parts)

    def score_responses(
        self, responses: Sequence[str], gold: str, number: int, mark: str, *, opened: bool = False
    ) -> dict[str, float | None]:
        """Return the scores and marks of one question, for lm-eval's task and for `score`.

        Args:
            responses: one for each prompt, or the one text that a prediction file holds.
            gold: the raw reference.
            number: of the question in its document, or of the record in its file, from 0.
            mark: what ends a model's thinking; empty keeps everything.
            opened: whether the prompts already opened the thinking.

        Returns:
            A value for each of `metrics`, None for a part that the question does not have, and 0
            or 1 for each of `MARKS`.
        """
        text = self.rule.join(responses)
        between = self.rule.between
        pieces = [text]
        if between:  # the stored form of two answers; each has thinking of its own
            pieces = re.split(re.escape(between), text, maxsplit=1, flags=re.IGNORECASE)
        answers = [remove_thinking(piece, mark, opened=opened) for piece in pieces]
        unfinished = [thinking_unfinished(piece, mark, opened=opened) for piece in pieces]
        judged = self.rule.judge(between.join(text for text, _ in answers), gold)
        return {
            "exact_match": judged.score,
            "exact_match_strict": judged.strict,
            "right": float(judged.right),
            "wrong": float(judged.parsed and not judged.right),
            "unparsed": float(not judged.parsed),
            "thinking_removed": float(any(removed for _, removed in answers)),
            "thinking_unfinished": float(any(unfinished)),
            **self.rule.part_scores(judged, number),
        }

    def aggregate(self, rows: Sequence[Row]) -> dict[str, float]:
        """Return the mean of each metric over the questions that have it, as fractions 0..1."""
        means = {}
        for name in rows[0]:
            values = [value for value in (row[name] for row in rows) if value is not None]
            if values:
                means[name] = mean(values)
        return means


ONE_LETTER = (
    "Now you are given a very long document. Please follow the instruction based on this "
    "document. For multi-choice questions, there is only a sinlge correct option. Please only "
    "provide the letter corresponding to the answer (like A or B) when answering. For other "
    "questions, please directly give the concise and accurate answer. "
)
"""L-Eval's system prompt of questions with one right letter."""


def real_world_question(instruction: str) -> str:
    """Return SFiction's instruction about the real world; unchanged where it lacks the usual sentence."""
    return instruction.replace(
        "based on the world described in the document.",
        "based on the real-world knowledge and facts up until your last training",
    )


ENTRIES = (
    ClosedTask(
        key="coursera",
        title="Coursera",
        file="coursera.jsonl",
        sha256="03ef77fcbd191545ee9f750487d1e6b209352e6440cadc6671f0c9f4fcb753a5",
        first_references="5b59e9063885bb0f",
        system_prompt=(
            "Now you are given a very long document. Please follow the instruction based on this "
            "document. For multi-choice questions, there could be a sinlge correct option or "
            "multiple correct options. Please only provide the letter corresponding to the answer "
            "(like A or AB) when answering. "
        ),
        rule=Letters(several=True),
        references=r"[A-D](,? ?[A-D]){0,3}[.)]?(\s|$)",
    ),
    ClosedTask(  # sixteen worked examples as the document
        key="gsm",
        title="GSM",
        file="gsm100.jsonl",
        sha256="768d7b1d52be9406994b098fdfb9c2fd055bf2eb3d79748b42a9e55ddcc81f2a",
        first_references="3bac4686134ccd38",
        system_prompt=(
            "Given several question answer pairs, you need to follow a similar format to answer "
            "the last question. Make sure the response is end with The answer is _ . "
        ),
        form="steps",
        rule=LastNumber(),
        references=r"\s*[-$]?\d[\d,.]*\s*$|(?s:.*)The answer is \S*\d",
        own_clusters=True,
    ),
    ClosedTask(
        key="quality",
        title="QuALITY",
        file="quality.jsonl",
        sha256="e12593a3da249dc1f769d10e07da896a524917f278900a6f6ef42e7fd4daa67b",
        system_prompt=ONE_LETTER,
        rule=Letters(several=False),
        references=r"\(?[A-D][.)]?(\s|$)",
    ),
    ClosedTask(
        key="toefl",
        title="TOEFL",
        file="tpo.jsonl",
        sha256="7596d085ddc8e11418d53e956b492f9cba7087c2fc1b516508a26257eed1a57e",
        first_references="823ef486bca1b79e",
        system_prompt=ONE_LETTER,
        rule=Letters(several=False),
        references=r"\(?[A-D][.)]?\s*$",
    ),
    ClosedTask(  # a code base with a few calls at its end
        key="codeu",
        title="CodeU",
        file="codeU.jsonl",
        system_prompt=(
            "Now you are given a code base consisting of a large amount of functions and the "
            "corresponding comments. In the end, I will call some functions defined in the code "
            "base. Please carefully read these codes and comments and answer the question."
        ),
        form="steps",
        rule=PrintedOutput(),
        references=r"(?!\([A-D]\) |[A-D]{1,4}$|(?i:true|false)\s*\[fact:)",
        truncation="left",
        own_clusters=True,
    ),
    ClosedTask(  # is a statement true in the story, and is it true in our world?
        key="sfiction",
        title="SFiction",
        file="sci_fi.jsonl",
        sha256="eb704ffaacb8c84df4b9d70a8557066de25798b9af1332fd1f2dee77a8112d06",
        system_prompt=(
            "Now you are given a scientific fiction. I will ask you some questions and the answer "
            'should be "True" or "False". Notice that you should answer the question based on the '
            "evidence in the document instead of your background knowledge."
        ),
        second_question=real_world_question,
        rule=TrueTwice(),
        references=r"(?i:true|false)\s*\[fact:",
    ),
    ClosedTask(  # which topic of a long conversation came first, second, third?
        key="topic_retrieval",
        title="TopicRet",
        file="topic_retrieval_longchat.jsonl",
        sha256="c048104b31ad60d460bcd474bad41603b42418a4e3e32cd955d752d1bf11e11f",
        first_references="7f82d042c362354e",
        system_prompt=(
            "Below is a record of our previous conversation on many different topics. You are the "
            "ASSISTANT, and I am the USER. At the beginning of each topic, the USER will say 'I "
            "would like to discuss the topic of <TOPIC>'. Memorize each <TOPIC>. At the end of the "
            "record, I will ask you to retrieve the first/second/third topic names. Now the record "
            "start. "
        ),
        form="record",
        rule=TopicName(),
        in_group=False,
        references=r"(?!\([A-D]\) |(?i:true|false)\s*\[fact:)\W*\w*[a-z]{2}",
    ),
)

TASKS = {task.name: task for task in ENTRIES}
"""Every task by its name in lm-eval."""

GROUP = "leval_closed"
"""The paper's Avg.: the unweighted mean of the tasks that count in it."""


def task_named(name: str, field: str = "task") -> ClosedTask:
    """Return a task by its name in lm-eval or its key, also with the prefix `leval_` of prediction files.

    Raises:
        SettingError: an unknown name, with the nearest one; `field` is where the user wrote it.
    """
    tasks = {task.key: task for task in ENTRIES}
    if (key := name.removeprefix("leval_")) in tasks:
        return tasks[key]
    known: dict[str, ClosedTask] = tasks
    if name.startswith("leval_"):
        known = TASKS
    return known[check_choice(field, name, known)]
