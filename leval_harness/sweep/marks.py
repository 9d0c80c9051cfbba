"""Marks in lm-eval's samples: which prompts were cut, and which answers the limit ended."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from statistics import fmean
from typing import Any

from leval_tasks.closed.catalog import marks_in
from leval_tasks.closed.thinking import THINKING, opens_thinking, thinking_unfinished

log = logging.getLogger("leval_harness.sweep.worker")

Samples = Mapping[str, list[dict[str, Any]]]
"""Task -> rows, with lm-eval's `arguments` (the requests, the prompt first) and `resps`."""


def mark_truncated(model: Any, samples: Samples) -> None:
    """Write `truncated` and `prompt_tokens` into samples.

    A prompt is counted with the model's own tokenizer. It is truncated where it and the answer (or
    the scored text) are longer than the model's `max_length`. Without both nothing is written.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    limit, encode = getattr(model, "max_length", None), getattr(model, "tok_encode", None)
    if not isinstance(limit, int) or encode is None:
        return
    count = cache(lambda text: len(encode(text)))
    for name, rows in samples.items():
        for row in rows:
            lengths = []
            for prompt, *rest in row.get("arguments") or ():
                if isinstance(prompt, str) and len(rest) == 1 and isinstance(rest[0], str):
                    lengths.append(count(prompt) + count(rest[0]))
                elif isinstance(prompt, str) and len(rest) == 1:
                    most = getattr(model, "max_gen_toks", 0)
                    given = normalize_gen_kwargs(dict(rest[0]), most)
                    lengths.append(count(prompt) + given["max_gen_toks"])
            if lengths:
                row["truncated"] = float(max(lengths) > limit)
                row["prompt_tokens"] = max(count(each[0]) for each in row["arguments"])
        if truncated := sum(row.get("truncated", 0.0) > 0 for row in rows):
            log.warning(
                "%s: %d of %d prompts are longer than the %d tokens that the model takes, with the "
                "answer, and were cut on the left",
                *(name, truncated, len(rows), limit),
            )


def mark_answer_ends(ends_of: Callable[[str, str], list[bool]], samples: Samples) -> None:
    """Write `reached_limit` and `thinking_unfinished` into samples of generated answers.

    `reached_limit` is the share of a question's answers that the generation limit ended, where the
    backend knows it of each. `thinking_unfinished` is 1 where one stopped while it was thinking,
    by any known mark of thinking; tasks of ours have their own mark in `filtered_resps`.

    Args:
        ends_of: whether the limit ended an answer to a prompt, each time; empty where it was not
            noted.
        samples: changed in place.
    """
    for row in (row for rows in samples.values() for row in rows):
        answers = list(_answers(row))
        if not answers:
            continue
        noted = [ends_of(*each) for each in answers]
        if all(noted):
            row["reached_limit"] = fmean(end for each in noted for end in each)
        if not marks_in(row.get("filtered_resps")):
            row["thinking_unfinished"] = float(any(_is_all_thinking(*each) for each in answers))


def _is_all_thinking(prompt: str, answer: str) -> bool:
    return any(
        thinking_unfinished(answer, mark, opened=opens_thinking(prompt, mark)) for mark in THINKING
    )


def _answers(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Prompt and answer of every generation of a sample; none where texts were scored."""
    for request, answers in zip(row.get("arguments") or (), row.get("resps") or (), strict=False):
        if len(request) == 2 and isinstance(request[1], Mapping):
            yield from ((str(request[0]), each) for each in answers if isinstance(each, str))
