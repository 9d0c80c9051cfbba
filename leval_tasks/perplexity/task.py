"""Perplexity as lm-eval tasks: token windows out, sums and counts of each document back.

Requests are of the type `_loglikelihood_tokens`, which hf, hf-long, vllm and local-completions
answer alike: token ids go to the model as they are, nothing is tokenised twice or cut.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig

from leval_tasks.context import find_reach
from leval_tasks.metadata import PerplexitySettings, read_metadata
from leval_tasks.metric_names import compose
from leval_tasks.perplexity import metrics
from leval_tasks.perplexity.documents import Drawn, TokenizedText, draw, read_corpus
from leval_tasks.perplexity.model import Reader, find_reader
from leval_tasks.perplexity.pydocs import PYDOCS, draw_pydocs
from leval_tasks.perplexity.requests import (
    REQUEST,
    WindowRequest,
    asks_lm_eval_for_shared_logits,
    check_shared_logits,
)
from leval_tasks.perplexity.settings import ReadingPlan, plan_reading
from leval_tasks.perplexity.windows import Window, make_windows
from leval_tasks.running import running_model

logger = logging.getLogger(__name__)
BAND = "nll"  # mean nats a token of the positions between two lengths


class PerplexityTask(Task):
    """One corpus read window by window; settings come through lm-eval's `--metadata`.

    Keys count at the top level of the metadata, or under `perplexity`, which wins: so a run can
    give closed-ended tasks one `context_length` and these tasks a list.
    """

    VERSION = 1
    OUTPUT_TYPE = REQUEST

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Keep the settings; documents and tokenizer are read when requests are built."""
        super().__init__()
        given = dict(config)
        metadata = dict(given.get("metadata") or {})
        self._config = TaskConfig(
            task=given.get("task"),
            output_type=REQUEST,
            num_fewshot=0,
            metadata=metadata,
        )
        self._metadata = metadata
        self._asked = read_metadata(PerplexitySettings, metadata)
        self._corpus = str(metadata["corpus"])
        self._drawn: Drawn | None = None
        self._plan: ReadingPlan | None = None
        self._reader: Reader | None = None
        self._by_id: dict[str, TokenizedText] = {}

    def download(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: texts are read with the tokenizer at hand."""

    def has_training_docs(self) -> bool:  # noqa: D102
        return False

    def has_validation_docs(self) -> bool:  # noqa: D102
        return False

    def has_test_docs(self) -> bool:  # noqa: D102
        return True

    def test_docs(self) -> list[dict[str, Any]]:
        """What is logged of each document: its name and size, never its text."""
        self._prepare()
        return [
            {
                "document_id": document.document_id,
                "cluster": document.document_id,
                "source": self._config.metadata["data"]["source"],
                "document_tokens": len(document.tokens),
            }
            for document in self._by_id.values()
        ]

    @property
    def plan(self) -> ReadingPlan:
        """The settings of this run."""
        self._prepare()
        assert self._plan is not None
        return self._plan

    def _prepare(self) -> None:
        if self._drawn is not None:
            return
        reader, reach = find_reader(self._metadata), find_reach(self._metadata)
        has_bos = reader.tokenizer.bos_token_id is not None
        plan = plan_reading(self._asked, reach, has_bos=has_bos)
        if not plan.bos:
            logger.warning(
                "windows begin without BOS: the first token of each document is not scored"
            )
        if self._corpus == PYDOCS:
            drawn, data = draw_pydocs(reader, plan)
        else:
            texts, data = read_corpus(self._corpus, self._asked.data_dir)
            drawn = draw(texts, reader.encode, plan)
        self._reader, self._plan, self._drawn = reader, plan, drawn
        self._by_id = {document.document_id: document for document in drawn.documents}
        self._config.metadata.update(
            data=data,
            settings=plan.as_dict(),
            left_out=drawn.left_out,
            documents=len(drawn.documents),
            tokenizer_name=str(getattr(reader.tokenizer, "name_or_path", "")),
            softmax=reader.softmax,
        )

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, but never from its request cache, whose key lacks lengths and tokenizer."""
        if kwargs.pop("cache_requests", False):
            logger.warning("--cache_requests is not used for %s", self.task_name)
        kwargs.pop("rewrite_requests_cache", None)
        if kwargs.get("apply_chat_template"):
            logger.warning("%s reads plain text: no chat template", self.task_name)
        super().build_all_requests(**kwargs)
        if asks_lm_eval_for_shared_logits(running_model()):
            check_shared_logits([instance.token_parts for instance in self.instances])

    def fewshot_context(self, *args: Any, **kwargs: Any) -> str:
        """Empty: windows hold the document's tokens and nothing else."""
        return ""

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The document's name."""
        return str(doc["document_id"])

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:
        """Empty: nothing is generated."""
        return ""

    def windows(self, doc: Mapping[str, Any]) -> list[Window]:
        """All windows of a document, shortest context length first."""
        plan = self.plan
        n = len(self._by_id[doc["document_id"]].tokens)
        return [
            window
            for length in plan.context_lengths
            for window in make_windows(n, length, plan.stride, plan.mode, plan.bos)
        ]

    def construct_requests(self, doc: Any, ctx: str, **kwargs: Any) -> list[WindowRequest]:
        """One request a window."""
        windows = self.windows(doc)
        tokens = self._by_id[doc["document_id"]].tokens
        assert self._reader is not None
        bos = self._reader.tokenizer.bos_token_id
        return [
            WindowRequest(
                window,
                [bos] * window.bos + tokens[window.start : window.score_start],
                tokens[window.score_start : window.end],
                doc=doc,
                idx=index,
                metadata=kwargs["metadata"],
            )
            for index, window in enumerate(windows)
        ]

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Pairs of (numerator, denominator) a metric; zeros where a request failed."""
        windows = self.windows(doc)
        nll = [-float(total) for total, _ in results]
        failed = not all(map(math.isfinite, nll))
        if failed:
            logger.error("%s has no result and does not count", doc["document_id"])
        values: dict[str, list[float]] = {}
        cumulated: list[tuple[int, float, int]] = [(0, 0.0, 0)]
        for length in self.plan.context_lengths:
            part = [(w, x) for w, x in zip(windows, nll, strict=True) if w.context_length == length]
            pairs = self._pairs(doc, [w for w, _ in part], [x for _, x in part])
            values |= {compose(name, length): pair for name, pair in pairs.items()}
            cumulated.append((length, *map(float, pairs["token_perplexity"])))  # type: ignore[arg-type]
        if self.plan.mode == "truncate":
            values |= band_pairs(cumulated)
        if failed:
            values = {name: [0.0, 0] for name in values}
        out: dict[str, Any] = {}
        for name, pair in values.items():
            out[name] = pair
            out[f"{name}_stderr"] = pair  # aggregated after it, into lm-eval's own field
        return out | {"failed": int(failed)}

    def _pairs(
        self, doc: Mapping[str, Any], windows: Sequence[Window], nll: Sequence[float]
    ) -> dict[str, list[float]]:
        document = self._by_id[doc["document_id"]]
        text = document.scored_text(windows[0].score_start, windows[-1].end)
        return metrics.document_pairs(
            nll, [window.scored for window in windows], len(text.split()), len(text.encode())
        )

    def metric_names(self) -> list[str]:
        """Every metric of this run but `failed`, without standard errors."""
        lengths = self.plan.context_lengths
        names = [compose(name, length) for length in lengths for name in metrics.METRICS]
        if self.plan.mode == "truncate":
            names += [
                compose(BAND, start, end)
                for start, end in zip((0, *lengths), lengths, strict=False)
            ]
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


def band_pairs(cumulated: Sequence[tuple[int, float, int]]) -> dict[str, list[float]]:
    """What each stretch between two lengths adds, from windows that all begin at position 0.

    Args:
        cumulated: (context length, nats, tokens) in growing order, from (0, 0, 0).
    """
    return {
        compose(BAND, a[0], b[0]): [b[1] - a[1], b[2] - a[2]]
        for a, b in itertools.pairwise(cumulated)
    }
