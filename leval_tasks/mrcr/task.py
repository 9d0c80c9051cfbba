"""MRCR as lm-eval tasks: one answer per conversation, as published by OpenAI."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig
from lm_eval.utils import warning_once

from leval_tasks.common.chat import (
    ROLES,
    ChatTemplate,
    Message,
    Rendered,
    count_tokens,
    rendered,
)
from leval_tasks.common.errors import ContextLengthError, DataError
from leval_tasks.common.lm_task import GREEDY, GenerationTask
from leval_tasks.common.metadata import MRCRSettings, read_metadata
from leval_tasks.common.metrics import aggregations_of_known, compose, directions, scores_of_all
from leval_tasks.common.model import find_tokenizer, resolve_context, tokenizer_name
from leval_tasks.mrcr.data import Conversation, find_files
from leval_tasks.mrcr.scoring import BIN_EDGES, bin_of, score
from resonance_vllm.common.errors import error_message

logger = logging.getLogger(__name__)

ANSWER_TOKENS = 2048
"""Tokens of an answer; the published ones have at most about a thousand."""

METRIC = "mrcr"
ENCODING = "o200k_base"
"""The tokens by which the published results are binned."""
ENCODING_ADDRESS = f"https://openaipublic.blob.core.windows.net/encodings/{ENCODING}.tiktoken"
ENCODING_FILE = hashlib.sha1(ENCODING_ADDRESS.encode(), usedforsecurity=False).hexdigest()
"""Where tiktoken fetches its vocabulary, and under which name it looks for it in its cache."""
CHARACTERS_PER_TOKEN = 10
"""More than any tokenizer has on average: longer conversations are not tokenized at all."""

Doc = Mapping[str, Any]


class MRCRTask(GenerationTask):
    """The conversations with 2, 4 or 8 needles that fit into the context.

    Args:
        config: lm-eval's configuration of the task, with `metadata` of the run.

    Raises:
        UserError: a setting or the data is not usable.
    """

    VERSION = 1
    DEFAULT_ANSWER_TOKENS = ANSWER_TOKENS

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._metadata = dict(config.get("metadata") or {})
        self.settings = read_metadata(MRCRSettings, self._metadata)
        self.files = find_files(int(self._metadata["needles"]), self.settings.data_dir)
        self._prompts: dict[int, Rendered] = {}
        self._read_docs: list[dict[str, Any]] | None = None
        given = config.get("generation_kwargs") or {}
        lm_config = TaskConfig(
            task=config.get("task"),
            output_type=self.OUTPUT_TYPE,
            generation_kwargs={**GREEDY, "max_gen_toks": ANSWER_TOKENS, **given},
            num_fewshot=0,
            metadata={
                **self._metadata,
                "data": self.files.described(),
                "settings": self.settings.recorded(),
            },
        )
        self._configure(lm_config)

    def test_docs(self) -> list[dict[str, Any]]:
        """Return the conversations that fit, in the order of the files; their texts are not part of it."""
        if self._read_docs is None:
            self._read_docs = list(self._fitting_docs())
        return self._read_docs

    def _fitting_docs(self) -> Iterator[dict[str, Any]]:
        """Yield the first `num_samples` conversations of each bin that fit into the context.

        Whether they fit is counted in the model's tokens without its chat template, which adds a
        few per message; `prepare` checks the whole prompt.

        Raises:
            DataError: a file is damaged, or the tokens of the bins cannot be counted.
        """
        room = resolve_context(self._metadata) - self.answer_tokens
        tokenizer = find_tokenizer(self._metadata)
        count = self._counter(tokenizer)
        taken: Counter[int | None] = Counter()
        for number, row in self.files.rows(longest=CHARACTERS_PER_TOKEN * max(0, room)):
            messages = row.messages
            texts = [message["content"] for message in messages]
            of_texts = tokenizer(texts, add_special_tokens=False)["input_ids"]
            if sum(map(len, of_texts)) > room:
                continue
            upper_edge = bin_of(sum(map(count, [*texts, row.answer])))
            if self.settings.num_samples and taken[upper_edge] >= self.settings.num_samples:
                continue
            taken[upper_edge] += 1
            yield _doc(number, row, messages, upper_edge)

    def _counter(self, tokenizer: Any) -> Callable[[str], int]:
        """Return the function that counts the tokens of a text for the bins.

        Raises:
            DataError: the encoding of the published bins cannot be loaded.
        """
        if self.settings.bin_tokenizer == "model":
            return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
        try:
            import tiktoken

            encoding = tiktoken.get_encoding(ENCODING)
        except Exception as error:  # noqa: BLE001 - of whatever fetches the file
            raise DataError(
                f"bin_tokenizer: tiktoken cannot load {ENCODING}, by whose tokens the published results "
                f"are binned; set bin_tokenizer: model, or download {ENCODING_ADDRESS} where that is "
                f"possible, name the file {ENCODING_FILE} and set TIKTOKEN_CACHE_DIR to its folder. "
                f"Here it fails: {error_message(error)}"
            ) from None
        return lambda text: len(encoding.encode(text, disallowed_special=()))

    def doc_to_text(self, doc: Doc) -> str:
        """Return the number of a conversation. Its prompt is made when requests are built."""
        return str(doc["question_id"])

    def prepare(self, template: ChatTemplate | None = None, system_instruction: str = "") -> None:
        """Write the prompts, drop those that do not fit, and record what was read.

        Args:
            template: lm-eval's chat template; without one the conversation is written as plain
                text.
            system_instruction: text that precedes the conversation.

        Raises:
            ContextLengthError: no conversation fits.
        """
        tokenizer = find_tokenizer(self._metadata)
        context_length = resolve_context(self._metadata)
        room = context_length - self.answer_tokens
        if template is None and getattr(tokenizer, "chat_template", None):
            warning_once(
                logger,
                f"{getattr(tokenizer, 'name_or_path', 'the model')} has a chat template and MRCR is "
                "asked without it; give --apply_chat_template (in a sweep, of the model: "
                "apply_chat_template: true)",
            )
        fitting = []
        conversations = dict(self.files.rows(longest=CHARACTERS_PER_TOKEN * max(0, room)))
        for doc in self.test_docs():
            messages = conversations[doc["question_id"]].messages
            prompt = _prompt(messages, system_instruction, template, tokenizer)
            (tokens,) = count_tokens(tokenizer, [prompt.text])
            if tokens <= room:
                self._prompts[doc["question_id"]] = prompt
                doc["prompt"] = {"prompt_tokens": tokens}
                fitting.append(doc)
        self._read_docs = fitting
        if not fitting:
            raise ContextLengthError(
                f"context_length: no conversation of {self.task_name} fits into {context_length} tokens "
                f"with an answer of {self.answer_tokens}. Give a larger context_length or a smaller "
                "max_gen_toks."
            )
        self._record(fitting, context_length, tokenizer, template)

    def _record(
        self, docs: Sequence[Doc], context_length: int, tokenizer: Any, template: Any
    ) -> None:
        """Write into the results what was asked, and how many conversations of each bin."""
        bins = Counter(doc["bin"] for doc in docs)
        self._config.metadata.update(
            bins={str(upper_edge): bins[upper_edge] for upper_edge in BIN_EDGES[1:]},
            prompt={
                "context_length": context_length,
                "generated_tokens": self.answer_tokens,
                "tokenizer": tokenizer_name(self._metadata),
                "frame": "plain" if template is None else "chat_template",
            },
        )

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """Return the one request of a conversation."""
        prompt = self._prompts[doc["question_id"]]
        return [self.generation_request(doc, prompt.argument, kwargs["metadata"])]

    def process_results(self, doc: Doc, results: Sequence[str]) -> dict[str, Any]:
        """Return the score of an answer, over all conversations and in its bin."""
        value = score(results[0], doc["gold"], doc["prefix"])
        scores = {METRIC: value}
        if doc["bin"] is not None:
            scores[compose(METRIC, doc["bin"])] = value
        return scores_of_all(scores, self.metric_names(), doc["cluster"])

    def metric_names(self) -> list[str]:
        """Return every metric of this run."""
        return [METRIC, *(compose(METRIC, upper_edge) for upper_edge in BIN_EDGES[1:])]

    def aggregation(self) -> dict[str, Any]:
        """Return how each metric becomes the task's figure and its standard error."""
        return aggregations_of_known(self.metric_names())

    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric."""
        return directions(self.aggregation())


def _doc(
    number: int, row: Conversation, messages: Sequence[Message], upper_edge: int | None
) -> dict[str, Any]:
    """Return what is logged of a question about a conversation.

    Questions about the same conversation are one document and one cluster, which its messages
    before the question identify.

    Args:
        number: of the question in the data, by which its messages are found again.
        row: the question as the data have it.
        messages: its conversation, the question last.
        upper_edge: of its bin of lengths, in tokens; None outside of all bins.
    """
    before_question = json.dumps(messages[:-1]).encode()
    conversation = hashlib.sha256(before_question).hexdigest()[:16]
    return {
        "document_id": conversation,
        "question_id": number,
        "cluster": conversation,
        "needles": row.n_needles,
        "desired_msg_index": row.desired_msg_index,
        "total_messages": row.total_messages,
        "n_chars": row.n_chars,
        "bin": upper_edge,
        "prefix": row.random_string_to_prepend,
        "gold": row.answer,
        "prompt": {},
    }


def _prompt(
    messages: list[Message], system: str, template: ChatTemplate | None, tokenizer: Any
) -> Rendered:
    """Return the prompt of a conversation."""
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    if template is not None:
        return rendered(messages, template, tokenizer)
    turns = [f"{ROLES[message['role']]}: {message['content']}" for message in messages]
    text = "\n\n".join([*turns, f"{ROLES['assistant']}:"])
    return Rendered(text, text)
