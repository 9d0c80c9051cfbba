"""How far a model reads, as lm-eval tasks: the same tokens scored after more of their text.

A length `c` counts all that the model sees, BOS and target included. `loss@c` is in nats a token,
`gain@c` what the loss fell by from the next shorter length, `key_loss@c` the loss on the tokens
that long context helps, on backends that tell each token's (`hf-long`, `vllm-long`).
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from leval_tasks.context import claimed_lengths, find_reach
from leval_tasks.metadata import ReachSettings
from leval_tasks.metric_names import compose
from leval_tasks.perplexity.pydocs import PYDOCS
from leval_tasks.perplexity.task import PerplexityTask, with_stderr
from leval_tasks.perplexity.windows import Window
from leval_tasks.reach.key_tokens import Span, key_places, merged, places_within
from leval_tasks.reach.reference import read_reference
from leval_tasks.reach.settings import ReachPlan, plan_reach
from leval_tasks.reach.targets import target_ends, target_windows

logger = logging.getLogger(__name__)
LOSS, GAIN, KEY_LOSS = "loss", "gain", "key_loss"
KEY_SPANS = "key_spans"


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
            key_tokens=self._reference[1],
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
        parts = [list(getattr(total, "logprobs", ())) for total, _ in results]
        spans: dict[str, Any] = {}
        if not failed and all(len(p) == self.plan.stride for p in parts):
            keys, spans[KEY_SPANS] = self._key_tokens(doc, parts)
            values |= keys
        elif failed:
            values = {name: [0.0, 0] for name in values}
        return with_stderr(values) | spans | {"failed": int(failed)}

    def _key_tokens(
        self, doc: Mapping[str, Any], parts: Sequence[Sequence[float]]
    ) -> tuple[dict[str, list[float]], list[Span]]:
        """Pairs of (nats, tokens) a length over the key tokens, and where they are in the text."""
        document, lengths = self._documents[doc["document_id"]], self.plan.context_lengths
        nats: dict[int, list[float]] = {length: [] for length in lengths}
        spans: list[Span] = []
        for window, logprobs in zip(self.windows(doc), parts, strict=True):
            nats[window.context_length] += [-each for each in logprobs]
            if window.context_length == lengths[0]:
                spans += document.spans(window.score_start, window.end)
        reference, _ = self._reference
        if reference is None:
            places = key_places(nats[lengths[0]], nats[self._long])
        else:
            places = places_within(reference.get(doc["document_id"], []), spans)
        keys = {
            compose(KEY_LOSS, length): [math.fsum(of_all[at] for at in places), len(places)]
            for length, of_all in nats.items()
        }
        return keys, merged(spans[at] for at in places)

    @property
    def _long(self) -> int:
        """The length that tells the model's own key tokens: its trained one, if it was asked."""
        lengths, shipped = self.plan.context_lengths, self._config.metadata["shipped_length"]
        return max((n for n in lengths[1:] if shipped and n <= shipped), default=lengths[-1])

    @cached_property
    def _reference(self) -> tuple[dict[str, list[Span]] | None, str]:
        """Key tokens of a reference model's run, where one is given, and whose they are."""
        if not self._asked.key_tokens:
            return None, "own"
        spans, digest = read_reference(self._asked.key_tokens)
        return spans, digest[:16]

    def metric_names(self) -> list[str]:
        """Every metric of this run but `failed`, without standard errors."""
        lengths = self.plan.context_lengths
        losses = [compose(LOSS, each) for each in lengths]
        keys = [compose(KEY_LOSS, each) for each in lengths]
        return [*losses, *keys, *(compose(GAIN, each) for each in lengths[1:])]

    def aggregation(self) -> dict[str, Any]:
        """Those of every perplexity task, and the number of stretches of key tokens."""
        return {**super().aggregation(), KEY_SPANS: lambda spans: sum(map(len, spans))}

    def higher_is_better(self) -> dict[str, bool]:
        """A gain is good, a loss is not."""
        names = (*self.metric_names(), KEY_SPANS, "failed")
        return {name: name.startswith(GAIN) for name in names}
