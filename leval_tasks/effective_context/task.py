"""Effective context length, as lm-eval tasks: full context against short windows of each text.

A text is read once in full and once in short windows. `gain` is the mean clipped gain of a token
from full context, `loss` and `short_loss` are the means of both reads, in nats. The first of the
`filtered_resps` of a sample holds the sums over blocks of 512 tokens that the estimator takes.
"""

import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from lm_eval.api.filter import FilterEnsemble

from leval_tasks.aggregation import with_stderr
from leval_tasks.context import LengthLimit, claimed_lengths, find_limit
from leval_tasks.effective_context.reads import (
    FULL,
    SHORT,
    Losses,
    block_rows,
    gain_over,
    joined,
    windows_of,
)
from leval_tasks.lm_task import Described, QuestionFilter
from leval_tasks.metadata import EffectiveContextSettings, TextSettings, default_short_window
from leval_tasks.model import running_model
from leval_tasks.perplexity.documents import TokenizedText
from leval_tasks.perplexity.task import PerplexityTask, WindowRequest, begins_with_bos
from leval_tasks.perplexity.windows import Window, document_tokens
from leval_tasks.token_logprobs import SumOfLogprobs, token_logprobs
from resonance_vllm.errors import SettingError, not_allowed

logger = logging.getLogger(__name__)
REQUEST = "token_logprobs"
LOSS, SHORT_LOSS, GAIN = "loss", "short_loss", "gain"


class EffectiveContextTask(PerplexityTask):
    """One corpus; keys count at the top of the metadata, or under `effective_context`.

    Attributes:
        token_losses: document -> read -> nats of each token, once results were processed.
    """

    OUTPUT_TYPE = REQUEST
    settings_type = EffectiveContextSettings
    softmax = "float32"  # of `token_logprobs`

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Keep the settings; see `PerplexityTask`."""
        super().__init__(config)
        self._filters = [FilterEnsemble("none", [lambda: QuestionFilter(self._describe)])]
        self.token_losses: dict[str, Losses] = {}

    def _complete(self, *, has_bos: bool) -> TextSettings:
        shipped, claimed = claimed_lengths(self._metadata)
        self._config.metadata.update(shipped_length=shipped, claimed_length=claimed)
        return complete_settings(self._given, find_limit(self._metadata), shipped, has_bos=has_bos)

    def _cut(
        self, documents: Sequence[TokenizedText], settings: TextSettings
    ) -> Sequence[TokenizedText]:
        """Texts take turns with the lengths; one that is shorter is read as far as it goes."""
        lengths = settings.context_length or ()
        sizes = [document_tokens(each, bool(settings.bos)) for each in lengths]
        return [
            replace(text, tokens=text.tokens[:size], ends=text.ends[:size])
            for text, size in zip(documents, itertools.cycle(sizes), strict=False)
        ]

    def test_docs(self) -> list[dict[str, Any]]:
        """What is logged of each text: its name, its size, and the digest of its tokens."""
        return [doc | {"tokens_sha256": self._digest(doc)} for doc in super().test_docs()]

    def _digest(self, doc: Mapping[str, Any]) -> str:
        tokens = self._documents[doc["document_id"]].tokens
        return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, for a model that reports the log-probability of each token."""
        model = running_model()
        if model is not None:  # lm-eval calls the method of the model that a request's type names
            vars(model).setdefault(REQUEST, partial(scored_requests, model))
        super().build_all_requests(**kwargs)

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a text: the full one, then those of the other reads."""
        return [window for _, window in self._reads(doc)]

    def _reads(self, doc: Mapping[str, Any]) -> list[tuple[str, Window]]:
        given: EffectiveContextSettings = self.settings
        n = len(self._documents[doc["document_id"]].tokens)
        sizes = given.short_window or 0, given.trained_window or 0
        return windows_of(n, *sizes, given.reads, bool(given.bos))

    def _losses(self, doc: Mapping[str, Any], totals: Sequence[SumOfLogprobs]) -> Losses | None:
        """The losses of a text from the answers to its windows; None where a request failed."""
        logprobs = [total.logprobs for total in totals]
        if any(np.isnan(each).any() for each in logprobs):
            return None
        parts = [(*read, each) for read, each in zip(self._reads(doc), logprobs, strict=True)]
        return joined(parts, self._start, len(self._documents[doc["document_id"]].tokens))

    @property
    def _start(self) -> int:
        """Tokens of a text before the first that is scored, BOS not counted."""
        return document_tokens(self.settings.short_window, bool(self.settings.bos))

    def _describe(self, doc: Mapping[str, Any], totals: list[SumOfLogprobs]) -> list[Described]:
        """The blocks of a text beside its first window."""
        losses = self._losses(doc, totals)
        rows = block_rows(losses, self._start + bool(self.settings.bos)) if losses else []
        return [Described(rows, totals[0]), *(Described([each], each) for each in totals[1:])]

    def process_results(self, doc: Any, results: Sequence[Described]) -> dict[str, Any]:
        """Pairs of (nats, tokens) over a text; nothing where a request failed."""
        losses = self._losses(doc, [each.response for each in results])
        if losses is None:
            logger.error("%s has no result and does not count", doc["document_id"])
            return {}
        self.token_losses[doc["document_id"]] = losses
        found = {
            LOSS: losses.get(FULL),
            SHORT_LOSS: losses.get(SHORT),
            GAIN: gain_over(losses, losses, SHORT),
        }
        pairs = {
            metric: [0.0, 0]
            if values is None
            else [float(values.sum(dtype=np.float64)), values.size]
            for metric, values in found.items()
        }
        return with_stderr(pairs)

    def metric_names(self) -> list[str]:
        """Every metric of this run, without standard errors."""
        return [LOSS, SHORT_LOSS, GAIN]


def scored_requests(model: Any, requests: Sequence[WindowRequest]) -> list[SumOfLogprobs]:
    """The answers of a model to requests of these tasks, each with the part of every token."""
    pairs = [(context, scored) for _, context, scored in (each.token_parts for each in requests)]
    return [
        SumOfLogprobs(float(each.sum(dtype=np.float64)), each)
        for each in token_logprobs(model, pairs)
    ]


def complete_settings(
    given: EffectiveContextSettings, limit: LengthLimit, trained: int | None, *, has_bos: bool
) -> EffectiveContextSettings:
    """The settings with the defaults that depend on the model filled in.

    Args:
        given: as the user wrote them.
        limit: of the run's backend; the length of the texts where none is given.
        trained: the length that the checkpoint's config claims; None where there is none to read.
        has_bos: whether the tokenizer has a BOS token.

    Raises:
        SettingError: settings that do not fit each other, or no trained length is known.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    bos = begins_with_bos(given.bos, has_bos)
    lengths = given.context_length or (limit.known - limit.after_window,)
    if given.short_window is None and trained is None:
        raise SettingError(
            "short_window: the checkpoint names no trained length; give short_window, the tokens "
            "of a short window"
        )
    short = given.short_window or default_short_window(trained or 0)
    if not 2 <= short < lengths[0]:
        allowed = f"2 to {lengths[0] - 1}, less than the shortest text's context_length"
        raise SettingError(not_allowed("short_window", short, allowed))
    longer = given.trained_window
    if longer is None:  # the same in all cells of a sweep, whatever each of them may read
        longer = (trained or 0) - limit.after_window
    if given.reads == "windows" and limit.tokens:
        longer = min(longer, limit.tokens - limit.after_window)
    longest = lengths[-1] if given.reads != "windows" else short
    limit.check(longest, "context_length", extra=limit.after_window)
    least = max(given.min_tokens or document_tokens(lengths[-1], bos), short + 1)
    return given.changed(
        context_length=lengths,
        short_window=short,
        trained_window=longer if longer > short else 0,
        bos=bos,
        min_tokens=least,
    )
