"""Perplexity as lm-eval tasks: windows of tokens out, sums and counts of each document back.

Token ids are sent to the model as they are. Nothing is tokenized twice or cut.

A document has `n` tokens without special tokens, numbered from 0. A window of `W` positions has
`W` tokens, BOS
included, so it carries `w = W - 1` tokens of the document with BOS and `w = W` without. Without
BOS the document's first token has no context and is never scored.
"""

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks.common.data import title_of
from leval_tasks.common.lm_task import PlainTask
from leval_tasks.common.metadata import Mode, PerplexitySettings, TextSettings, read_metadata
from leval_tasks.common.metrics import OURS, aggregations, compose, directions, split, with_stderr
from leval_tasks.common.model import LengthLimit, find_limit, find_tokenizer, running_model
from leval_tasks.common.token_logprobs import (
    REQUEST,
    check_scores_text,
    scored_requests,
    scoring_of,
)
from leval_tasks.perplexity.corpora import Selection, read_corpus, read_same_text
from leval_tasks.perplexity.documents import DocumentTokens, encoder
from resonance_vllm.common.errors import SettingError, invalid_value_message

logger = logging.getLogger(__name__)
METRICS = (
    "token_perplexity",
    "paper_perplexity",
    "word_perplexity",
    "byte_perplexity",
    "bits_per_byte",
)
"""Metrics of a perplexity task at each context length."""


@dataclass(frozen=True, slots=True)
class Window:
    """One forward pass over the tokens `start` to `end - 1` of a document.

    Attributes:
        context_length: the `W` that the window was made for.
        start: first token of the document in the window.
        score_start: first token that is scored.
        end: token after the last one.
        bos: whether BOS is put in front.
    """

    context_length: int
    start: int
    score_start: int
    end: int
    bos: bool

    @property
    def scored(self) -> int:
        """Return the number of tokens that are scored."""
        return self.end - self.score_start


def make_windows(n: int, context_length: int, stride: int, mode: Mode, bos: bool) -> list[Window]:
    """Return the windows of one document at one context length, in reading order.

    Windows begin at 0, S, 2S, …. The first one scores all its tokens (without BOS all but the
    first), a later one those that the one before did not reach. For `stride <= W` this is what
    `eval/perplexity.py` of YaRN and of Resonance RoPE do.

    Args:
        n: tokens of the document.
        context_length: `W`, at least 2, BOS included.
        stride: `S` tokens, 1 to `W - 1`, so that every scored token has one before it.
        mode: `sliding`, or `truncate` for the first window alone.
        bos: whether every window begins with BOS.
    """
    width = context_length - bos
    start = 0
    scored_up_to = 0 if bos else 1
    windows: list[Window] = []
    while scored_up_to < n:
        end = min(start + width, n)
        windows.append(Window(context_length, start, scored_up_to, end, bos))
        start += stride
        scored_up_to = end
    return windows[:1] if mode == "truncate" else windows


def document_pairs(
    nll: Sequence[float], scored: Sequence[int], text: str
) -> dict[str, list[float]]:
    """Return the numerator and denominator that one document adds to each metric at one context length.

    `paper_perplexity` takes the windows' mean nats, so that each window counts once whatever it
    scores, as in the
    scripts of YaRN and Resonance RoPE. The other metrics are nats per token, word or UTF-8 byte.

    Args:
        nll: nats of each window.
        scored: number of scored tokens of each window.
        text: the text that was scored.
    """
    total = math.fsum(nll)
    text_bytes = len(text.encode())
    window_means = [nats / tokens for nats, tokens in zip(nll, scored, strict=True)]
    return {
        "token_perplexity": [total, sum(scored)],
        "paper_perplexity": [math.fsum(window_means), len(scored)],
        "word_perplexity": [total, len(text.split())],
        "byte_perplexity": [total, text_bytes],
        "bits_per_byte": [total, text_bytes],
    }


class PerplexityTask(PlainTask):
    """One corpus that is scored window by window.

    Documents and tokenizer are read when requests are built.
    """

    VERSION = 1
    OUTPUT_TYPE = REQUEST

    settings_type: type[TextSettings] = PerplexitySettings

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._metadata = dict(config.get("metadata") or {})
        self._requested: Any = read_metadata(self.settings_type, self._metadata)
        self.not_finite: dict[str, int] = {}
        """Document -> its first position with a loss that is NaN or infinite, BOS counted."""
        alias = Path(self._requested.file).stem if self._requested.file else None
        lm_config = TaskConfig(
            task=config.get("task"),
            task_alias=alias,  # documents of a user's file are shown under its name
            output_type=REQUEST,
            num_fewshot=0,
            metadata=self._metadata,
        )
        self._configure(lm_config)

    def test_docs(self) -> list[dict[str, Any]]:
        """Return what is logged of each document: name, size and digest of its tokens, never its text."""
        return [
            {
                "document_id": name,
                "cluster": name,
                "source": self._config.metadata["data"]["source"],
                "document_tokens": len(document.tokens),
                "tokens_sha256": _digest(document.tokens),
            }
            for name, document in self._documents.items()
        ]

    @cached_property
    def _bos(self) -> list[int]:
        """Return the token id that windows begin with; empty where the tokenizer has no BOS."""
        bos = find_tokenizer(self._metadata).bos_token_id
        return [] if bos is None else [bos]

    @cached_property
    def settings(self) -> Any:
        """Return the settings of this run, complete."""
        return complete_settings(self._requested, find_limit(self._metadata), bos=bool(self._bos))

    @cached_property
    def _documents(self) -> dict[str, DocumentTokens]:
        """Return the documents by name, and record in the metadata what was read."""
        settings = self.settings
        if not self._bos:
            logger.warning(
                "windows begin without BOS: the first token of each document is not scored"
            )
        documents, data = self._read_documents(settings.context_length[-1] - len(self._bos))
        self._config.metadata.update(
            data=data, settings=settings.recorded(), documents=len(documents)
        )
        # No published file of these corpora has a known digest: which one was read is said.
        self._config.task_alias = self._config.task_alias or title_of(str(self._config.task), data)
        return {document.document_id: document for document in documents}

    def _read_documents(self, full_window: int) -> Selection:
        """Return the documents and the description of their data.

        Args:
            full_window: tokens of a document in a window of the longest context length.
        """
        corpus = str(self._metadata["corpus"])
        encode = encoder(find_tokenizer(self._metadata))
        settings = self.settings
        if isinstance(settings, PerplexitySettings) and settings.max_characters is not None:
            return read_same_text(corpus, settings, encode, full_window, settings.max_characters)
        longest, size = self._document_tokens(full_window)
        return read_corpus(corpus, settings, encode, full_window, longest, size)

    def _document_tokens(self, full_window: int) -> tuple[int | None, int]:
        """Return the tokens to which documents are cut, and those of a piece of a bundled text.

        Args:
            full_window: tokens of a document in a window of the longest context length.
        """
        longest = self.settings.max_tokens
        windows = 2 if self.settings.mode == "sliding" else 1
        return longest, longest or windows * full_window

    def build_all_requests(self, **kwargs: Any) -> None:
        """Build the requests as lm-eval does, of plain text and never from its request cache."""
        model = running_model()
        if model is not None:  # lm-eval calls the method of the model that a request's type names
            check_scores_text(scoring_of(model), type(model).__name__)
            vars(model).setdefault(REQUEST, partial(scored_requests, model))
        super().build_all_requests(**kwargs)

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """Return the document's name."""
        return str(doc["document_id"])

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """Return all windows of a document, shortest context length first."""
        settings = self.settings
        n = len(self._documents[doc["document_id"]].tokens)
        windows: list[Window] = []
        for length in settings.context_length:
            windows += make_windows(n, length, settings.stride, settings.mode, bool(self._bos))
        return windows

    def construct_requests(self, doc: Any, ctx: str, **kwargs: Any) -> list["WindowRequest"]:
        """Return one request for each window."""
        tokens = self._documents[doc["document_id"]].tokens
        requests = []
        for index, window in enumerate(self.windows(doc)):
            bos = self._bos if window.bos else []
            context = bos + tokens[window.start : window.score_start]
            scored = tokens[window.score_start : window.end]
            requests.append(
                WindowRequest(
                    window, context, scored, doc=doc, idx=index, metadata=kwargs["metadata"]
                )
            )
        return requests

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Return a pair of numerator and denominator for each metric."""
        windows = self.windows(doc)
        self._report_not_finite(doc["document_id"], windows, results)
        document = self._documents[doc["document_id"]]
        answers = list(zip(windows, results, strict=True))
        values: dict[str, list[float]] = {}
        for length in self.settings.context_length:
            of_length = [(w, total) for w, total in answers if w.context_length == length]
            first = of_length[0][0]
            last = of_length[-1][0]
            pairs = document_pairs(
                nll=[-float(total) for _, total in of_length],
                scored=[window.scored for window, _ in of_length],
                text=document.scored_text(first.score_start, last.end),
            )
            values |= {compose(name, length): pair for name, pair in pairs.items()}
        return with_stderr(values)

    def _report_not_finite(
        self, document: str, windows: Sequence[Window], totals: Sequence[float]
    ) -> None:
        """Log and record the first position of a document whose loss is NaN or infinite, if any.

        The metrics of such a document are NaN. Without the position nobody could tell why.

        Args:
            document: its id.
            windows: all its windows.
            totals: the answers to them.
        """
        for window, total in zip(windows, totals, strict=True):
            if math.isfinite(total):
                continue
            position = first_not_finite(window, total)
            if position < self.not_finite.get(document, position + 1):
                self.not_finite[document] = position
        if document in self.not_finite:
            position = self.not_finite[document]
            logger.error(
                "%s: the loss of document %s is not a finite number from position %d on",
                *(self.task_name, document, position),
            )
            self._config.metadata["not_finite"] = dict(self.not_finite)

    def metric_names(self) -> list[str]:
        """Return every metric of this run, without standard errors."""
        lengths = self.settings.context_length
        return [compose(name, length) for length in lengths for name in METRICS]

    def aggregation(self) -> dict[str, Any]:
        """Return for each metric one division over all documents, and its standard error."""
        functions: dict[str, Any] = {}
        for name in self.metric_names():
            value, stderr = aggregations(OURS[split(name)[0]].aggregation)
            functions[name] = value
            functions[f"{name}_stderr"] = stderr
        return functions

    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric."""
        return directions(self.metric_names())


def first_not_finite(window: Window, total: float) -> int:
    """Return the first position of a document, BOS counted, whose loss is NaN or infinite.

    Args:
        window: a window whose sum is not finite.
        total: the sum. Where it carries no losses of tokens, the first scored token represents all.
    """
    position = window.score_start + window.bos
    logprobs = getattr(total, "logprobs", None)
    if logprobs is None or not len(logprobs):
        return position
    return position + int(np.isfinite(logprobs).argmin())


def complete_settings(
    requested: PerplexitySettings, limit: LengthLimit, *, bos: bool
) -> PerplexitySettings:
    """Return the settings with the context length, by default the backend's limit.

    Raises:
        SettingError: settings contradict each other.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    lengths = requested.context_length or (limit.known - limit.after_window,)
    if requested.max_characters is not None:
        _check_scores_same_text(requested)
    most = lengths[0] - 1
    if requested.mode == "sliding" and requested.stride > most:  # some tokens would not be scored
        allowed = f"1 to {most}, the tokens that a window of {lengths[0]} positions can score"
        raise SettingError(invalid_value_message("stride", requested.stride, allowed))
    full_window = lengths[-1] - bos
    if requested.max_tokens is not None and requested.max_tokens < full_window:
        allowed = f"at least {full_window}, a window of the longest context"
        raise SettingError(invalid_value_message("max_tokens", requested.max_tokens, allowed))
    limit.check(lengths[-1], "context_length", extra=limit.after_window)
    return requested.with_changes(context_length=lengths)


def _check_scores_same_text(requested: PerplexitySettings) -> None:
    """Refuse what would score another text for each tokenizer although `max_characters` is given."""
    if requested.mode != "sliding":
        raise SettingError(
            f"max_characters={requested.max_characters}: mode {requested.mode} scores the first window "
            "alone, which is another text for each tokenizer; add mode: sliding"
        )
    if requested.max_tokens is not None:
        raise SettingError(
            f"max_characters={requested.max_characters} and max_tokens={requested.max_tokens}: give one "
            "of them; tokens are another text for each tokenizer"
        )


class WindowRequest(Instance):
    """One window for a model, which `leval_tasks.common.token_logprobs.scored_requests` answers.

    lm-eval logs the `arguments` of a request. Here they are a line that names the window and the
    digest of its tokens, never the tokens. Those are in `token_parts`: None (no cache key), ids of
    the context, and ids of the scored tokens.
    """

    def __init__(self, window: Window, context: list[int], scored: list[int], **kwargs: Any):
        label = (
            f"{kwargs['doc']['document_id']} @{window.context_length}: tokens {window.start}-"
            f"{window.end}, scored from {window.score_start}, sha256 {_digest((context, scored))}"
        )
        super().__init__(request_type=REQUEST, arguments=(label,), **kwargs)
        self.window = window
        self.token_parts = (None, context, scored)


def _digest(tokens: Sequence[Any]) -> str:
    """Return 16 hex digits that identify a sequence of tokens."""
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]
