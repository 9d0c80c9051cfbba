"""The log-probabilities of given tokens over a large vocabulary.

Over 262,144 tokens the logits of 2,048 positions take 2.1 GB. They are therefore computed in blocks
of some positions by some of the vocabulary, each small enough to stay in the processor's cache, and
only the logarithm of a block's sum of exponentials is kept of it. The matrix product is then nearly
all of the time.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from leval_harness.backends.forward import Head
from leval_tasks.common.token_logprobs import SLICE, SumOfLogprobs, logprobs_of

logger = logging.getLogger(__name__)

BLOCK_POSITIONS = 256
BLOCK_VOCABULARY = 1024
"""Sizes of a block of logits on a CPU: 1 MiB in float32, within its second-level cache."""


def token_scores(
    head: Head, states: Tensor, targets: Sequence[int], *, with_correct: bool
) -> tuple[Tensor, Tensor | None]:
    """Score targets from the states of the positions before them.

    Args:
        head: of the model.
        states: `[positions, ...]` as `head.states` returns them.
        targets: token ids, one per position.
        with_correct: whether to find the most probable token of each position, too.

    Returns:
        Natural logarithm of each target's probability, float32 whatever the model's dtype is, and
        whether the target is the most probable token, or None; both `[positions]`, on the CPU.
    """
    goal = torch.tensor(list(targets), device=states.device)
    score = score_by_position
    size = max(1, SLICE // head.vocabulary)
    if head.matrix is not None and states.device.type == "cpu":
        score = score_by_block
        size = BLOCK_POSITIONS
    logprobs = []
    most_probable = []
    for part, part_goal in zip(states.split(size), goal.split(size), strict=True):
        logprob, best = score(head, part, part_goal, with_correct)
        logprobs.append(logprob.cpu())
        if best is not None:
            most_probable.append(best.cpu())
    if not with_correct:
        return torch.cat(logprobs), None
    return torch.cat(logprobs), torch.cat(most_probable) == goal.cpu()


Scores = tuple[Tensor, Tensor | None]
"""Log-probability of each target, and the most probable token, both `[positions]`."""


def score_by_position(head: Head, states: Tensor, goal: Tensor, with_correct: bool) -> Scores:
    """Score some positions from all of their logits at once."""
    logits = head.logits(states)
    best = None
    if with_correct:
        best = logits.argmax(-1)
    return logprobs_of(logits, goal), best


def score_by_block(head: Head, states: Tensor, goal: Tensor, with_correct: bool) -> Scores:
    """Score some positions from a block of their logits after the other."""
    assert head.matrix is not None
    weight = head.matrix.weight
    bias = head.matrix.bias
    # A target outside of the vocabulary keeps NaN, which is refused later.
    chosen = torch.full((len(goal),), torch.nan)
    norms = []
    highest = []
    tokens = []
    for first in range(0, len(weight), BLOCK_VOCABULARY):
        block = slice(first, first + BLOCK_VOCABULARY)
        block_bias = None
        if bias is not None:
            block_bias = bias[block]
        logits = linear(states, weight[block], block_bias).float()
        rows = ((goal >= first) & (goal < first + len(logits[0]))).nonzero().squeeze(-1)
        chosen[rows] = logits[rows, goal[rows] - first]
        norms.append(logits.logsumexp(-1))
        if with_correct:
            value, token = logits.max(-1)
            highest.append(value)
            tokens.append(token + first)
    logprob = chosen - torch.stack(norms).logsumexp(0)
    if not with_correct:
        return logprob, None
    # Of equal logits the first token counts, as for `argmax`: a block before a later one.
    best_block = torch.stack(highest).argmax(0, keepdim=True)
    return logprob, torch.stack(tokens).gather(0, best_block).squeeze(0)


class Passage:
    """Tokens, the last of which are scored; what is too long is cut on the left.

    Args:
        context: token ids before the scored ones.
        scored: token ids.
        max_length: longest sequence that the model reads.
        key: lm-eval's key of the request; None if its answer is not cached.
        with_correct: whether to find out which scored tokens are the most probable ones.

    Attributes:
        inputs: what the model reads: context and scored tokens without the last.
        targets: scored tokens; target `i` is predicted at input `first + i`.
        logprob: natural logarithm of each target's probability, float32 `[targets]`.
        correct: whether the target is the most probable token, bool `[targets]`.

    Raises:
        ValueError: there is nothing to score, nothing before it, or it is longer than `max_length`.
    """

    def __init__(
        self,
        context: Sequence[int],
        scored: Sequence[int],
        max_length: int,
        key: object = None,
        *,
        with_correct: bool = True,
    ) -> None:
        if not context or not 0 < len(scored) <= max_length:
            raise ValueError(
                f"{len(scored)} scored tokens after {len(context)} of context; allowed: 1 to "
                f"max_length={max_length} after at least 1"
            )
        # The last scored token is predicted but never read.
        surplus = max(0, len(context) + len(scored) - (max_length + 1))
        if surplus:
            logger.warning("%d tokens of a context cut from the left", surplus)
        self.key = key
        self.with_correct = with_correct
        self.inputs = [*context, *scored][surplus:-1]
        self.targets = list(scored)
        self.first = len(self.inputs) - len(self.targets)
        self.logprob = torch.empty(len(self.targets))
        self.correct = torch.zeros(len(self.targets), dtype=torch.bool)

    @property
    def answer(self) -> tuple[SumOfLogprobs, bool]:
        """Return what lm-eval expects: the float64 sum with its parts, and whether all are correct."""
        total = SumOfLogprobs(float(self.logprob.double().sum()), self.logprob.numpy())
        return total, bool(self.correct.all())

    def score(self, head: Head, position: int, states: Tensor) -> None:
        """Score what states `[positions, ...]` predict.

        Args:
            head: of the model.
            position: of the first state among the inputs.
            states: of inputs from that position on.
        """
        part = slice(position - self.first, position - self.first + len(states))
        targets = self.targets[part]
        logprob, correct = token_scores(head, states, targets, with_correct=self.with_correct)
        self.logprob[part] = logprob
        if correct is not None:
            self.correct[part] = correct

    def score_alone(self, head: Head) -> None:
        """Read and score it in one forward pass."""
        self.score(head, self.first, head.states(self.inputs, self.first))
