"""What our tasks have in common as tasks of lm-eval."""

import logging
from collections.abc import Mapping
from typing import Any

from lm_eval.api.task import Task

logger = logging.getLogger(__name__)


class PlainTask(Task):
    """Documents of its own, all of them for the test; no frame around them, nothing beside."""

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
