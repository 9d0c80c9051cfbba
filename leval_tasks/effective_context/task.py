"""Effective context length, as lm-eval tasks: the loss of each token with full context, and of the reference.

A document is read twice: once in full, and once by the reference, in windows of the native context
length that
move by half of it. `loss` and `reference_loss` are the mean losses of the two reads in nats/token.
`loss_difference` is the mean of their clipped difference, full minus reference: positive is worse.
The first item of a sample's `filtered_resps` holds the sums over blocks of 64 tokens from which
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
from leval_tasks.common.token_logprobs import (
    Logprobs,
    SumOfLogprobs,
    check_reports_tokens,
    scoring_of,
)
from leval_tasks.perplexity.task import PerplexityTask, Window, make_windows
from leval_tasks.statistics.effective_context import Floats, block_sums, clipped_difference
from resonance_vllm.common.errors import SettingError, invalid_value_message

FULL = "full"
"""The read of a whole document in one pass."""

REFERENCE = "reference"
"""The read in windows of the native context length."""

ALL = "all"
"""Both reads; a metric of both is of their difference."""

Losses = Mapping[str, Logprobs]
"""Read -> nats of each scored token, float32 `[tokens]`."""

METRICS = {"loss": FULL, "reference_loss": REFERENCE, "loss_difference": ALL}
"""Metric -> the reads that it is computed from."""


class EffectiveContextTask(PerplexityTask):
    """One corpus, of which each document is read in full and by the reference."""

    settings_type = EffectiveContextSettings

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._filters = [FilterEnsemble("none", [lambda: QuestionFilter(self._describe)])]
        self.token_losses: dict[str, Losses] = {}
        """Document -> read -> nats of each token, filled when results are processed."""

    @cached_property
    def settings(self) -> Any:
        """Return the settings of this run, complete."""
        native_length = shipped_length(self._metadata)
        limit = find_limit(self._metadata)
        self._config.metadata["shipped_length"] = native_length
        settings = complete_settings(self._requested, limit, native_length)
        self._window_positions = moving_window(settings.window or 0, limit)
        return settings

    def _document_tokens(self, full_window: int) -> tuple[int | None, int]:
        """Return the tokens of a document: those of one window of the context length."""
        return full_window, full_window

    def build_all_requests(self, **kwargs: Any) -> None:
        """Build the requests as lm-eval does, for a model that reports the log-probability of each token."""
        model = running_model()
        if model is not None:
            check_reports_tokens(scoring_of(model), type(model).__name__)
        super().build_all_requests(**kwargs)

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """Return all windows of a document: the full one, then those of the reference."""
        return [window for _, window in self._reads(doc)]

    def _reads(self, doc: Mapping[str, Any]) -> list[tuple[str, Window]]:
        """Return the windows of a document, each with the read that it belongs to."""
        settings = self.settings
        tokens = len(self._documents[doc["document_id"]].tokens)
        within_window = tokens + len(self._bos) <= settings.window
        reads = settings.reads
        if reads == ALL and within_window:  # both reads would be the same
            reads = FULL
        return windows_of(tokens, self._start, self._window_positions, reads, bool(self._bos))

    def _losses(self, doc: Mapping[str, Any], totals: Sequence[SumOfLogprobs]) -> Losses:
        """Return the losses of a document's scored tokens by read, from the answers to its windows.

        The windows of a read score different tokens, and together all of them.
        """
        start = self._start
        scored_tokens = len(self._documents[doc["document_id"]].tokens) - start
        losses: dict[str, Logprobs] = {}
        for (read, window), total in zip(self._reads(doc), totals, strict=True):
            if read not in losses:
                losses[read] = np.full(scored_tokens, np.nan, np.float32)
            losses[read][window.score_start - start : window.end - start] = -total.logprobs
        return losses

    @property
    def _start(self) -> int:
        """Return the tokens of a document before the first that is scored, BOS not counted."""
        settings = self.settings
        return scored_from(settings.window, settings.context_length[0]) - len(self._bos)

    def _describe(self, doc: Mapping[str, Any], totals: list[SumOfLogprobs]) -> list[Described]:
        """Return the blocks of a document beside the answer to its first window."""
        first, *others = totals
        first_position = self._start + len(self._bos)
        rows = block_rows(self._losses(doc, totals), first_position)
        return [Described(rows, first), *(Described([total], total) for total in others)]

    def process_results(self, doc: Any, results: Sequence[Described]) -> dict[str, Any]:
        """Return a document's part in each metric, and keep the losses of its tokens.

        They are kept in `token_losses`, from which a sweep saves them. Losses that are NaN or
        infinite are logged, and make the metric NaN.

        Args:
            doc: the document.
            results: the answers to its windows, in the order of `windows`.

        Returns:
            Metric -> sum over the scored tokens in nats, and their number, which is 0 where the
            document was not read as the metric needs; the same under the names of standard errors.
        """
        totals = [result.response for result in results]
        losses = self._losses(doc, totals)
        self.token_losses[doc["document_id"]] = losses
        self._report_not_finite(doc["document_id"], self.windows(doc), totals)
        sums_and_tokens = {}
        for metric in self.metric_names():
            reads = METRICS[metric]
            values: Any = None
            if reads == ALL:
                values = differences(losses)
            elif reads in losses:
                values = losses[reads]
            if values is None:
                sums_and_tokens[metric] = [0.0, 0]
            else:
                sums_and_tokens[metric] = [float(values.sum(dtype=np.float64)), values.size]
        return with_stderr(sums_and_tokens)

    def metric_names(self) -> list[str]:
        """Return every metric of this run, without standard errors."""
        requested = self._requested.reads
        return [metric for metric, reads in METRICS.items() if requested in (ALL, reads)]


def moving_window(window: int, limit: LengthLimit) -> int:
    """Return the positions of the reference's windows on a backend.

    vLLM generates a token after each prompt, so that its prompts may be one position shorter than
    its limit. The tokens that are scored are the same on every backend.
    """
    fits = limit.tokens is None or window + limit.after_window <= limit.tokens
    return window if fits else window - limit.after_window


def complete_settings(
    requested: EffectiveContextSettings, limit: LengthLimit, native_length: int | None
) -> EffectiveContextSettings:
    """Return the settings with the length of the documents, by default the backend's limit, and the window.

    Args:
        requested: the settings of the run.
        limit: what the backend reads.
        native_length: what the checkpoint's config says; None where there is none to read.

    Raises:
        SettingError: settings contradict each other, or no native context length is known.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    length, *further_lengths = requested.context_length or (limit.known - limit.after_window,)
    if further_lengths:
        allowed = "one length; a sweep makes a run of each of its context_lengths"
        raise SettingError(
            invalid_value_message("context_length", requested.context_length, allowed)
        )
    window = requested.window or native_length
    if window is None:
        raise SettingError(
            "window: the checkpoint's config states no native context length; give the longest length "
            "that the model reads well"
        )
    start = scored_from(window, length)
    if length <= start:
        allowed = f"above {start}, from which position on documents are scored"
        raise SettingError(invalid_value_message("context_length", length, allowed))
    longest_read = length
    if requested.reads == REFERENCE:
        longest_read = min(length, moving_window(window, limit))
    limit.check(longest_read, "context_length", extra=limit.after_window)
    return requested.with_changes(context_length=(length,), window=window)


def windows_of(n: int, start: int, window: int, reads: str, bos: bool) -> list[tuple[str, Window]]:
    """Return every window of a document, with the read that it belongs to.

    The reference's windows move by half of their size, so that every token past the first window
    has at least half a window of context.

    Args:
        n: tokens of the document without BOS.
        start: first token that is scored.
        window: positions of the reference's windows, BOS included.
        reads: `all`, `full` or `reference`.
        bos: whether every window begins with BOS.
    """
    windows = []
    if reads in (ALL, FULL):
        windows.append((FULL, Window(n + bos, 0, start, n, bos)))
    if reads in (ALL, REFERENCE):
        for moving in make_windows(n, window, window // 2, "sliding", bos):
            score_start = max(moving.score_start, start)
            if score_start < moving.end:
                scored = Window(window, moving.start, score_start, moving.end, bos)
                windows.append((REFERENCE, scored))
    return windows


def block_rows(losses: Losses, start: int) -> list[list[float | None]]:
    """Return a row for each block of tokens: its first position, its tokens and three sums.

    Args:
        losses: the losses of a document by read.
        start: position of the first scored token, BOS counted.

    Returns:
        rows of start, tokens, and the sums of the losses in full, of the reference, and of the
        difference; None in place of a sum where a read is missing.
    """
    columns: list[list[float | None]] = []
    starts: list[float] = []
    sizes: list[float] = []
    for values in (losses.get(FULL), losses.get(REFERENCE), differences(losses)):
        if values is None:
            columns.append([])
            continue
        sums, tokens = block_sums(np.asarray(values, np.float64))
        columns.append(sums.tolist())
        starts = (start + np.cumsum(tokens) - tokens).tolist()
        sizes = tokens.tolist()
    columns = [column or [None] * len(starts) for column in columns]
    return [list(row) for row in zip(starts, sizes, *columns, strict=True)]


def differences(losses: Losses) -> Floats | None:
    """Return the clipped difference of each token, full minus reference; None without both reads."""
    if FULL not in losses or REFERENCE not in losses:
        return None
    return clipped_difference(losses[FULL], losses[REFERENCE])
