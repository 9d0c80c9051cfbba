"""What perplexity asks of a model: one request of token ids a window."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance

from leval_border.errors import SettingError
from leval_tasks.perplexity.windows import Window

REQUEST = "_loglikelihood_tokens"


class WindowRequest(Instance):
    """One window for a model; unpacks to (cache key, context ids, scored ids).

    What lm-eval logs of a request is `arguments`: here a line that names the window and the digest
    of its tokens, never the tokens. There is no cache key: lm-eval's response cache holds the
    answers to text requests only.
    """

    def __init__(self, window: Window, context: list[int], scored: list[int], **kwargs: Any):
        digest = hashlib.sha256(repr((context, scored)).encode()).hexdigest()[:16]
        label = (
            f"{kwargs['doc']['document_id']} @{window.context_length}: tokens "
            f"{window.start}-{window.end}, scored from {window.score_start}, sha256 {digest}"
        )
        super().__init__(request_type=REQUEST, arguments=(label,), **kwargs)
        self.token_parts = (None, context, scored)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.token_parts)

    def __getitem__(self, index: int) -> Any:
        return self.token_parts[index]

    def __len__(self) -> int:
        return len(self.token_parts)


def check_shared_logits(model: Any, parts: Sequence[tuple[None, list[int], list[int]]]) -> None:
    """Refuse requests that lm-eval 0.4.13's hf backend would answer with the wrong positions.

    With its cache of logits, on by default, it answers requests of the same tokens from one forward
    pass and takes the *first* positions of the longest scored part for all of them
    (`Collator.get_cache`), which is wrong where the scored parts differ in length. Repetitive text
    gives such windows.

    Raises:
        SettingError: There are such requests; says which argument turns that off.
    """
    if not getattr(model, "logits_cache", False) or hasattr(model, "teacher_forced"):
        return
    lengths: dict[str, int] = {}
    for _, context, scored in parts:
        key = hashlib.sha256(repr(context + scored[:-1]).encode()).hexdigest()
        if lengths.setdefault(key, len(scored)) != len(scored):
            raise SettingError(
                "two windows hold the same tokens but score different parts of them, which "
                "lm-eval's hf backend mixes up; give logits_cache=False in --model_args, or use "
                "--model hf-long"
            )
