"""Perplexity as lm-eval tasks: token windows out, sums and counts of each document back.

Token ids go to the model as they are, nothing is tokenised twice or cut.

A document is `n` tokens without special tokens, numbered from 0. A window of `W` positions holds
`W` tokens, BOS included, so it carries `w = W - 1` document tokens with BOS and `w = W` without.
Without BOS nothing stands before the document's first token, and that token is never scored.
"""

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks.common.lm_task import PlainTask
from leval_tasks.common.metadata import Mode, PerplexitySettings, TextSettings, read_metadata
from leval_tasks.common.metrics import OURS, aggregations, compose, directions, split, with_stderr
from leval_tasks.common.model import LengthLimit, find_limit, find_tokenizer, running_model
from leval_tasks.common.token_logprobs import REQUEST, scored_requests
from leval_tasks.perplexity import documents
from leval_tasks.perplexity.documents import TokenizedText
from resonance_vllm.common.errors import SettingError, invalid_value_message

logger = logging.getLogger(__name__)
METRICS = ("token_perplexity", "paper_perplexity", "word_perplexity", "byte_perplexity",
           "bits_per_byte")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """One forward pass: document tokens `start..end-1`, of which `score_start..end-1` are scored.

    `context_length` is the `W` that it was made for, `bos` whether BOS is put in front.
    """

    context_length: int
    start: int
    score_start: int
    end: int
    bos: bool

    @property
    def scored(self) -> int:
        """Number of tokens scored."""
        return self.end - self.score_start


def make_windows(n: int, context_length: int, stride: int, mode: Mode, bos: bool) -> list[Window]:
    """The windows of one document at one context length, in reading order.

    Windows of `context_length` positions, at least 2, begin at 0, S, 2S, …; the first one scores
    all its tokens, a later one those that the one before did not reach. Same as
    `eval/perplexity.py` of YaRN and of Resonance RoPE for `stride <= w`.

    Args:
        n: tokens of the document.
        context_length: `W`, BOS included.
        stride: `S` tokens, 1 to `W - 1`, so that a token is before those that a window scores.
        mode: `sliding`, or `truncate`: the first window alone.
        bos: whether every window begins with BOS.
    """
    w, scored_up_to, start = context_length - bos, 0 if bos else 1, 0
    windows: list[Window] = []
    while scored_up_to < n:
        end = min(start + w, n)
        windows.append(Window(context_length, start, scored_up_to, end, bos))
        start, scored_up_to = start + stride, end
    return windows[:1] if mode == "truncate" else windows


def document_pairs(
    nll: Sequence[float], scored: Sequence[int], text: str
) -> dict[str, list[float]]:
    """The pairs of numerator and denominator that one document gives at one context length.

    They are made of the nats and the number of scored tokens of each window, and of the text that
    was scored. `paper_perplexity` is the sum of the windows' mean nats over the windows: each
    counts once whatever it scores, as in the scripts of YaRN and Resonance RoPE. The others are
    nats over tokens, words or UTF-8 bytes.
    """
    total, text_bytes = math.fsum(nll), len(text.encode())
    window_means = math.fsum(x / n for x, n in zip(nll, scored, strict=True))
    return {
        "token_perplexity": [total, sum(scored)],
        "paper_perplexity": [window_means, len(scored)],
        "word_perplexity": [total, len(text.split())],
        "byte_perplexity": [total, text_bytes],
        "bits_per_byte": [total, text_bytes],
    }


class PerplexityTask(PlainTask):
    """One corpus read window by window.

    Documents and tokenizer are read when requests are built.
    """

    VERSION = 1
    OUTPUT_TYPE = REQUEST

    settings_type: type[TextSettings] = PerplexitySettings

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._metadata = dict(config.get("metadata") or {})
        lm_config = TaskConfig(
            task=config.get("task"), output_type=REQUEST, num_fewshot=0, metadata=self._metadata
        )
        self._configure(lm_config)
        self._given: Any = read_metadata(self.settings_type, self._metadata)

    def test_docs(self) -> list[dict[str, Any]]:
        """What is logged of each document: name, size and digest of its tokens, never its text."""
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
        """The token id that windows begin with; empty where the tokenizer has no BOS."""
        bos = find_tokenizer(self._metadata).bos_token_id
        return [] if bos is None else [bos]

    @cached_property
    def settings(self) -> Any:
        """The settings of this run, complete."""
        return complete_settings(self._given, find_limit(self._metadata), bos=bool(self._bos))

    @cached_property
    def _documents(self) -> dict[str, TokenizedText]:
        encode, settings = documents.encoder(find_tokenizer(self._metadata)), self.settings
        if not self._bos:
            logger.warning(
                "windows begin without BOS: the first token of each document is not scored"
            )
        corpus = str(self._metadata["corpus"])
        full = settings.context_length[-1] - len(self._bos)
        longest = getattr(settings, "max_tokens", full)  # of an effective context: one window
        if corpus == documents.PYDOCS:
            size = longest or full * (2 if settings.mode == "sliding" else 1)
            drawn, data = documents.draw_pydocs(encode, settings, size)
        else:
            corpus_documents, data = documents.read_corpus(corpus, settings.data_dir)
            drawn = documents.draw(corpus_documents, encode, settings, full, longest)
        self._config.metadata.update(data=data, settings=settings.recorded(), documents=len(drawn))
        return {each.document_id: each for each in drawn}

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, of plain text: no chat template, and never from its request cache."""
        model = running_model()
        if model is not None:  # lm-eval calls the method of the model that a request's type names
            vars(model).setdefault(REQUEST, partial(scored_requests, model))
        super().build_all_requests(**kwargs)

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The document's name."""
        return str(doc["document_id"])

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a document, shortest context length first."""
        settings = self.settings
        n = len(self._documents[doc["document_id"]].tokens)
        return [
            window
            for length in settings.context_length
            for window in make_windows(n, length, settings.stride, settings.mode, bool(self._bos))
        ]

    def construct_requests(self, doc: Any, ctx: str, **kwargs: Any) -> list["WindowRequest"]:
        """One request a window."""
        tokens = self._documents[doc["document_id"]].tokens
        return [
            WindowRequest(
                window,
                self._bos * window.bos + tokens[window.start : window.score_start],
                tokens[window.score_start : window.end],
                doc=doc,
                idx=index,
                metadata=kwargs["metadata"],
            )
            for index, window in enumerate(self.windows(doc))
        ]

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Pairs of (numerator, denominator) a metric."""
        scored = list(zip(self.windows(doc), [-float(total) for total in results], strict=True))
        document = self._documents[doc["document_id"]]
        values: dict[str, list[float]] = {}
        for length in self.settings.context_length:
            windows, nll = zip(*(w for w in scored if w[0].context_length == length), strict=True)
            text = document.scored_text(windows[0].score_start, windows[-1].end)
            pairs = document_pairs(nll, [window.scored for window in windows], text)
            values |= {compose(name, length): pair for name, pair in pairs.items()}
        return with_stderr(values)

    def metric_names(self) -> list[str]:
        """Every metric of this run, without standard errors."""
        lengths = self.settings.context_length
        return [compose(name, length) for length in lengths for name in METRICS]

    def aggregation(self) -> dict[str, Any]:
        """One division over all documents a metric, and its standard error."""
        out: dict[str, Any] = {}
        for name in self.metric_names():
            out[name], out[f"{name}_stderr"] = aggregations(OURS[split(name)[0]].aggregation)
        return out

    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return directions(self.metric_names())


def complete_settings(
    given: PerplexitySettings, limit: LengthLimit, *, bos: bool
) -> PerplexitySettings:
    """The settings with the context length, by default the backend's limit.

    Raises:
        SettingError: settings that do not fit each other.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    lengths = given.context_length or (limit.known - limit.after_window,)
    most = lengths[0] - 1
    if given.mode == "sliding" and given.stride > most:  # tokens would never be scored
        allowed = f"1 to {most}, the tokens that a window of {lengths[0]} positions can score"
        raise SettingError(invalid_value_message("stride", given.stride, allowed))
    full = lengths[-1] - bos
    if given.max_tokens is not None and given.max_tokens < full:
        window = f"at least {full}, a window of the longest context"
        raise SettingError(invalid_value_message("max_tokens", given.max_tokens, window))
    limit.check(lengths[-1], "context_length", extra=limit.after_window)
    return given.with_changes(context_length=lengths)


class WindowRequest(Instance):
    """One window for a model, which `leval_tasks.common.token_logprobs.scored_requests` answers.

    lm-eval logs `arguments` of a request: here a line that names the window and the digest of its
    tokens, never the tokens. Those are the `token_parts` after None (no cache key): ids of the
    context, ids of the scored tokens.
    """

    def __init__(self, window: Window, context: list[int], scored: list[int], **kwargs: Any):
        label = (
            f"{kwargs['doc']['document_id']} @{window.context_length}: tokens {window.start}-"
            f"{window.end}, scored from {window.score_start}, sha256 {_digest((context, scored))}"
        )
        super().__init__(request_type=REQUEST, arguments=(label,), **kwargs)
        self.window, self.token_parts = window, (None, context, scored)


def _digest(tokens: Sequence[Any]) -> str:
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]
