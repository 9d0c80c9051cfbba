"""What our tasks have in common as tasks of lm-eval."""

import importlib.metadata
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble

from leval_border.errors import UserError

logger = logging.getLogger(__name__)


def check_interface(task: type) -> None:
    """Refuse a line of lm-eval in which tasks are told of their documents in another way.

    Raises:
        UserError: its class of tasks makes requests by `doc_id`, as 0.5.0.dev1 does.
    """
    if "doc_id" in inspect.signature(task.construct_requests).parameters:  # type: ignore[attr-defined]
        version = importlib.metadata.version("lm-eval")
        raise UserError(
            f"lm-eval {version}: its tasks make requests by `doc_id` in place of `metadata`, which "
            "ours do not know; pip install 'lm-eval~=0.4.13'"
        )


check_interface(Task)


class PlainTask(Task):
    """Documents of its own, all of them for the test; no frame around them, nothing beside."""

    def _configure(self, config: TaskConfig) -> None:
        """What `Task.__init__` does, which would warn that its empty configuration says nothing."""
        self._config = config
        self._training_docs = self._fewshot_docs = self.fewshot_rnd = None
        self._instances: list[Any] | None = None
        self._filters = [build_filter_ensemble("none", [["take_first", None]])]

    def download(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: documents do not come through lm-eval."""

    def has_training_docs(self) -> bool:  # noqa: D102
        return False

    def has_validation_docs(self) -> bool:  # noqa: D102
        return False

    def has_test_docs(self) -> bool:  # noqa: D102
        return True

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:
        """The reference; empty where nothing is generated."""
        return ""

    def fewshot_context(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> str:
        """Empty: what is asked is made in `construct_requests`."""
        return ""

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval, but never from its request cache, whose key lacks lengths and settings."""
        if kwargs.pop("cache_requests", False):
            logger.warning("%s: --cache_requests is ignored.", self.task_name)
        kwargs.pop("rewrite_requests_cache", None)
        super().build_all_requests(**kwargs)
