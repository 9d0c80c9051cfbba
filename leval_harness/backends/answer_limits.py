"""Which answers the generation limit ended. lm-eval's backends do not report it.

The tokens that a model returned decide, not the text: an answer can take fewer tokens when it is
encoded again (blank lines, half a character) although it reached the limit.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AnswerEnds:
    """Whether the limit ended an answer, by prompt and answer, the two texts that lm-eval logs.

    `pending` holds the ends of a batch whose texts lm-eval has not made yet, in the batch's order.
    The texts arrive by `add_partial`: this object stands in front of lm-eval's response cache.
    """

    cache_hook: Any = None
    known: dict[tuple[str, str], list[bool]] = field(default_factory=dict)
    pending: deque[bool] = field(default_factory=deque)

    def add_partial(self, kind: str, request: Any, answer: Any) -> None:
        """Record the end of an answer, and cache it as lm-eval does."""
        if kind == "generate_until" and self.pending:
            key = (str(request[0]), str(answer))
            self.known.setdefault(key, []).append(self.pending.popleft())
        self.cache_hook.add_partial(kind, request, answer)

    def of(self, prompt: str, answer: str) -> list[bool]:
        """Ends of this answer to this prompt, one for each time it was given."""
        return self.known.get((prompt, answer), [])


def record_answer_ends(lm: Any) -> AnswerEnds | None:
    """Make a model of lm-eval record how its answers end. None if it is neither `hf` nor `vllm`.

    Both generate in `_model_generate` and then pass every answer of the batch to lm-eval's response
    cache, in the batch's order.
    """
    classes = {f"{each.__module__}.{each.__name__}" for each in type(lm).__mro__}
    if "lm_eval.models.huggingface.HFLM" in classes and lm.backend == "causal":
        ends_of_batch = _hf_ends
    elif "lm_eval.models.vllm_causallms.VLLM" in classes:
        ends_of_batch = _vllm_ends
    else:
        return None
    ends, generate = AnswerEnds(lm.cache_hook), lm._model_generate

    def recording(*args: Any, **options: Any) -> Any:
        output = generate(*args, **options)
        ends.pending = deque(ends_of_batch(lm, output, options))
        return output

    lm._model_generate, lm.cache_hook = recording, ends
    return ends


def _hf_ends(lm: Any, output: Any, options: dict[str, Any]) -> list[bool]:
    """Ends of a batch of `HFLM`, which passes all arguments of `_model_generate` by name.

    The limit ended a row that has all its tokens, none that ends an answer, and no stop string.
    """
    width = options["context"].shape[1]
    ids = getattr(lm.model.generation_config, "eos_token_id", None)
    end_tokens = {*(ids if isinstance(ids, list | tuple) else [ids]), lm.tokenizer.eos_token_id}
    ends = []
    for row in output[:, width:].tolist():
        text, whole = lm.tok_decode(row), len(row) >= options["max_length"] - width
        stopped = any(stop and stop in text for stop in options["stop"])
        ends.append(whole and not stopped and end_tokens.isdisjoint(row))
    return ends


def _vllm_ends(lm: Any, output: Any, options: dict[str, Any]) -> list[bool]:
    """Ends of a batch of `VLLM`, whose engine reports why an answer ended."""
    generated = options.get("generate", False)  # else log-likelihoods
    return [each.outputs[0].finish_reason == "length" for each in output if generated]
