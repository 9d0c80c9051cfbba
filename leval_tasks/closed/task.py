"""The lm-eval task class of L-Eval's closed-ended tasks.

A sample is one question about one document. The document is fitted to the context when requests
are built, once for all its questions, and never stored in the sample's `doc`.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.filter import FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import warning_once

from leval_tasks.closed.catalog import MARKS, VERSION, Row, task_named
from leval_tasks.closed.prompts import (
    ChatTemplate,
    PromptWriter,
    QuestionPrompts,
    TokenizedDocument,
    fit,
    frame_name,
)
from leval_tasks.closed.rules import mean
from leval_tasks.closed.thinking import opens_thinking, remove_thinking
from leval_tasks.common import data
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.lm_task import Described, PlainTask, QuestionFilter
from leval_tasks.common.metadata import ClosedSettings, asked_without_template, read_metadata
from leval_tasks.common.metrics import NOT_AVAILABLE, directions, stderr_of_mean
from leval_tasks.common.model import find_tokenizer, resolve_context, tokenizer_name

logger = logging.getLogger(__name__)
TOKENS = 512
"""Tokens of an answer, where lm-eval's generation arguments say nothing."""


class LEvalClosedTask(PlainTask):
    """One of L-Eval's closed-ended tasks, which `task` of lm-eval's configuration names.

    Raises:
        UserError: a setting, the data or the tokenizer is not usable.
    """

    VERSION = VERSION
    OUTPUT_TYPE = "generate_until"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.closed = task_named(str(config.get("task")))
        self.run = dict(config.get("metadata") or {})
        settings = read_metadata(ClosedSettings, self.run)
        if not settings.truncation:
            settings = settings.with_changes(truncation=self.closed.truncation)
        self.settings = settings
        self.file = data.load(data.resolve_source(settings.data_dir), self.closed)
        self._documents: dict[str, str] = {}
        self._docs = self._read_docs()
        self._prompts: dict[tuple[str, int], QuestionPrompts] = {}
        self._opened = False
        greedy = {"until": [], "do_sample": False, "temperature": 0.0}
        lm_config = TaskConfig(
            task=self.closed.name,
            task_alias=self.closed.title,
            output_type="generate_until",
            generation_kwargs={**greedy, **(config.get("generation_kwargs") or {})},
            num_fewshot=0,
            metadata={
                **self.run,
                "version": VERSION,
                "data": self.file.described(),
                "settings": settings.recorded(),
                "documents": len(self._documents),
                "partial": len(self._documents) < len(self.file.records),
                "chance": self.closed.rule.chance([doc["gold"] for doc in self._docs]),
            },
        )
        self._configure(lm_config)
        self._filters = [FilterEnsemble("none", [lambda: QuestionFilter(self._describe)])]

    def _read_docs(self) -> list[dict[str, Any]]:
        """One entry a question, in document order, of the first `num_docs` documents."""
        docs: list[dict[str, Any]] = []
        wanted, enough = self.settings.num_docs, self.settings.min_questions or 0
        for count, record in enumerate(self.file.records):
            if wanted and count >= wanted and len(docs) >= enough:
                break
            self._documents[str(count)] = record.document
            pairs = zip(record.instructions, record.outputs, strict=True)
            docs += [
                {
                    "document_id": str(count),
                    "question_id": number,
                    "question": question,
                    "gold": gold,
                    "cluster": f"{count}-{number}" if self.closed.own_clusters else str(count),
                    "source": self.file.source.kind,
                    "prompt": {},
                }
                for number, (question, gold) in enumerate(pairs)
            ]
        return docs

    def test_docs(self) -> list[dict[str, Any]]:
        """The questions, in document order."""
        return self._docs

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The question alone; the prompt around it is made when requests are built."""
        return str(doc["question"])

    def build_all_requests(self, **kwargs: Any) -> None:
        """Fit the documents to the context, then build the requests as lm-eval does."""
        self.prepare(_template(kwargs), str(kwargs.get("system_instruction") or ""))
        super().build_all_requests(**kwargs)

    def prepare(self, template: ChatTemplate | None, system_instruction: str = "") -> None:
        """Write the prompts, fit the documents and record both in the task's metadata.

        `template` is lm-eval's chat template; a `system_instruction` precedes the system prompt.

        Raises:
            SettingError: no tokenizer is known, or the frame does not go with the template.
            ContextLengthError: no context length is known, or the prompts do not fit.
        """
        tokenizer, length = find_tokenizer(self.run), resolve_context(self.run)
        settings = self.settings
        arguments = normalize_gen_kwargs(self.config.generation_kwargs, TOKENS)
        self.config.generation_kwargs, generated = dict(arguments), arguments["max_gen_toks"]
        frame = frame_name(settings.frame, template)
        if template is None and not settings.frame and getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "the model")
            warning_once(logger, asked_without_template(name))
        writer = PromptWriter(
            frame, tokenizer, template, settings.answer_prefix, system_instruction
        )
        documents = len(self._documents)
        self._write_prompts(writer, tokenizer, length - generated)
        self._docs = [doc for doc in self._docs if _key(doc) in self._prompts]
        if not self._docs:
            raise ContextLengthError(
                f"{self.closed.name}: every document is longer than the context of {length} tokens "
                "and skipped. Give a larger context_length, or truncation: middle, right or left."
            )
        first = next(iter(self._prompts.values()))
        mark, asked = settings.end_of_thinking, first.arguments(template)
        removed_by_backend = self.run.get("think_end_token") is not None
        self._opened = not removed_by_backend and any(opens_thinking(str(a), mark) for a in asked)
        metadata = self.config.metadata
        metadata["settings"] |= {"frame": frame}
        metadata["skipped_documents"] = documents - len({doc["document_id"] for doc in self._docs})
        metadata["prompt"] = {
            "context_length": length,
            "generated_tokens": generated,
            "tokenizer": tokenizer_name(self.run),
            "frame": frame,
            **({"opens_thinking": True} if self._opened else {}),
        }

    def _write_prompts(self, writer: PromptWriter, tokenizer: Any, room: int) -> None:
        """Fit each document into `room` tokens; write its questions' prompts and token counts."""
        by_document: dict[str, list[dict[str, Any]]] = {}  # GSM's questions share one text
        for doc in self._docs:
            by_document.setdefault(self._documents[doc["document_id"]], []).append(doc)
        self._prompts = {}
        for text, docs in by_document.items():
            prompts = [writer.prompts(self.closed, doc["question"]) for doc in docs]
            document = TokenizedDocument(text, tokenizer)
            firsts = [first for first, *_ in prompts]
            cut, lengths = fit(document, firsts, room, str(self.settings.truncation))
            if cut is None:
                continue
            for doc, each, tokens in zip(docs, prompts, lengths, strict=True):
                self._prompts[_key(doc)] = QuestionPrompts(tuple(each), cut.pieces)
                doc["prompt"] = {
                    "prompt_tokens": tokens,
                    "document_tokens": len(document),
                    "kept_head": cut.head,
                    "kept_tail": cut.tail,
                    "truncated": cut.truncated,
                }

    def prompts_of(self, doc: Mapping[str, Any]) -> QuestionPrompts:
        """The prompts of a question, once `prepare` has written them."""
        return self._prompts[_key(doc)]

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
            for index, argument in enumerate(self.prompts_of(doc).arguments(_template(kwargs)))
        ]

    def _score(self, doc: Mapping[str, Any], responses: Sequence[str]) -> Row:
        """Scores and marks of one question."""
        mark, gold, number = self.settings.end_of_thinking, str(doc["gold"]), doc["question_id"]
        return self.closed.score_responses(responses, gold, number, mark, opened=self._opened)

    def _describe(self, doc: Mapping[str, Any], responses: list[str]) -> Iterator[Described]:
        """The extracted answer of each response, and the question's marks beside the first."""
        row = self._score(doc, responses)
        marks = [name for name in MARKS if row[name]]
        for response in responses:
            mark = self.settings.end_of_thinking
            text, _ = remove_thinking(response, mark, opened=self._opened)
            answer = self.closed.rule.read(text, str(doc["gold"])).answer
            yield Described([answer, *marks], response)
            marks = []

    def process_results(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
        """Scores of one question, from responses or from descriptions that carry them."""
        row = self._score(doc, [getattr(result, "response", result) for result in results])
        return {
            **{name: row[name] for name in self.closed.metrics()},
            # after exact_match: its aggregate replaces lm-eval's own field of this name
            "exact_match_stderr": (doc["cluster"], row["exact_match"]),
        }

    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return directions((*self.closed.metrics(), "exact_match_stderr"))

    def aggregation(self) -> dict[str, Any]:
        """How each metric becomes the task's figure."""
        of_scores = dict.fromkeys(self.closed.metrics(), _mean_of_known)
        return {**of_scores, "exact_match_stderr": stderr_of_mean}


def _mean_of_known(values: Sequence[float | None]) -> float | str:
    """Mean of the values that a metric has, `N/A` where no question has one."""
    known = [value for value in values if value is not None]
    return mean(known) if known else NOT_AVAILABLE


def _template(kwargs: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template that lm-eval applies, if it applies one."""
    return kwargs.get("chat_template") if kwargs.get("apply_chat_template") else None


def _key(doc: Mapping[str, Any]) -> tuple[str, int]:
    """Identifies a question among those of its task."""
    return doc["document_id"], doc["question_id"]
