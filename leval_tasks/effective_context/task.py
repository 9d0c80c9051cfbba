"""Effective context length, as lm-eval tasks: the loss of each token with full context, and of the reference.

A document is read twice: once in full, and once by the reference, in windows of the native context length that
move by half of it. `loss` and `reference_loss` are the mean losses of the two reads in nats/token.
`loss_difference` is the mean of their clipped difference, full minus reference: positive is worse. The first
item of a sample's `filtered_resps` holds the sums over blocks of 64 tokens from which
`leval_tasks.statistics.effective_context` computes the intervals.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from lm_eval.api.filter import FilterEnsemble

from leval_tasks.common.lm_task import Described, QuestionFilter
from leval_tasks.common.metadata import EffectiveContextSettings, scored_from
from leval_tasks.common.metrics import with_stderr
from leval_tasks.common.model import LengthLimit, find_limit, running_model, shipped_length
from leval_tasks.common.token_logprobs import Logprobs, SumOfLogprobs, check_reports_tokens
from leval_tasks.perplexity.task import PerplexityTask, Window, make_windows
from leval_tasks.statistics.effective_context import Floats, block_sums, clipped_difference
from resonance_vllm.common.errors import SettingError, invalid_value_message

FULL, REFERENCE = "full", "reference"

Losses = Mapping[str, Logprobs]
"""Read -> nats of each scored token, float32 `[tokens]`."""

METRICS = {"loss": FULL, "reference_loss": REFERENCE, "loss_difference": "all"}
"""Metric -> the read that it is computed from. The difference needs both."""


class EffectiveContextTask(PerplexityTask):
    """One corpus."""

    settings_type = EffectiveContextSettings

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._filters = [FilterEnsemble("none", [lambda: QuestionFilter(self._describe)])]
        self.token_losses: dict[str, Losses] = {}
        """Document -> read -> nats of each token, once results were processed."""

    @cached_property
    def settings(self) -> Any:
        """The settings of this run, complete."""
        shipped, limit = shipped_length(self._metadata), find_limit(self._metadata)
        self._config.metadata["shipped_length"] = shipped
        settings = complete_settings(self._given, limit, shipped)
        self._moving = moving_window(settings.window or 0, limit)
        return settings

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, for a model that reports the log-probability of each token."""
        if running_model() is not None:
            check_reports_tokens(running_model())
        super().build_all_requests(**kwargs)

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a text: the full one, then those of the other reads."""
        return [window for _, window in self._reads(doc)]

    def _reads(self, doc: Mapping[str, Any]) -> list[tuple[str, Window]]:
        given, n = self.settings, len(self._documents[doc["document_id"]].tokens)
        within = given.reads == "all" and n + len(self._bos) <= given.window
        reads = FULL if within else given.reads
        return windows_of(n, self._start, self._moving, reads, bool(self._bos))

    def _losses(self, doc: Mapping[str, Any], totals: Sequence[SumOfLogprobs]) -> Losses:
        """The losses of a text from the answers to its windows."""
        losses: dict[str, Logprobs] = {}
        start, n = self._start, len(self._documents[doc["document_id"]].tokens)
        for (read, window), total in zip(self._reads(doc), totals, strict=True):
            of_read = losses.setdefault(read, np.full(n - start, np.nan, np.float32))
            of_read[window.score_start - start : window.end - start] = -total.logprobs
        return losses

    @property
    def _start(self) -> int:
        """Tokens of a text before the first that is scored, BOS not counted."""
        given = self.settings
        return scored_from(given.window, given.context_length[0]) - len(self._bos)

    def _describe(self, doc: Mapping[str, Any], totals: list[SumOfLogprobs]) -> list[Described]:
        """The blocks of a text beside the answer to its first window."""
        rows = block_rows(self._losses(doc, totals), self._start + len(self._bos))
        return [Described(rows, totals[0]), *(Described([each], each) for each in totals[1:])]

    def process_results(self, doc: Any, results: Sequence[Described]) -> dict[str, Any]:
        """Pairs of (nats, tokens) over a text; of no tokens for what this text was not read for."""
        losses = self._losses(doc, [each.response for each in results])
        self.token_losses[doc["document_id"]] = losses
        pairs = {}
        for metric in self.metric_names():
            values = (
                differences(losses) if metric == "loss_difference" else losses.get(METRICS[metric])
            )
            total = 0.0 if values is None else float(values.sum(dtype=np.float64))
            pairs[metric] = [total, 0 if values is None else values.size]
        return with_stderr(pairs)

    def metric_names(self) -> list[str]:
        """Every metric of this run, without standard errors."""
        reads = self._given.reads
        return [metric for metric, read in METRICS.items() if reads in ("all", read)]


def moving_window(window: int, limit: LengthLimit) -> int:
    """Positions of the windows: vLLM, which generates a token after each prompt, may read one less.

    The tokens that are scored are the same on every backend.
    """
    full = limit.tokens is None or window + limit.after_window <= limit.tokens
    return window if full else window - limit.after_window


def complete_settings(
    given: EffectiveContextSettings, limit: LengthLimit, trained: int | None
) -> EffectiveContextSettings:
    """The settings with the length of the documents, by default the backend's limit, and the window.

    `trained` is the length that the checkpoint's config claims; None where there is none to read.

    Raises:
        SettingError: settings that do not fit each other, or no native context length is known.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    length, *more = given.context_length or (limit.known - limit.after_window,)
    if more:
        allowed = "one length; a sweep makes a run of each of its context_lengths"
        raise SettingError(invalid_value_message("context_length", given.context_length, allowed))
    window = given.window or trained
    if window is None:
        raise SettingError(
            "window: the checkpoint names no native context length; give the tokens that it reads well"
        )
    start = scored_from(window, length)
    if not start < length:
        allowed = f"above {start}, from which position on documents are scored"
        raise SettingError(invalid_value_message("context_length", length, allowed))
    longest = min(length, moving_window(window, limit)) if given.reads == REFERENCE else length
    limit.check(longest, "context_length", extra=limit.after_window)
    return given.with_changes(context_length=(length,), window=window)


def windows_of(n: int, start: int, window: int, reads: str, bos: bool) -> list[tuple[str, Window]]:
    """Every window of a text of `n` tokens without BOS, with the read that it belongs to.

    Windows of `window` positions, BOS included, move by half of their size, so that a token past
    the first one has half a window of context at least. Tokens are scored from `start` on.
    """
    found = []
    if reads != REFERENCE:
        found.append((FULL, Window(n + bos, 0, start, n, bos)))
    if reads != FULL:
        moving = make_windows(n, window, window // 2, "sliding", bos)
        found += [
            (REFERENCE, Window(window, each.start, max(each.score_start, start), each.end, bos))
            for each in moving
            if each.end > start
        ]
    return found


def block_rows(losses: Losses, start: int) -> list[list[float | None]]:
    """Of each block of tokens from position `start` on, BOS counted: its start, tokens, and sums.

    The sums are of the losses in full, of the reference, and of the difference; None where a read is missing.
    """
    reads = [losses.get(FULL), losses.get(REFERENCE), differences(losses)]
    found = [None if each is None else block_sums(np.asarray(each, np.float64)) for each in reads]
    tokens = next(each[1] for each in found if each is not None)
    starts = start + np.cumsum(tokens) - tokens
    sums = [[None] * tokens.size if each is None else each[0].tolist() for each in found]
    return [list(row) for row in zip(starts.tolist(), tokens.tolist(), *sums, strict=True)]


def differences(losses: Losses) -> Floats | None:
    """Return the clipped difference of each token, full minus reference; None without both reads."""
    if FULL not in losses or REFERENCE not in losses:
        return None
    return clipped_difference(losses[FULL], losses[REFERENCE])
