"""The base classes of this package's tasks as tasks of lm-eval."""

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import Filter
from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble

logger = logging.getLogger(__name__)


class Described(list[Any]):
    """The description of a request beside its score, with the model's `response` to it.

    lm-eval aggregates everything that `process_results` returns. `filtered_resps` of a sample is
    logged and never aggregated.
    """

    response: Any

    def __init__(self, items: Iterable[Any] = (), response: Any = None) -> None:
        super().__init__(items)
        self.response = response


class QuestionFilter(Filter):
    """Puts descriptions into `filtered_resps` of the requests of each question."""

    def __init__(self, describe: Callable[[Any, list[Any]], Iterable[Described]]) -> None:
        """Take a function that describes each request of a question, from its `doc` and responses."""
        self.describe = describe

    def apply(self, resps: Iterable[Sequence[Any]], docs: Sequence[Any]) -> list[Described]:
        """Return descriptions in the order of the requests; those of one question are adjacent."""
        firsts = [(responses[0], doc) for responses, doc in zip(resps, docs, strict=True)]
        described: list[Described] = []
        for _, group in itertools.groupby(
            firsts, key=lambda response_and_doc: id(response_and_doc[1])
        ):
            responses, (doc, *_) = zip(*group, strict=True)
            described += self.describe(doc, list(responses))
        return described


class PlainTask(Task):
    """A task that has its own test documents, no few-shot examples and no frame around them."""

    def _configure(self, config: TaskConfig) -> None:
        """Do what `Task.__init__` does, which would warn about an empty configuration."""
        self._config = config
        self._training_docs = self._fewshot_docs = self.fewshot_rnd = None
        self._instances: list[Any] | None = None
        self._filters = [build_filter_ensemble("none", [["take_first", None]])]

    def has_training_docs(self) -> bool:  # noqa: D102
        return False

    def has_validation_docs(self) -> bool:  # noqa: D102
        return False

    def has_test_docs(self) -> bool:  # noqa: D102
        return True

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:
        """Return the reference; empty where nothing is generated."""
        return str(doc.get("gold", ""))

    def fewshot_context(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> str:
        """Return an empty text, because `construct_requests` makes the prompts."""
        return ""

    def build_all_requests(self, **kwargs: Any) -> None:
        """Build the requests without lm-eval's request cache, whose key lacks lengths and settings."""
        if kwargs.pop("cache_requests", False):
            logger.warning("%s: --cache_requests is ignored.", self.task_name)
        kwargs.pop("rewrite_requests_cache", None)
        super().build_all_requests(**kwargs)
