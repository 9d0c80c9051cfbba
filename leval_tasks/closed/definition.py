"""What a closed-ended task is; `leval_tasks.closed.catalog` has an entry for each."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leval_tasks.closed.rules import Rule, mean, mean_of_parts
from leval_tasks.closed.thinking import remove_thinking, thinking_unfinished

PREFIX = "leval_closed_"
"""Before a task's key, its name in lm-eval."""

VERSION = 1
"""Of the tasks; another version gives other results."""

SCORES = ("exact_match", "exact_match_strict")
"""The scores, in which every part of a rule weighs the same."""

MARKS = ("right", "wrong", "unparsed", "thinking_removed", "thinking_unfinished")
"""What holds of the answer to a question or does not; one of the first three does."""

Row = Mapping[str, float | None]
"""Scores and marks of one question; None for a part that it does not have."""


def marks_in(filtered_resps: Any) -> dict[str, float]:
    """1 or 0 for each of `MARKS` from a sample's `filtered_resps`; empty for other tasks' samples.

    The first item is the extracted answer followed by the marks that hold.
    """
    first = filtered_resps[0] if isinstance(filtered_resps, list) and filtered_resps else None
    if not isinstance(first, list) or len(first) < 2 or first[1] not in MARKS[:3]:
        return {}
    return {name: float(name in first[1:]) for name in MARKS}


@dataclass(frozen=True)
class PublishedFile:
    """A task's file in OpenLMLab/LEval cd34b050, LEval-data/Closed-ended-tasks.

    Attributes:
        name: file name.
        sha256: of the file; empty where no copy was available.
        first_references: digest of its first references (`leval_tasks.closed.predictions`), for a
            task whose references could be those of another one.
    """

    name: str
    sha256: str = ""
    first_references: str = ""


@dataclass(frozen=True, kw_only=True)
class ClosedTask:
    """One closed-ended task.

    Attributes:
        key: short name; with `PREFIX` lm-eval's name of the task.
        title: name in tables, as in the paper.
        file: L-Eval's file.
        references: regular expression that a raw reference begins with, by which predictions for
            another task are noticed.
        system_prompt: the official one.
        form: how a prompt is laid out: a `question` inside a frame with `Answer:` at its end; a
            `record` followed by the question; `steps`, where the question begins the reasoning
            that the model goes on with.
        second_question: makes the question of a second prompt, which stands alone, without system
            prompt and document, from the first (SFiction).
        rule: how an answer is read and scored.
        truncation: side that is cut where a document is too long, as in the official scripts.
        own_clusters: questions are independent although they share a text (GSM's worked examples)
            or have a document each.
        in_group: whether it counts in `leval_closed`, the paper's Avg.
    """

    key: str
    title: str
    file: PublishedFile
    system_prompt: str
    rule: Rule
    references: str = ""
    form: Literal["question", "record", "steps"] = "question"
    second_question: Callable[[str], str] | None = None
    truncation: str = "right"
    own_clusters: bool = False
    in_group: bool = True

    @property
    def name(self) -> str:
        """lm-eval's name of the task."""
        return PREFIX + self.key

    def metrics(self) -> tuple[str, ...]:
        """Names of the scores."""
        return (*SCORES, *self.rule.parts)

    def score_responses(
        self,
        responses: Sequence[str],
        gold: str,
        number: int,
        end_of_thinking: str,
        *,
        opened: bool = False,
    ) -> dict[str, float | None]:
        """Scores and marks of one question: lm-eval's task and `score` both call this.

        Args:
            responses: one for each prompt, or the one text that a prediction file holds.
            gold: the raw reference.
            number: of the question in its document, or of the record in its file, from 0.
            end_of_thinking: mark that ends a model's thinking; empty keeps everything.
            opened: whether the prompts already opened the thinking.

        Returns:
            A value for each of `metrics`, None for a part that the question does not have, and 0
            or 1 for each of `MARKS`.
        """
        text, between = self.rule.join(responses), self.rule.between
        split = re.split(re.escape(between), text, maxsplit=1, flags=re.IGNORECASE)
        pieces = split if between else [text]
        answers = [remove_thinking(each, end_of_thinking, opened=opened) for each in pieces]
        unfinished = [thinking_unfinished(p, end_of_thinking, opened=opened) for p in pieces]
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

    def parts_of(self, row: Row) -> tuple[str, ...]:
        """The parts that a question has."""
        return tuple(name for name in self.rule.parts if row[name] is not None)

    def aggregate(self, rows: Sequence[Row]) -> dict[str, float]:
        """The task's figure of each metric of at least one question, fractions 0..1."""
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        known = {name: [v for v in each if v is not None] for name, each in columns.items()}
        figures = {name: mean(values) for name, values in known.items() if values}
        parts = [self.parts_of(row) for row in rows]
        return figures | {name: mean_of_parts(known[name], parts) for name in SCORES}
