"""What a reach task reads: its settings, once the model's limit and its BOS are known."""

from dataclasses import asdict, dataclass
from typing import Any

from leval_border.errors import SettingError, not_allowed
from leval_tasks.context import Reach
from leval_tasks.metadata import ReachSettings
from leval_tasks.perplexity.settings import ReadingPlan, begins_with_bos
from leval_tasks.reach.targets import check_targets, default_lengths, spacing


@dataclass(frozen=True, slots=True)
class ReachPlan(ReadingPlan):
    """`ReachSettings` of a task made complete; `stride` is the number of tokens of a target.

    Targets of a text, `num_targets` at most, end `step` tokens apart. `key_tokens` is `own`, or
    what tells the reference's file from others.
    """

    num_targets: int
    step: int
    key_tokens: str

    def recorded(self) -> dict[str, Any]:
        """Plain values for the results file, under the names of `ReachSettings`."""
        plain = asdict(self)
        del plain["mode"]
        lengths, target_tokens = plain.pop("context_lengths"), plain.pop("stride")
        return {"context_length": list(lengths), "target_tokens": target_tokens, **plain}


def plan_reach(
    asked: ReachSettings,
    reach: Reach,
    trained: int | None,
    *,
    has_bos: bool,
    endless: bool,
    key_tokens: str = "own",
) -> ReachPlan:
    """What a reach task reads.

    Args:
        asked: what was asked for.
        reach: what the run's model reads without cutting it.
        trained: the length that the checkpoint's config claims; None where there is none to read.
        has_bos: whether the tokenizer has a BOS token.
        endless: whether texts are cut to the size that the targets need.
        key_tokens: whose they are.

    Raises:
        SettingError: Settings that do not fit each other, or `bos: true` without a BOS token.
        ContextLengthError: No context length is to be had, or it is above the limit.
    """
    bos = begins_with_bos(asked.bos, has_bos)
    given = asked.context_length or (reach.known - reach.after_window,)
    lengths = given if len(given) > 1 else default_lengths(trained or given[0], given[0])
    check_targets(lengths, asked.target_tokens, bos)
    reach.check(lengths[-1], "context_length", beside=reach.after_window)
    step = spacing(lengths, asked.target_tokens, asked.num_targets, bos)
    full = lengths[-1] - int(bos)
    if asked.max_tokens is not None and asked.max_tokens < full:
        window = f"at least {full}, a window of the longest context"
        raise SettingError(not_allowed("max_tokens", asked.max_tokens, window))
    size = full + (asked.num_targets - 1) * step
    return ReachPlan(
        context_lengths=lengths,
        mode="last",
        stride=asked.target_tokens,
        num_docs=asked.num_docs,
        seed=asked.seed,
        min_tokens=max(asked.min_tokens or full, full),
        max_tokens=asked.max_tokens or (size if endless else None),
        bos=bos,
        num_targets=asked.num_targets,
        step=step,
        key_tokens=key_tokens,
    )
