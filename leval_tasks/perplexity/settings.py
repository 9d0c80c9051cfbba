"""What a perplexity task reads: its settings, once the model's limit and its BOS are known."""

from dataclasses import asdict, dataclass
from typing import Any

from leval_border.errors import SettingError, not_allowed
from leval_tasks.context import Reach
from leval_tasks.metadata import PerplexitySettings
from leval_tasks.perplexity.windows import check_settings


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """`PerplexitySettings` of a task made complete.

    `min_tokens` is at least one full window of the longest context.
    """

    context_lengths: tuple[int, ...]
    mode: str
    stride: int
    num_docs: int
    seed: int
    min_tokens: int
    max_tokens: int | None
    bos: bool

    @property
    def longest(self) -> int:
        """The longest context length."""
        return self.context_lengths[-1]

    def recorded(self) -> dict[str, Any]:
        """Plain values for the results file, under the names of `PerplexitySettings`."""
        plain = asdict(self)
        return {"context_length": list(plain.pop("context_lengths")), **plain}


def plan_reading(asked: PerplexitySettings, reach: Reach, *, has_bos: bool) -> ReadingPlan:
    """What is read, from what was asked for; the model's limit where no length is.

    Raises:
        SettingError: Settings that do not fit each other, or `bos: true` without a BOS token.
        ContextLengthError: No context length is to be had, or it is above the limit.
    """
    lengths = asked.context_length or (reach.known - reach.after_window,)
    bos = begins_with_bos(asked.bos, has_bos)
    for length in lengths:
        check_settings(length, asked.stride, asked.mode, bos)
    full = lengths[-1] - int(bos)
    if asked.max_tokens is not None and asked.max_tokens < full:
        window = f"at least {full}, a window of the longest context"
        raise SettingError(not_allowed("max_tokens", asked.max_tokens, window))
    reach.check(lengths[-1], "context_length", beside=reach.after_window)
    completed = {"context_length": lengths, "min_tokens": max(asked.min_tokens or full, full)}
    given = {**asked.model_dump(include=set(asked.decides_numbers())), **completed, "bos": bos}
    return ReadingPlan(context_lengths=given.pop("context_length"), **given)


def begins_with_bos(asked: bool | None, has_bos: bool) -> bool:
    """Whether windows begin with BOS; None asks the tokenizer.

    Raises:
        SettingError: it is asked for and there is none.
    """
    if asked and not has_bos:
        raise SettingError(
            "bos: true is not allowed, the tokenizer has no BOS token; leave bos out: the first "
            "token of each document is then context only and not scored"
        )
    return has_bos if asked is None else asked
