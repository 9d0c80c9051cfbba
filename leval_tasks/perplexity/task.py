"""Perplexity as lm-eval tasks: token windows out, sums and counts of each document back.

Requests are of the type `_loglikelihood_tokens`, which hf, hf-long, vllm and local-completions
answer alike: token ids go to the model as they are, nothing is tokenised twice or cut.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from lm_eval.config.task import TaskConfig

from leval_tasks.context import find_reach
from leval_tasks.lm_task import PlainTask
from leval_tasks.metadata import PerplexitySettings, TaskSettings, read_metadata
from leval_tasks.metric_names import compose
from leval_tasks.perplexity import metrics
from leval_tasks.perplexity.documents import TokenizedText, draw, read_corpus
from leval_tasks.perplexity.model import find_reader
from leval_tasks.perplexity.pydocs import PYDOCS, draw_pydocs
from leval_tasks.perplexity.requests import (
    REQUEST,
    WindowRequest,
    check_shared_logits,
)
from leval_tasks.perplexity.settings import ReadingPlan, plan_reading
from leval_tasks.perplexity.windows import Window, make_windows
from leval_tasks.running import running_model

logger = logging.getLogger(__name__)
BAND = "nll"  # mean nats a token of the positions between two lengths


class PerplexityTask(PlainTask):
    """One corpus read window by window; settings come through lm-eval's `--metadata`.

    Keys count at the top level of the metadata, or under `perplexity`, which wins: so a run can
    give closed-ended tasks one `context_length` and these tasks a list.
    """

    VERSION = 1
    OUTPUT_TYPE = REQUEST

    settings: type[TaskSettings] = PerplexitySettings

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Keep the settings; documents and tokenizer are read when requests are built."""
        self._metadata = dict(config.get("metadata") or {})
        lm_config = TaskConfig(
            task=config.get("task"), output_type=REQUEST, num_fewshot=0, metadata=self._metadata
        )
        self._configure(lm_config)
        self._asked: Any = read_metadata(self.settings, self._metadata)

    def test_docs(self) -> list[dict[str, Any]]:
        """What is logged of each document: its name and size, never its text."""
        return [
            {
                "document_id": document.document_id,
                "cluster": document.document_id,
                "source": self._config.metadata["data"]["source"],
                "document_tokens": len(document.tokens),
            }
            for document in self._documents.values()
        ]

    @property
    def plan(self) -> ReadingPlan:
        """The settings of this run."""
        return self._reading[0]

    @property
    def _documents(self) -> dict[str, TokenizedText]:
        return self._reading[1]

    def _plan(self, *, has_bos: bool) -> ReadingPlan:
        return plan_reading(self._asked, find_reach(self._metadata), has_bos=has_bos)

    @cached_property
    def _reading(self) -> tuple[ReadingPlan, dict[str, TokenizedText]]:
        reader, corpus = find_reader(self._metadata), str(self._metadata["corpus"])
        bos = reader.tokenizer.bos_token_id
        plan = self._plan(has_bos=bos is not None)
        self._bos = [bos] * plan.bos
        if not plan.bos:
            logger.warning(
                "windows begin without BOS: the first token of each document is not scored"
            )
        if corpus == PYDOCS:
            drawn, data = draw_pydocs(reader, plan)
        else:
            texts, data = read_corpus(corpus, self._asked.data_dir)
            drawn = draw(texts, reader.encode, plan)
        self._config.metadata.update(
            data=data,
            settings=plan.recorded(),
            left_out=drawn.left_out,
            documents=len(drawn.documents),
            tokenizer_name=str(getattr(reader.tokenizer, "name_or_path", "")),
            softmax=reader.softmax,
        )
        return plan, {document.document_id: document for document in drawn.documents}

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, of plain text and never from its request cache."""
        if kwargs.get("apply_chat_template"):
            logger.warning("%s reads plain text: no chat template", self.task_name)
        super().build_all_requests(**kwargs)
        check_shared_logits(running_model(), [instance.token_parts for instance in self.instances])

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The document's name."""
        return str(doc["document_id"])

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a document, shortest context length first."""
        plan = self.plan
        n = len(self._documents[doc["document_id"]].tokens)
        return [
            window
            for length in plan.context_lengths
            for window in make_windows(n, length, plan.stride, plan.mode, plan.bos)
        ]

    def construct_requests(self, doc: Any, ctx: str, **kwargs: Any) -> list[WindowRequest]:
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
        """Pairs of (numerator, denominator) a metric; zeros where a request failed."""
        nll = [-float(total) for total, _ in results]
        failed = not all(map(math.isfinite, nll))
        if failed:
            logger.error("%s has no result and does not count", doc["document_id"])
        scored = list(zip(self.windows(doc), nll, strict=True))
        values: dict[str, list[float]] = {}
        before, nats, tokens = 0, 0.0, 0.0  # what the context length before this one adds up to
        bands: dict[str, list[float]] = {}
        for length in self.plan.context_lengths:
            pairs = self._pairs(doc, [each for each in scored if each[0].context_length == length])
            values |= {compose(name, length): pair for name, pair in pairs.items()}
            total, count = pairs["token_perplexity"]
            bands[compose(BAND, before, length)] = [total - nats, count - tokens]
            before, nats, tokens = length, total, count
        if self.plan.mode == "truncate":  # windows that all begin at position 0
            values |= bands
        if failed:
            values = {name: [0.0, 0] for name in values}
        return with_stderr(values) | {"failed": int(failed)}

    def _pairs(
        self, doc: Mapping[str, Any], scored: Sequence[tuple[Window, float]]
    ) -> dict[str, list[float]]:
        windows = [window for window, _ in scored]
        document = self._documents[doc["document_id"]]
        text = document.scored_text(windows[0].score_start, windows[-1].end)
        return metrics.document_pairs(
            [nll for _, nll in scored],
            [window.scored for window in windows],
            len(text.split()),
            len(text.encode()),
        )

    def metric_names(self) -> list[str]:
        """Every metric of this run but `failed`, without standard errors."""
        lengths = self.plan.context_lengths
        names = [compose(name, length) for length in lengths for name in metrics.METRICS]
        if self.plan.mode == "truncate":
            names += [compose(BAND, *ends) for ends in itertools.pairwise((0, *lengths))]
        return names

    def aggregation(self) -> dict[str, Any]:
        """One division over all documents a metric, and its standard error."""
        out: dict[str, Any] = {"failed": sum}
        for name in self.metric_names():
            out[name], out[f"{name}_stderr"] = metrics.aggregations(name)
        return out

    def higher_is_better(self) -> dict[str, bool]:
        """Lower is better throughout."""
        return dict.fromkeys((*self.metric_names(), "failed"), False)


def with_stderr(values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Each metric once more, aggregated after it into lm-eval's own field of standard errors."""
    return {each: pair for name, pair in values.items() for each in (name, f"{name}_stderr")}
