"""The lm-eval task class of L-Eval's closed-ended tasks.

A sample is one question about one document. The document is fitted to the context when requests
are built, once for all its questions, and never stored in the sample's `doc`.
"""

import copy
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import Filter, FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks import data
from leval_tasks.closed.asking import ask
from leval_tasks.closed.catalog import task_named
from leval_tasks.closed.definition import SCORES
from leval_tasks.closed.frames import FRAMES
from leval_tasks.closed.prompts import Asked, ChatTemplate
from leval_tasks.closed.rules import (
    mean,
    mean_of_parts,
    opens_thinking,
    parts_known,
    remove_thinking,
)
from leval_tasks.errors import ContextLengthError
from leval_tasks.generation import generation_tokens, with_generation_tokens
from leval_tasks.lm_task import PlainTask
from leval_tasks.metadata import ClosedSettings, read_metadata
from leval_tasks.statistics import clustered_stderr

logger = logging.getLogger(__name__)
VERSION = 1
GENERATION = {"until": [], "do_sample": False, "temperature": 0.0}


class Answer(str):
    """An extracted answer that still knows the response it was taken from."""

    response: str

    def __new__(cls, answer: str, response: str) -> "Answer":  # noqa: D102
        made = super().__new__(cls, answer)
        made.response = response
        return made


class PartScore(float):
    """A score that still knows which parts its question has."""

    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: float, parts: tuple[str, ...]) -> "PartScore":  # noqa: D102
        made = cls(value)
        made.parts = parts
        return made


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
        template = kwargs.get("chat_template") if kwargs.get("apply_chat_template") else None
        self.prepare(template, str(kwargs.get("system_instruction") or ""))
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
        template = kwargs.get("chat_template") if kwargs.get("apply_chat_template") else None
        return [
            Instance(
                request_type="generate_until",
                doc=doc,
                arguments=(argument, copy.deepcopy(dict(self.config.generation_kwargs))),
                idx=index,
                metadata=kwargs["metadata"],
            )
            for index, argument in enumerate(self.asked(doc).arguments(template))
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
        metrics: dict[str, Any] = {
            "exact_match": judged["exact_match"],
            # after exact_match: its aggregate replaces lm-eval's own field of this name
            "exact_match_stderr": (doc["cluster"], judged["exact_match"]),
            **judged,
        }
        known = parts_known({name: judged[name] for name in self.closed.rule.parts})
        for name in SCORES:
            metrics[name] = PartScore.of(float(judged[name] or 0.0), known)
        prompt = doc.get("prompt") or {}
        metrics["truncated"] = float(prompt.get("truncated", False))
        metrics["prompt_tokens"] = prompt.get("prompt_tokens", 0)
        metrics["document_tokens"] = prompt.get("document_tokens", 0)
        metrics["kept_tokens"] = prompt.get("kept_head", 0) + prompt.get("kept_tail", 0)
        return metrics

    def aggregation(self) -> dict[str, Any]:
        """How each metric becomes the task's figure."""
        return {
            **dict.fromkeys(self.higher_is_better(), mean_of_known),
            **dict.fromkeys(SCORES, mean_of_scores),
            "exact_match_stderr": stderr_field,
        }

    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return {
            **self.closed.metrics(),
            "exact_match_stderr": False,
            "truncated": False,
            "prompt_tokens": False,
            "document_tokens": False,
            "kept_tokens": True,
        }


def _key(doc: Mapping[str, Any]) -> tuple[str, int]:
    return doc["document_id"], doc["question_id"]


class AnswerFilter(Filter):
    """Puts the extracted answer into the sample's `filtered_resps`."""

    def __init__(self, answer_in: Any) -> None:
        self.answer_in = answer_in

    def apply(self, resps: Iterable[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[Answer]:
        """Extract from the first response of each request."""
        return [
            Answer(self.answer_in(responses[0], doc), responses[0])
            for responses, doc in zip(resps, docs, strict=True)
        ]


def mean_of_known(values: Sequence[float | None]) -> float | str:
    """Mean of the values that a metric has, `N/A` where no question has one."""
    known = [value for value in values if value is not None]
    return mean(known) if known else "N/A"


def mean_of_scores(values: Sequence[float]) -> float:
    """Mean of a score, in which topic retrieval's positions weigh the same."""
    return mean_of_parts(values, [getattr(value, "parts", ()) for value in values])


def stderr_field(items: Sequence[tuple[str, float]]) -> float | str:
    """Clustered standard error in lm-eval's form: `N/A` where it cannot be told."""
    value = clustered_stderr(items)
    return "N/A" if math.isnan(value) else value
