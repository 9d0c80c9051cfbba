"""The base classes of this package's tasks as tasks of lm-eval."""

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import Filter
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble
from lm_eval.models.utils import normalize_gen_kwargs

from leval_tasks.common.chat import ChatTemplate, template_of
from leval_tasks.common.model import running_model
from leval_tasks.common.served import match_loaded_models

logger = logging.getLogger(__name__)

GREEDY: dict[str, Any] = {"until": [], "do_sample": False, "temperature": 0.0}
"""Generation arguments of every task. Without `until: []` lm-eval stops at the first blank line."""


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


class GenerationTask(PlainTask):
    """A task whose answers are generated. It writes its prompts before lm-eval builds the requests.

    Attributes:
        DEFAULT_ANSWER_TOKENS: tokens of an answer, where lm-eval's generation arguments do not say.
    """

    OUTPUT_TYPE = "generate_until"
    DEFAULT_ANSWER_TOKENS: int

    @property
    def answer_tokens(self) -> int:
        """Return the tokens that an answer may have; the generation arguments are completed by it."""
        arguments = normalize_gen_kwargs(self.config.generation_kwargs, self.DEFAULT_ANSWER_TOKENS)
        self.config.generation_kwargs = dict(arguments)
        return int(arguments["max_gen_toks"])

    def prepare(self, template: ChatTemplate | None, system_instruction: str = "") -> None:
        """Write the prompts, and record in the task's metadata what was read.

        Args:
            template: lm-eval's chat template, if it applies one.
            system_instruction: text that precedes the prompt.
        """
        raise NotImplementedError

    def build_all_requests(self, **kwargs: Any) -> None:
        """Write the prompts, then build the requests as lm-eval does.

        A client of a server is prepared here, too: under lm-eval's own command this is the only code
        of this package that runs before the requests are sent.
        """
        match_loaded_models(running_model())
        self.prepare(template_of(kwargs), str(kwargs.get("system_instruction") or ""))
        super().build_all_requests(**kwargs)

    def generation_request(
        self, doc: dict[str, Any], prompt: Any, metadata: Any, index: int = 0
    ) -> Instance:
        """Return a request for one answer.

        Args:
            doc: the sample.
            prompt: as the backend takes it.
            metadata: what lm-eval passes to `construct_requests` under this name.
            index: number of the request among those of the sample.
        """
        arguments = (prompt, copy.deepcopy(dict(self.config.generation_kwargs)))
        return Instance(
            request_type=self.OUTPUT_TYPE,
            doc=doc,
            arguments=arguments,
            idx=index,
            metadata=metadata,
        )
