"""Which prompts of other people's tasks a backend cut: lm-eval says so in a log line alone."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

log = logging.getLogger("leval_harness.sweep.cell")


def mark_cut(model: Any, samples: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write `truncated` and `prompt_tokens` into samples that do not have them.

    A prompt is counted with the model's own tokenizer, and cut where it and the answer (or the
    scored text) are longer than `max_length`. A backend that has none is not asked.

    Args:
        model: lm-eval's model.
        samples: task -> rows; `arguments` are the requests, the prompt first.
    """
    limit, encode = getattr(model, "max_length", None), getattr(model, "tok_encode", None)
    if not isinstance(limit, int) or encode is None:
        return
    tokens: dict[str, int] = {}

    def count(text: str) -> int:
        if text not in tokens:
            tokens[text] = len(encode(text))
        return tokens[text]

    for name, rows in samples.items():
        cut = 0
        for row in rows:
            longest = max(_lengths(row.get("arguments") or (), count, model), default=None)
            if longest is not None:
                row["truncated"] = float(longest > limit)
                row["prompt_tokens"] = max(count(each[0]) for each in row["arguments"])
                cut += longest > limit
        if cut:
            log.warning(
                "%s: %d of %d prompts are longer than the %d tokens that the model takes, with the "
                "answer, and were cut on the left",
                *(name, cut, len(rows), limit),
            )


def _lengths(requests: Iterable[Any], count: Any, model: Any) -> Iterable[int]:
    """Tokens that each request needs: prompt and answer, or prompt and scored text."""
    from lm_eval.models.utils import normalize_gen_kwargs

    for request in requests:
        prompt, *rest = request
        if not isinstance(prompt, str) or len(rest) != 1:
            continue
        if isinstance(rest[0], str):
            yield count(prompt) + count(rest[0])
        else:
            given = normalize_gen_kwargs(dict(rest[0]), getattr(model, "max_gen_toks", 0))
            yield count(prompt) + given["max_gen_toks"]  # it has four names
