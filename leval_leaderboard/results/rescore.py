"""Judge logged answers again with L-Eval's official rules."""

from typing import Any

from leval_tasks.closed.definition import ClosedTask


def responses_of(row: dict[str, Any]) -> list[str]:
    """The model's own texts, one a request: `resps` is a list (a request) of lists (repeats)."""
    requests = row.get("resps")
    texts = []
    for repeats in requests if isinstance(requests, list) else ():
        first = repeats[0] if isinstance(repeats, list) and repeats else repeats
        if isinstance(first, list) and first:  # a likelihood with its greedy flag
            first = first[0]
        if not isinstance(first, str):
            return []
        texts.append(first)
    return texts


def gold_of(row: dict[str, Any]) -> str | None:
    """The gold answer of a sample of ours."""
    doc = row.get("doc")
    gold = doc.get("gold") if isinstance(doc, dict) else None
    return gold if isinstance(gold, str) else None


def judged_metrics(
    task: ClosedTask, row: dict[str, Any], end_of_thinking: str
) -> dict[str, float | None] | None:
    """What a sample's metrics must be by its answers' texts; None where they are not logged.

    Args:
        task: the sample's task.
        row: the logged sample.
        end_of_thinking: the task's setting of that name; empty keeps the whole response.
    """
    gold, responses = gold_of(row), responses_of(row)
    if gold is None or len(responses) < task.prompts:
        return None
    number = row["doc"].get("question_id")
    return task.judged(responses, gold, number if isinstance(number, int) else 0, end_of_thinking)
