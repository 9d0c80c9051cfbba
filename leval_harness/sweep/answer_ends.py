"""Which answers the generation limit ended, written into the samples of every task."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from leval_harness.backends.answer_limits import AnswerEnd, AnswerEnds
from leval_tasks.closed.thinking import THINKING, opens_thinking, thinking_unfinished

AT_LIMIT, OPEN = "reached_limit", "thinking_unfinished"


def mark_ends(ends: AnswerEnds | None, samples: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write `reached_limit` and `thinking_unfinished` into samples of generated answers.

    Of a question's answers the share that reached the limit, where the backend knows of each; and 1
    where one stopped before its thinking ended.

    Args:
        ends: what was noted while the answers were generated; None where nothing was.
        samples: task -> rows, with lm-eval's `arguments` and `resps`.
    """
    for rows in samples.values():
        for row in rows:
            answers = list(_answers(row))
            if not answers:
                continue
            noted = [ends.of(*each) if ends is not None else [] for each in answers]
            if all(noted):
                row[AT_LIMIT] = fmean(end.at_limit for each in noted for end in each)
            if OPEN in row and not any(_is_open(each) for each in noted):
                continue  # a task of ours knows its own mark
            texts = (_reads_open(*each) for each in answers)
            row[OPEN] = float(
                any(
                    text if not each or each[0].thinking_open is None else _is_open(each)
                    for text, each in zip(texts, noted, strict=True)
                )
            )


def _reads_open(prompt: str, answer: str) -> bool:
    """Whether an answer thinks to its end, by any mark: other people's tasks state none."""
    return any(
        thinking_unfinished(answer, mark, opened=opens_thinking(prompt, mark)) for mark in THINKING
    )


def _is_open(ends: list[AnswerEnd]) -> bool:
    return any(end.thinking_open for end in ends)


def _answers(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Prompt and answer of every generation of a sample; none where texts were scored."""
    for asked, answers in zip(row.get("arguments") or (), row.get("resps") or (), strict=False):
        if len(asked) == 2 and isinstance(asked[1], Mapping):
            yield from ((str(asked[0]), each) for each in answers if isinstance(each, str))
