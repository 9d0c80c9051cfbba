"""How far a model reads, as lm-eval tasks: the same tokens scored after more of their text.

A length `c` counts all that the model sees, BOS and target included. `loss@c` is in nats a token,
`gain@c` what the loss fell by from the next shorter length.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from leval_tasks.context import claimed_lengths, find_reach
from leval_tasks.metadata import ReachSettings
from leval_tasks.metric_names import compose
from leval_tasks.perplexity.pydocs import PYDOCS
from leval_tasks.perplexity.task import PerplexityTask, with_stderr
from leval_tasks.perplexity.windows import Window
from leval_tasks.reach.settings import ReachPlan, plan_reach
from leval_tasks.reach.targets import target_ends, target_windows

logger = logging.getLogger(__name__)
LOSS, GAIN = "loss", "gain"


class ReachTask(PerplexityTask):
    """Fixed targets of one corpus; keys count at the top of the metadata, or under `reach`."""

    settings = ReachSettings

    @property
    def plan(self) -> ReachPlan:
        """The settings of this run."""
        plan = super().plan
        assert isinstance(plan, ReachPlan)
        return plan

    def _plan(self, *, has_bos: bool) -> ReachPlan:
        shipped, claimed = claimed_lengths(self._metadata)
        self._config.metadata.update(shipped_length=shipped, claimed_length=claimed)
        return plan_reach(
            self._asked,
            find_reach(self._metadata),
            shipped,
            has_bos=has_bos,
            endless=self._metadata["corpus"] == PYDOCS,
        )

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a text, shortest context length first."""
        plan = self.plan
        n = len(self._documents[doc["document_id"]].tokens)
        ends = target_ends(n, plan.longest, plan.step, plan.num_targets, plan.bos)
        return target_windows(ends, plan.context_lengths, plan.stride, plan.bos)

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Pairs of (nats, tokens) a length, over all targets of a text; zeros where one failed."""
        nll = [-float(total) for total, _ in results]
        failed = not all(map(math.isfinite, nll))
        if failed:
            logger.error("%s has no result and does not count", doc["document_id"])
        lengths = self.plan.context_lengths
        nats = dict.fromkeys(lengths, 0.0)
        tokens = dict.fromkeys(lengths, 0)
        for window, each in zip(self.windows(doc), nll, strict=True):
            nats[window.context_length] += each
            tokens[window.context_length] += window.scored
        values = {compose(LOSS, each): [nats[each], tokens[each]] for each in lengths}
        for shorter, longer in itertools.pairwise(lengths):
            values[compose(GAIN, longer)] = [nats[shorter] - nats[longer], tokens[longer]]
        if failed:
            values = {name: [0.0, 0] for name in values}
        return with_stderr(values) | {"failed": int(failed)}

    def metric_names(self) -> list[str]:
        """Every metric of this run but `failed`, without standard errors."""
        lengths = self.plan.context_lengths
        losses = [compose(LOSS, each) for each in lengths]
        return losses + [compose(GAIN, each) for each in lengths[1:]]

    def higher_is_better(self) -> dict[str, bool]:
        """A gain is good, a loss is not."""
        names = (*self.metric_names(), "failed")
        return {name: name.startswith(GAIN) for name in names}
