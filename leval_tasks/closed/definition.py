"""What a closed-ended task is; each one is made in its own file of `leval_tasks.closed.catalog`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from leval_tasks.closed.prompts import Frame
from leval_tasks.closed.rules import Rule, remove_thinking, thinking_unfinished

PREFIX = "leval_closed_"
"""Before a task's key, its name in lm-eval."""

OLD_PREFIX = "leval_"
"""The same in earlier versions; lm-eval itself may come to have tasks of such names."""

SCORES = ("exact_match", "exact_match_strict")
"""The scores, in which every part of a rule weighs the same."""

QUESTION_METRICS = {
    "exact_match": True,
    "exact_match_strict": True,
    "right": True,
    "wrong": False,
    "unparsed": False,
    "thinking_removed": False,
    "thinking_unfinished": False,
}
"""What is said of every answer, and whether more of it is better."""


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A task's file as OpenLMLab/LEval has it at cd34b050, LEval-data/Closed-ended-tasks.

    Attributes:
        name: file name.
        documents: number of records.
        questions: number of questions in all records.
        sha256: of the file, None where no copy was at hand.
        git_blob: SHA-1 that git gives the file, for the one without a SHA-256. With neither, a file
            with as many documents and questions is taken for it.
    """

    name: str
    documents: int
    questions: int
    sha256: str | None = None
    git_blob: str | None = None

    def is_same(self, content: bytes) -> bool:
        """Whether a file is byte for byte the published one."""
        if self.sha256:
            return hashlib.sha256(content).hexdigest() == self.sha256
        header = b"blob %d\0" % len(content)
        blob = hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
        return blob == self.git_blob


@dataclass(frozen=True, kw_only=True)
class ClosedTask:
    """One closed-ended task.

    Attributes:
        key: short name; with `PREFIX` lm-eval's name of the task.
        title: name in tables, as in the paper.
        place: of its column among the others.
        file: L-Eval's file.
        frame: how it asks.
        rule: how an answer is read and what it is worth.
        truncation: side that is cut where a document is too long, as the official scripts do.
        own_clusters: questions are independent although they share a text (GSM's worked examples)
            or have a document each.
        in_group: whether it counts in `leval_closed`, the paper's Avg.
    """

    key: str
    title: str
    place: int
    file: PublishedFile
    frame: Frame
    rule: Rule
    truncation: str = "right"
    own_clusters: bool = False
    in_group: bool = True

    @property
    def name(self) -> str:
        """lm-eval's name of the task."""
        return PREFIX + self.key

    @property
    def prompts(self) -> int:
        """Prompts, and so responses, of a question."""
        return 2 if self.frame.second else 1

    def metrics(self) -> dict[str, bool]:
        """Names of what `judged` gives, and whether more of it is better."""
        return QUESTION_METRICS | dict.fromkeys(self.rule.parts, True)

    def judged(
        self,
        responses: Sequence[str],
        gold: str,
        number: int,
        end_of_thinking: str,
        *,
        opened: bool = False,
    ) -> dict[str, float | None]:
        """What a question's responses, one a prompt, are worth: a value for each of `metrics`.

        None where the question, the `number`th of its document from 0, has no such part. `opened`
        is whether the prompts have opened the thinking already.
        """
        answers = [remove_thinking(each, end_of_thinking, opened=opened) for each in responses]
        open_ended = [thinking_unfinished(r, end_of_thinking, opened=opened) for r in responses]
        judged = self.rule.judge(self.rule.join([text for text, _ in answers]), gold)
        return {
            "exact_match": judged.score,
            "exact_match_strict": judged.strict,
            "right": float(judged.right),
            "wrong": float(judged.parsed and not judged.right),
            "unparsed": float(not judged.parsed),
            "thinking_removed": float(any(removed for _, removed in answers)),
            "thinking_unfinished": float(any(open_ended)),
            **self.rule.parts_of(judged, number),
        }
