"""How far a model reads, as lm-eval tasks: the same tokens scored after more of their text.

A length `c` counts all that the model sees, BOS and target included. `loss@c` is in nats a token,
`gain@c` the difference from the loss at the next shorter length, `key_loss@c` the loss on the
tokens that long context helps, on backends that report each token's (`hf-long`, `vllm-long`).
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict

from leval_border.files import user_path
from leval_tasks.context import LengthLimit, claimed_lengths, find_limit
from leval_tasks.data import numbered_rows, read_bytes
from leval_tasks.metadata import ReachSettings, TextSettings
from leval_tasks.metrics import compose, directions
from leval_tasks.perplexity.documents import PYDOCS
from leval_tasks.perplexity.metrics import with_stderr
from leval_tasks.perplexity.task import PerplexityTask, begins_with_bos, check_longest
from leval_tasks.perplexity.windows import Window
from leval_tasks.reach.targets import (
    Span,
    check_targets,
    default_lengths,
    key_places,
    merged,
    places_within,
    spacing,
    target_ends,
    target_windows,
)

LOSS, GAIN, KEY_LOSS = "loss", "gain", "key_loss"
KEY_SPANS = "key_spans"


class ReachTask(PerplexityTask):
    """Fixed targets of one corpus; keys count at the top of the metadata, or under `reach`."""

    settings_type = ReachSettings

    def _complete(self, *, has_bos: bool) -> TextSettings:
        shipped, claimed = claimed_lengths(self._metadata)
        self._config.metadata.update(shipped_length=shipped, claimed_length=claimed)
        endless = self._metadata["corpus"] == PYDOCS
        limit = find_limit(self._metadata)
        return complete_settings(self._given, limit, shipped, has_bos=has_bos, endless=endless)

    def _recorded(self, settings: TextSettings) -> dict[str, Any]:
        assert isinstance(settings, ReachSettings)
        return settings.recorded() | {"step": step_of(settings), "key_tokens": self._reference[1]}

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a text, shortest context length first."""
        given: ReachSettings = self.settings
        n, step = len(self._documents[doc["document_id"]].tokens), step_of(given)
        ends = target_ends(n, given.longest, step, given.num_targets, bool(given.bos))
        return target_windows(
            ends, given.context_length or (), given.target_tokens, bool(given.bos)
        )

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Pairs of (nats, tokens) a length, over all targets of a text; zeros where one failed."""
        scored, failed = self.scored_windows(doc, results)
        lengths = self.settings.context_length
        nats = dict.fromkeys(lengths, 0.0)
        tokens = dict.fromkeys(lengths, 0)
        for window, each in scored:
            nats[window.context_length] += each
            tokens[window.context_length] += window.scored
        values = {compose(LOSS, each): [nats[each], tokens[each]] for each in lengths}
        for shorter, longer in itertools.pairwise(lengths):
            values[compose(GAIN, longer)] = [nats[shorter] - nats[longer], tokens[longer]]
        parts = [list(getattr(total, "logprobs", ())) for total, _ in results]
        spans: dict[str, Any] = {}
        if not failed and all(len(p) == self.settings.target_tokens for p in parts):
            keys, spans[KEY_SPANS] = self._key_tokens(doc, parts)
            values |= keys
        return with_stderr(values, failed) | spans

    def _key_tokens(
        self, doc: Mapping[str, Any], parts: Sequence[Sequence[float]]
    ) -> tuple[dict[str, list[float]], list[Span]]:
        """Pairs of (nats, tokens) a length over the key tokens, and where they are in the text."""
        document, lengths = self._documents[doc["document_id"]], self.settings.context_length
        nats: dict[int, list[float]] = {length: [] for length in lengths}
        spans: list[Span] = []
        for window, logprobs in zip(self.windows(doc), parts, strict=True):
            nats[window.context_length] += [-each for each in logprobs]
            if window.context_length == lengths[0]:
                spans += document.spans(window.score_start, window.end)
        reference, _ = self._reference
        if reference is None:
            # the long context is the trained length, if it is one of the run's
            shipped = self._config.metadata["shipped_length"]
            trained = [n for n in lengths[1:] if shipped and n <= shipped]
            places = key_places(nats[lengths[0]], nats[max(trained, default=lengths[-1])])
        else:
            places = places_within(reference.get(doc["document_id"], []), spans)
        keys = {
            compose(KEY_LOSS, length): [math.fsum(of_all[at] for at in places), len(places)]
            for length, of_all in nats.items()
        }
        return keys, merged(spans[at] for at in places)

    @cached_property
    def _reference(self) -> tuple[dict[str, list[Span]] | None, str]:
        """Key tokens of a reference model's run (None without one), and what results call them."""
        if not self._given.key_tokens:
            return None, "own"
        spans, digest = read_reference(self._given.key_tokens)
        return spans, digest[:16]

    def metric_names(self) -> list[str]:
        """Every metric of this run but `failed`, without standard errors."""
        lengths = self.settings.context_length
        losses = [compose(LOSS, each) for each in lengths]
        keys = [compose(KEY_LOSS, each) for each in lengths]
        return [*losses, *keys, *(compose(GAIN, each) for each in lengths[1:])]

    def aggregation(self) -> dict[str, Any]:
        """Those of every perplexity task, and the number of stretches of key tokens."""
        return {**super().aggregation(), KEY_SPANS: lambda spans: sum(map(len, spans))}

    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return directions((*self.metric_names(), KEY_SPANS, "failed"))


def complete_settings(
    given: ReachSettings, limit: LengthLimit, trained: int | None, *, has_bos: bool, endless: bool
) -> ReachSettings:
    """The settings with the defaults that depend on the model filled in.

    Args:
        given: as the user wrote them.
        limit: of the run's backend.
        trained: the length that the checkpoint's config claims; None where there is none to read.
        has_bos: whether the tokenizer has a BOS token.
        endless: whether texts are cut to the size that the targets need.

    Raises:
        SettingError: settings that do not fit each other, or `bos: true` without a BOS token.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    bos = begins_with_bos(given.bos, has_bos)
    lengths = given.context_length or (limit.known - limit.after_window,)
    lengths = lengths if len(lengths) > 1 else default_lengths(trained or lengths[0], lengths[0])
    check_targets(lengths, given.target_tokens, bos)
    full = check_longest(given, lengths[-1], limit, bos)
    least = max(given.min_tokens or full, full)
    settings = given.changed(context_length=lengths, min_tokens=least, bos=bos)
    if endless and not given.max_tokens:
        size = full + (given.num_targets - 1) * step_of(settings)
        settings = settings.changed(max_tokens=size)
    return settings


def step_of(settings: ReachSettings) -> int:
    """Tokens between the ends of neighbouring targets, from complete settings."""
    lengths = settings.context_length or ()
    return spacing(lengths, settings.target_tokens, settings.num_targets, bool(settings.bos))


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")

    document_id: str


class _Sample(BaseModel):
    """A line of a samples file; further fields are lm-eval's own."""

    model_config = ConfigDict(extra="ignore")

    doc: _Document
    key_spans: list[Span]


def read_reference(path: str) -> tuple[dict[str, list[Span]], str]:
    """Key tokens of each document as stretches of its text, and the file's SHA-256.

    Args:
        path: `samples_reach_*.jsonl` of a run on a backend that reports key tokens.

    Raises:
        DataError: the file is missing or damaged, or has no key tokens.
    """
    content = read_bytes(user_path(path, "key_tokens"))
    rows = numbered_rows(content, path, _Sample)
    spans = {row.doc.document_id: row.key_spans for _, row in rows}
    return spans, hashlib.sha256(content).hexdigest()
