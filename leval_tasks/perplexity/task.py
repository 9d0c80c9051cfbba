"""Perplexity as lm-eval tasks: token windows out, sums and counts of each document back.

Token ids go to the model as they are, nothing is tokenised twice or cut. The softmax is float32 on
hf, hf-long, vllm and vllm-long; `local-completions` gives the server's own sums.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks.aggregation import aggregations, with_stderr
from leval_tasks.context import LengthLimit, find_limit
from leval_tasks.lm_task import PlainTask
from leval_tasks.metadata import PerplexitySettings, TextSettings, read_metadata
from leval_tasks.metrics import OURS, compose, directions, split
from leval_tasks.model import find_tokenizer, running_model
from leval_tasks.perplexity import documents
from leval_tasks.perplexity.documents import TokenizedText
from leval_tasks.perplexity.windows import (
    METRICS,
    Window,
    document_pairs,
    document_tokens,
    make_windows,
)
from leval_tasks.token_logprobs import REQUEST, scored_requests
from resonance_vllm.errors import SettingError, not_allowed

logger = logging.getLogger(__name__)


class PerplexityTask(PlainTask):
    """One corpus read window by window; settings come through lm-eval's `--metadata`.

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
        """What is logged of each document: its name and size, never its text."""
        return [
            {
                "document_id": name,
                "cluster": name,
                "source": self._config.metadata["data"]["source"],
                "document_tokens": len(document.tokens),
            }
            for name, document in self._documents.items()
        ]

    @property
    def settings(self) -> Any:
        """The settings of this run, complete."""
        return self._reading[0]

    @property
    def _documents(self) -> dict[str, TokenizedText]:
        return self._reading[1]

    def _complete(self, *, has_bos: bool) -> TextSettings:
        return complete_settings(self._given, find_limit(self._metadata), has_bos=has_bos)

    @cached_property
    def _reading(self) -> tuple[TextSettings, dict[str, TokenizedText]]:
        tokenizer = find_tokenizer(self._metadata)
        encode, bos = documents.encoder(tokenizer), tokenizer.bos_token_id
        corpus = str(self._metadata["corpus"])
        settings = self._complete(has_bos=bos is not None)
        self._bos = [bos] * bool(settings.bos)
        if not settings.bos:
            logger.warning(
                "windows begin without BOS: the first token of each document is not scored"
            )
        if corpus == documents.PYDOCS:
            drawn, left_out, data = documents.draw_pydocs(encode, settings)
        else:
            texts, data = documents.read_corpus(corpus, settings.data_dir)
            drawn, left_out = documents.draw(texts, encode, settings)
        self._config.metadata.update(
            data=data, settings=settings.recorded(), left_out=left_out, documents=len(drawn)
        )
        return settings, {each.document_id: each for each in self._cut(drawn, settings)}

    def _cut(self, drawn: Sequence[TokenizedText], settings: Any) -> Sequence[TokenizedText]:
        """The part of each document that is read."""
        return drawn

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
            for window in make_windows(n, length, settings.stride, settings.mode, settings.bos)
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
    given: PerplexitySettings, limit: LengthLimit, *, has_bos: bool
) -> PerplexitySettings:
    """The settings with the defaults that depend on the model filled in.

    Args:
        given: as the user wrote them.
        limit: of the run's backend; the context length where none is given.
        has_bos: whether the tokenizer has a BOS token.

    Raises:
        SettingError: settings that do not fit each other, or `bos: true` without a BOS token.
        ContextLengthError: no context length is known, or it is above the limit.
    """
    lengths = given.context_length or (limit.known - limit.after_window,)
    bos, most = begins_with_bos(given.bos, has_bos), lengths[0] - 1
    if given.mode == "sliding" and given.stride > most:  # tokens would never be scored
        allowed = f"1 to {most}, the tokens that a window of {lengths[0]} positions can score"
        raise SettingError(not_allowed("stride", given.stride, allowed))
    full = document_tokens(lengths[-1], bos)
    if given.max_tokens is not None and given.max_tokens < full:
        window = f"at least {full}, a window of the longest context"
        raise SettingError(not_allowed("max_tokens", given.max_tokens, window))
    limit.check(lengths[-1], "context_length", extra=limit.after_window)
    least = max(given.min_tokens or full, full)
    return given.changed(context_length=lengths, min_tokens=least, bos=bos)


def begins_with_bos(given: bool | None, has_bos: bool) -> bool:
    """Whether windows begin with BOS; by default they do where the tokenizer has one.

    Raises:
        SettingError: `bos: true`, and the tokenizer has none.
    """
    if given and not has_bos:
        raise SettingError(
            "bos: true is not allowed, the tokenizer has no BOS token; leave bos out: the first "
            "token of each document is then context only and not scored"
        )
    return has_bos if given is None else given


class WindowRequest(Instance):
    """One window for a model, which `leval_tasks.token_logprobs.scored_requests` answers.

    lm-eval logs `arguments` of a request: here a line that names the window and the digest of its
    tokens, never the tokens.

    Attributes:
        window: the window.
        token_parts: None (no cache key), ids of the context, ids of the scored tokens.
    """

    def __init__(self, window: Window, context: list[int], scored: list[int], **kwargs: Any):
        digest = hashlib.sha256(repr((context, scored)).encode()).hexdigest()[:16]
        label = (
            f"{kwargs['doc']['document_id']} @{window.context_length}: tokens "
            f"{window.start}-{window.end}, scored from {window.score_start}, sha256 {digest}"
        )
        super().__init__(request_type=REQUEST, arguments=(label,), **kwargs)
        self.window, self.token_parts = window, (None, context, scored)
