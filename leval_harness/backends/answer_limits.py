"""How answers ended: at the generation limit, or by themselves; lm-eval's backends do not say.

The tokens that a model returned decide, not the text: an answer of fewer tokens when it is encoded
again (blank lines, half a character) has reached the limit all the same.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class End:
    """How one answer ended.

    Attributes:
        at_limit: the limit ended it, no end token and no stop string.
        thinking_open: it never came to the mark after which its backend begins to read; None where
            the backend looks for none.
    """

    at_limit: bool
    thinking_open: bool | None = None


@dataclass
class Ends:
    """Ends of answers by prompt and answer, as lm-eval logs both.

    `waiting` holds those of a batch whose texts lm-eval has yet to make, in their order.
    """

    known: dict[tuple[str, str], list[End]] = field(default_factory=dict)
    waiting: deque[End] = field(default_factory=deque)

    def note(self, prompt: str, answer: str, end: End) -> None:
        """Keep the end of an answer."""
        self.known.setdefault((prompt, answer), []).append(end)

    def of(self, prompt: str, answer: str) -> list[End]:
        """Ends of this answer to this prompt, one for each time it was given."""
        return self.known.get((prompt, answer), [])


def end_of(
    tokens: Sequence[int],
    text: str,
    *,
    limit: int,
    end_tokens: Collection[int],
    until: Sequence[str],
) -> bool:
    """Whether the limit ended an answer.

    Args:
        tokens: new tokens of a row; behind its end come padding or end tokens.
        text: the same decoded, stop strings included.
        limit: tokens that were allowed.
        end_tokens: ids of which any ends an answer.
        until: stop strings.
    """
    if len(tokens) < limit or any(token in end_tokens for token in tokens):
        return False
    return not any(stop and stop in text for stop in until)


def watch(lm: Any) -> Ends | None:
    """Have a model of lm-eval note how its answers end; None if it is no `hf` and no `vllm`.

    Both hand every finished answer to lm-eval's response cache, in the order of their batch.
    """
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(lm).__mro__}
    if "lm_eval.models.huggingface.HFLM" in kinds and lm.backend == "causal":
        generate = _watched_hf
    elif "lm_eval.models.vllm_causallms.VLLM" in kinds:
        generate = _watched_vllm
    else:
        return None
    ends = lm.ends = Ends()
    lm._model_generate = generate(lm, ends)
    lm.cache_hook = _Hook(lm.cache_hook, ends)
    return ends


class _Hook:
    """lm-eval's hook into its response cache, which also learns the text of each answer."""

    def __init__(self, hook: Any, ends: Ends) -> None:
        self.hook, self.ends = hook, ends

    def add_partial(self, kind: str, request: Any, answer: Any) -> None:
        """As lm-eval's own; pairs an answer with the end that was seen of it."""
        if kind == "generate_until" and self.ends.waiting:
            self.ends.note(str(request[0]), str(answer), self.ends.waiting.popleft())
        self.hook.add_partial(kind, request, answer)


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end an answer of a transformers model."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    listed = ids if isinstance(ids, list | tuple) else [ids]
    return {int(each) for each in (*listed, tokenizer.eos_token_id) if each is not None}


def hf_end(lm: Any, tokens: Sequence[int], limit: int, until: Sequence[str]) -> End:
    """The end of one row of new tokens on transformers."""
    text = lm.tok_decode(tokens)
    at_limit = end_of(
        tokens,
        text,
        limit=limit,
        end_tokens=end_tokens(lm.model, lm.tokenizer),
        until=until,
    )
    mark = lm.think_end_token
    if mark is None:
        return End(at_limit)
    found = mark in tokens if isinstance(mark, int) else mark in text
    return End(at_limit, at_limit and not found)


def _watched_hf(lm: Any, ends: Ends) -> Any:
    """`HFLM._model_generate`; it is called with the names of its arguments."""
    original = lm._model_generate

    def generate(**given: Any) -> Any:
        output = original(**given)
        width = given["context"].shape[1]
        ends.waiting.clear()
        ends.waiting.extend(
            hf_end(lm, row, given["max_length"] - width, given["stop"])
            for row in output[:, width:].tolist()
        )
        return output

    return generate


def _watched_vllm(lm: Any, ends: Ends) -> Any:
    """`VLLM._model_generate`; the engine says why an answer ended."""
    original = lm._model_generate

    def generate(*args: Any, **given: Any) -> Any:
        outputs = original(*args, **given)
        if given.get("generate", False):
            ends.waiting.clear()
            ends.waiting.extend(_vllm_end(each.outputs[0], lm.think_end_token) for each in outputs)
        return outputs

    return generate


def _vllm_end(output: Any, mark: str | None) -> End:
    at_limit = output.finish_reason == "length"
    return End(at_limit, None if not mark else at_limit and mark not in output.text)
