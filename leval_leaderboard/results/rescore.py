"""Judge logged answers again with L-Eval's official rules."""

from typing import Any

RULES = {
    "leval_coursera": "coursera",
    "leval_gsm": "gsm",
    "leval_quality": "quality",
    "leval_toefl": "toefl",
    "leval_codeu": "codeu",
    "leval_sfiction": "sfiction",
    "leval_topic_retrieval": "topic_retrieval",
}
"""Tasks whose answers are scored again from the text, and the rule of each."""


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
    task: str, row: dict[str, Any], end_of_thinking: str
) -> dict[str, float | None] | None:
    """What a sample's metrics must be by its answers' texts; None where they are not logged.

    SFiction asks twice, and both answers count; of topic retrieval's positions a question has one.

    Args:
        task: a key of `RULES`.
        row: the logged sample.
        end_of_thinking: the task's setting of that name; empty keeps the whole response.
    """
    from leval_tasks.closed.extract import join_sfiction, remove_thinking
    from leval_tasks.closed.scoring import TOPIC_POSITIONS, judge

    rule, gold, responses = RULES[task], gold_of(row), responses_of(row)
    if gold is None or len(responses) < (2 if rule == "sfiction" else 1):
        return None
    cleaned = [remove_thinking(response, end_of_thinking) for response in responses]
    texts = [text for text, _ in cleaned]
    judged = judge(rule, join_sfiction(*texts[:2]) if rule == "sfiction" else texts[0], gold)
    metrics: dict[str, float | None] = {
        "exact_match": judged.score,
        "exact_match_strict": judged.strict,
        "right": float(judged.right),
        "wrong": float(judged.parsed and not judged.right),
        "unparsed": float(not judged.parsed),
        "thinking_removed": float(any(removed for _, removed in cleaned)),
        **dict(judged.parts),
    }
    if rule == "topic_retrieval":
        asked = row["doc"].get("question_id")
        place = asked % 3 if isinstance(asked, int) else -1
        parts = {n: judged.score if at == place else None for at, n in enumerate(TOPIC_POSITIONS)}
        metrics |= parts
    return metrics
