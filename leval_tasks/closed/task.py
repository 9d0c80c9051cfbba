"""The lm-eval task class of L-Eval's closed-ended tasks.

A sample is one question about one document. The document is fitted into the context when requests
are built, once for all its questions, and is never stored in the sample's `doc`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lm_eval.api.filter import FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig
from lm_eval.utils import warning_once

from leval_tasks.closed.catalog import MARKS, VERSION, Row, task_named
from leval_tasks.closed.prompts import (
    PromptWriter,
    QuestionPrompts,
    TokenizedDocument,
    fit,
    frame_name,
)
from leval_tasks.closed.thinking import (
    WHOLE_RESPONSES,
    backend_mark,
    opens_thinking,
    remove_thinking,
    whole_responses,
)
from leval_tasks.common import data
from leval_tasks.common.chat import ChatTemplate, template_of
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.lm_task import GREEDY, Described, GenerationTask, QuestionFilter
from leval_tasks.common.metadata import ClosedSettings, asked_without_template, read_metadata
from leval_tasks.common.metrics import directions, mean_of_known, stderr_of_mean
from leval_tasks.common.model import (
    find_tokenizer,
    resolve_context,
    running_model,
    tokenizer_name,
)

logger = logging.getLogger(__name__)


class LEvalClosedTask(GenerationTask):
    """One of L-Eval's closed-ended tasks, which `task` of lm-eval's configuration names.

    Args:
        config: lm-eval's configuration of the task, with `metadata` of the run.

    Raises:
        UserError: a setting, the data or the tokenizer is not usable.
    """

    VERSION = VERSION
    DEFAULT_ANSWER_TOKENS = 512

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.closed = task_named(str(config.get("task")))
        self.run = dict(config.get("metadata") or {})
        settings = read_metadata(ClosedSettings, self.run)
        if not settings.truncation:
            settings = settings.with_changes(truncation=self.closed.truncation)
        self.settings = settings
        self.file = data.load(data.resolve_source(settings.data_dir), self.closed)
        self._documents: dict[str, str] = {}
        self._docs = self._questions()
        self._prompts: dict[tuple[str, int], QuestionPrompts] = {}
        self._end_of_thinking = settings.end_of_thinking
        self._thinking_opened = False
        self._cut_at_tokens = 0
        """Tokens of a cut answer, where only the backend sees the end of thinking; else 0."""
        lm_config = TaskConfig(
            task=self.closed.name,
            task_alias=data.title_of(self.closed.title, self.file.described()),
            output_type="generate_until",
            generation_kwargs={**GREEDY, **(config.get("generation_kwargs") or {})},
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

    def _questions(self) -> list[dict[str, Any]]:
        """Return the samples of the run, one per question, in the order of their documents.

        They are the questions of the first `num_docs` documents, by default of all. Where these are
        fewer than `min_questions`, further documents are added until there are as many. The text of
        each document is put into `_documents`.
        """
        docs: list[dict[str, Any]] = []
        least_documents = self.settings.num_docs or len(self.file.records)
        least_questions = self.settings.min_questions or 0
        for number, record in enumerate(self.file.records):
            if number >= least_documents and len(docs) >= least_questions:
                break
            document_id = str(number)
            self._documents[document_id] = record.document
            pairs = zip(record.instructions, record.outputs, strict=True)
            for question_id, (question, gold) in enumerate(pairs):
                cluster = document_id
                if self.closed.own_clusters:  # the answers about a document are independent
                    cluster = f"{document_id}-{question_id}"
                docs.append(
                    {
                        "document_id": document_id,
                        "question_id": question_id,
                        "question": question,
                        "gold": gold,
                        "cluster": cluster,
                        "source": self.file.source.kind,
                        "prompt": {},
                    }
                )
        return docs

    def test_docs(self) -> list[dict[str, Any]]:
        """Return the questions, in document order."""
        return self._docs

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """Return the question alone. The prompt around it is made when requests are built."""
        return str(doc["question"])

    def prepare(self, template: ChatTemplate | None, system_instruction: str = "") -> None:
        """Write the prompts, fit the documents and record both in the task's metadata.

        Args:
            template: lm-eval's chat template, if it applies one.
            system_instruction: text that precedes the system prompt.

        Raises:
            SettingError: no tokenizer is known, or the frame does not go with the template.
            ContextLengthError: no context length is known, or the prompts do not fit.
        """
        tokenizer = find_tokenizer(self.run)
        context_length = resolve_context(self.run)
        answer_tokens = self.answer_tokens
        frame = frame_name(self.settings.frame, template)
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if has_template and template is None and not self.settings.frame:
            name = getattr(tokenizer, "name_or_path", "the model")
            warning_once(logger, asked_without_template(name))
        writer = PromptWriter(
            frame, tokenizer, template, self.settings.answer_prefix, system_instruction
        )
        documents = len(self._documents)
        self._write_prompts(writer, tokenizer, context_length - answer_tokens)
        self._docs = [doc for doc in self._docs if _key(doc) in self._prompts]
        if not self._docs:
            raise ContextLengthError(
                f"{self.closed.name}: every document is longer than the context of {context_length} "
                "tokens and skipped. Give a larger context_length, or truncation: middle, right or "
                "left."
            )
        self._find_thinking(tokenizer, template)
        metadata = self.config.metadata
        metadata["settings"] |= {"frame": frame, "end_of_thinking": self._end_of_thinking}
        metadata["skipped_documents"] = documents - len({doc["document_id"] for doc in self._docs})
        metadata["prompt"] = {
            "context_length": context_length,
            "generated_tokens": answer_tokens,
            "tokenizer": tokenizer_name(self.run),
            "frame": frame,
        }
        if self._thinking_opened:
            metadata["prompt"]["opens_thinking"] = True

    def _find_thinking(self, tokenizer: Any, template: ChatTemplate | None) -> None:
        """Find out how thinking ends, whether the prompts open it, and who removes it.

        A backend that removes thinking is asked for whole responses, unless stop strings are set:
        those must not act
        on the thinking, and only the backend knows where it ends. Then an answer counts as cut off
        where it takes all the tokens that could be generated.
        """
        model = running_model()
        mark_of_backend = backend_mark(model, tokenizer)
        self.OUTPUT_TYPE = "generate_until"
        self._cut_at_tokens = 0
        if mark_of_backend is not None:
            stated = "end_of_thinking" in self.run
            if mark_of_backend and not stated:
                self._end_of_thinking = mark_of_backend
            if mark_of_backend and not stated and not self.config.generation_kwargs["until"]:
                self.OUTPUT_TYPE = WHOLE_RESPONSES
                vars(model)[WHOLE_RESPONSES] = partial(whole_responses, model)
            else:
                self._cut_at_tokens = self.config.generation_kwargs["max_gen_toks"]
        self._tokenizer = tokenizer
        first_prompts = next(iter(self._prompts.values())).arguments(template)
        self._thinking_opened = any(
            opens_thinking(str(prompt), self._end_of_thinking) for prompt in first_prompts
        )

    def _write_prompts(self, writer: PromptWriter, tokenizer: Any, room: int) -> None:
        """Fit each document into `room` tokens; write its questions' prompts and token counts."""
        questions_of: dict[str, list[dict[str, Any]]] = {}  # GSM's questions share one text
        for doc in self._docs:
            text = self._documents[doc["document_id"]]
            questions_of.setdefault(text, []).append(doc)
        self._prompts = {}
        for text, docs in questions_of.items():
            prompts = [writer.prompts(self.closed, doc["question"]) for doc in docs]
            document = TokenizedDocument(text, tokenizer)
            about_document = [first for first, *_ in prompts]
            cut, lengths = fit(document, about_document, room, str(self.settings.truncation))
            if cut is None:
                continue
            for doc, prompts_of_question, tokens in zip(docs, prompts, lengths, strict=True):
                self._prompts[_key(doc)] = QuestionPrompts(tuple(prompts_of_question), cut.pieces)
                doc["prompt"] = {
                    "prompt_tokens": tokens,
                    "document_tokens": len(document),
                    "kept_head": cut.head,
                    "kept_tail": cut.tail,
                    "truncated": cut.truncated,
                }

    def prompts_of(self, doc: Mapping[str, Any]) -> QuestionPrompts:
        """Return the prompts of a question, once `prepare` has written them."""
        return self._prompts[_key(doc)]

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """Return one request per question. SFiction has a second one about the real world."""
        requests = []
        for index, prompt in enumerate(self.prompts_of(doc).arguments(template_of(kwargs))):
            requests.append(self.generation_request(doc, prompt, kwargs["metadata"], index))
        return requests

    def _with_end_mark(self, response: str) -> str:
        """Return a response with the end mark of its thinking, if the backend removed it with the thinking.

        Without a mark a response to a prompt that opens the thinking counts as a thought without
        an answer. That is right only where it takes all the tokens that could be generated.
        """
        if not self._thinking_opened or not self._cut_at_tokens:
            return response
        tokens = len(self._tokenizer(response, add_special_tokens=False)["input_ids"])
        if self._end_of_thinking in response or tokens >= self._cut_at_tokens:
            return response
        return self._end_of_thinking + response

    def _score(self, doc: Mapping[str, Any], responses: Sequence[str]) -> Row:
        """Return scores and marks of one question."""
        return self.closed.score_responses(
            [self._with_end_mark(response) for response in responses],
            str(doc["gold"]),
            doc["question_id"],
            self._end_of_thinking,
            opened=self._thinking_opened,
        )

    def _describe(self, doc: Mapping[str, Any], responses: list[str]) -> Iterator[Described]:
        """Yield the extracted answer of each response, with the question's marks beside the first."""
        row = self._score(doc, responses)
        marks = [name for name in MARKS if row[name]]
        for response in responses:
            text, _ = remove_thinking(
                self._with_end_mark(response), self._end_of_thinking, opened=self._thinking_opened
            )
            answer = self.closed.rule.read(text, str(doc["gold"])).answer
            yield Described([answer, *marks], response)
            marks = []

    def process_results(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
        """Return the scores of one question, from responses or from descriptions that carry them."""
        responses = [getattr(result, "response", result) for result in results]
        row = self._score(doc, responses)
        scores: dict[str, Any] = {name: row[name] for name in self.closed.metrics()}
        # after exact_match: its aggregate replaces lm-eval's own field of this name
        scores["exact_match_stderr"] = (doc["cluster"], row["exact_match"])
        return scores

    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric."""
        return directions((*self.closed.metrics(), "exact_match_stderr"))

    def aggregation(self) -> dict[str, Any]:
        """Return how each metric becomes the task's figure."""
        functions: dict[str, Any] = dict.fromkeys(self.closed.metrics(), mean_of_known)
        functions["exact_match_stderr"] = stderr_of_mean
        return functions


def _key(doc: Mapping[str, Any]) -> tuple[str, int]:
    """Return what identifies a question among those of its task."""
    return doc["document_id"], doc["question_id"]
