"""Which answers the generation limit ended. lm-eval's backends do not report it.

The tokens that a model returned decide, not the text: an answer can take fewer tokens when it is
encoded again (blank lines, half a character) although it reached the limit.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AnswerEnds:
    """Whether the limit ended an answer, by prompt and answer, the two documents that lm-eval logs.

    `pending` holds the ends of a batch whose documents lm-eval has not made yet, in the batch's
    order.
    The documents arrive by `add_partial`: this object is in front of lm-eval's response cache.
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
        """Return how this answer to this prompt ended, once for each time it was given."""
        return self.known.get((prompt, answer), [])


def record_answer_ends(lm: Any) -> AnswerEnds | None:
    """Make a model of lm-eval record how its answers end. None if its class cannot tell.

    Ours of `hf` and `vllm` can. They generate in `_model_generate` and then pass every answer of
    the batch to lm-eval's response cache, in the batch's order.
    """
    if not hasattr(lm, "ends_of_batch"):
        return None
    ends = AnswerEnds(lm.cache_hook)
    generate = lm._model_generate

    def recording(*args: Any, **options: Any) -> Any:
        output = generate(*args, **options)
        ends.pending = deque(lm.ends_of_batch(output, **options))
        return output

    lm._model_generate = recording
    lm.cache_hook = ends
    return ends
