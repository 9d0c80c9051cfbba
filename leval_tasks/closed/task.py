"""The lm-eval task class of L-Eval's closed-ended tasks.

A sample is one question about one document. The document is fitted to the context when requests
are built, once for all its questions, and never stored in the sample's `doc`.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.filter import FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks import data
from leval_tasks.closed.answers import AnswerFilter
from leval_tasks.closed.asking import ask
from leval_tasks.closed.catalog import task_named
from leval_tasks.closed.frames import FRAMES
from leval_tasks.closed.metrics import aggregations, directions, metrics_of_question
from leval_tasks.closed.prompts import Asked, ChatTemplate
from leval_tasks.closed.rules import opens_thinking, remove_thinking
from leval_tasks.errors import ContextLengthError
from leval_tasks.generation import generation_tokens, with_generation_tokens
from leval_tasks.lm_task import PlainTask
from leval_tasks.metadata import ClosedSettings, read_metadata

logger = logging.getLogger(__name__)
VERSION = 1
GENERATION = {"until": [], "do_sample": False, "temperature": 0.0}


class LEvalClosedTask(PlainTask):
    """One of L-Eval's closed-ended tasks, which `task` of lm-eval's configuration names.

    Raises:
        TaskError: a setting, the data or the tokenizer is not usable.
    """

    VERSION = VERSION
    OUTPUT_TYPE = "generate_until"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.closed = task_named(str(config.get("task")))
        metadata = dict(config.get("metadata") or {})
        settings = read_metadata(ClosedSettings, metadata)
        if not settings.truncation:
            own = FRAMES[settings.frame].cut if settings.frame in FRAMES else None
            settings = settings.changed(truncation=own or self.closed.truncation)
        self.settings, self.run = settings, metadata
        self.file = data.load(data.resolve_source(metadata), self.closed)
        self._documents: dict[str, str] = {}
        self._docs = self._read_docs()
        kwargs = {**GENERATION, **(config.get("generation_kwargs") or {})}
        lm_config = TaskConfig(
            task=self.closed.name,
            task_alias=self.closed.title,
            output_type="generate_until",
            generation_kwargs={**kwargs, "until": list(kwargs["until"])},
            num_fewshot=0,
            metadata={**metadata, "version": VERSION, **self._described()},
        )
        self._configure(lm_config)
        self._filters = [FilterEnsemble("none", [lambda: AnswerFilter(self.answer_in)])]
        self._asked: dict[tuple[str, int], Asked] = {}
        self._opened = False

    def _read_docs(self) -> list[dict[str, Any]]:
        """One entry a question, in document order, of as many documents as are asked for."""
        docs: list[dict[str, Any]] = []
        wanted, enough = self.settings.num_docs, self.settings.min_questions or 0
        for count, record in enumerate(self.file.records):
            if wanted and count >= wanted and len(docs) >= enough:
                break
            self._documents[record.document_id] = record.document
            for number, (question, gold) in enumerate(
                zip(record.instructions, record.outputs, strict=True)
            ):
                own = f"-{number}" if self.closed.own_clusters else ""
                docs.append(
                    {
                        "document_id": record.document_id,
                        "question_id": number,
                        "question": question,
                        "gold": gold,
                        "cluster": record.document_id + own,
                        "source": self.file.source.kind,
                        "prompt": {},
                    }
                )
        return docs

    def _described(self) -> dict[str, Any]:
        return {
            "data": self.file.described(),
            "settings": self.settings.recorded(),
            "documents": len(self._documents),
            "documents_in_file": len(self.file.records),
            "partial": len(self._documents) < len(self.file.records),
            "chance": self.closed.rule.chance([doc["gold"] for doc in self._docs]),
        }

    def test_docs(self) -> list[dict[str, Any]]:
        """The questions, in document order."""
        return self._docs

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The question alone; the prompt around it is made when requests are built."""
        return str(doc["question"])

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:
        """The reference answer."""
        return str(doc["gold"])

    def build_all_requests(self, **kwargs: Any) -> None:
        """Fit the documents to the context, then build the requests as lm-eval does."""
        self.prepare(_template(kwargs), str(kwargs.get("system_instruction") or ""))
        super().build_all_requests(**kwargs)

    def prepare(self, template: ChatTemplate | None, system_instruction: str) -> None:
        """Make the prompts and fit the documents; with `skip`, over-long documents leave.

        Raises:
            TaskError: no tokenizer or context length is known, or the prompts do not fit.
            SettingError: the frame does not go with the template.
        """
        by_text: dict[str, list[dict[str, Any]]] = {}
        for doc in self._docs:
            by_text.setdefault(self._documents[doc["document_id"]], []).append(doc)
        kwargs = self.config.generation_kwargs
        asking = ask(
            self.closed,
            by_text.items(),
            self.settings,
            self.run,
            template=template,
            system_instruction=system_instruction,
            generated=generation_tokens(kwargs),
        )
        self._asked = asking.asked
        self._leave_out_what_is_not_asked(asking.context.length)
        self.config.generation_kwargs = with_generation_tokens(kwargs, asking.generated)
        self.config.metadata["settings"] |= {"frame": asking.frame}
        self._opened = self._opens_thinking(template)
        opened = {"opens_thinking": True} if self._opened else {}
        self.config.metadata["prompt"] = asking.about | opened

    def _opens_thinking(self, template: ChatTemplate | None) -> bool:
        """Whether the prompts open the thinking, unless the backend removes it by itself."""
        if self.run.get("think_end_token") is not None:
            return False
        first = next(iter(self._asked.values()))
        return any(
            opens_thinking(str(argument), self.settings.end_of_thinking)
            for argument in first.arguments(template)
        )

    def _leave_out_what_is_not_asked(self, context_length: int) -> None:
        left_out = {doc["document_id"] for doc in self._docs if _key(doc) not in self._asked}
        self._docs = [doc for doc in self._docs if _key(doc) in self._asked]
        if not self._docs:
            raise ContextLengthError(
                f"{self.closed.name}: every document is longer than the context of "
                f"{context_length} tokens and truncation is 'skip'. Give a larger "
                "context_length, or truncation: middle, right or left."
            )
        if left_out:
            logger.warning(
                "%s: %d documents are longer than the context and are left out (truncation: skip).",
                self.closed.name,
                len(left_out),
            )
        self.config.metadata["skipped_documents"] = len(left_out)

    def asked(self, doc: Mapping[str, Any]) -> Asked:
        """How a question is asked."""
        return self._asked[_key(doc)]

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """One request a question; SFiction has a second one about the real world."""
        return [
            Instance(
                request_type="generate_until",
                doc=doc,
                arguments=(argument, copy.deepcopy(dict(self.config.generation_kwargs))),
                idx=index,
                metadata=kwargs["metadata"],
            )
            for index, argument in enumerate(self.asked(doc).arguments(_template(kwargs)))
        ]

    def answer_in(self, response: str, doc: Mapping[str, Any]) -> str:
        """The extracted answer of one generation, for the record."""
        mark = self.settings.end_of_thinking
        text, _ = remove_thinking(response, mark, opened=self._opened)
        return self.closed.rule.read(text, str(doc["gold"])).answer

    def process_results(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
        """Metrics of one question, from responses or from answers that carry their responses."""
        judged = self.closed.judged(
            [getattr(result, "response", result) for result in results],
            str(doc["gold"]),
            int(doc["question_id"]),
            self.settings.end_of_thinking,
            opened=self._opened,
        )
        return metrics_of_question(self.closed, judged, doc)

    def aggregation(self) -> dict[str, Any]:
        """How each metric becomes the task's figure."""
        return aggregations(self.closed)

    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return directions(self.closed)


def _template(kwargs: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template that lm-eval applies, if it applies one."""
    return kwargs.get("chat_template") if kwargs.get("apply_chat_template") else None


def _key(doc: Mapping[str, Any]) -> tuple[str, int]:
    """What names a question among those of its task."""
    return doc["document_id"], doc["question_id"]
