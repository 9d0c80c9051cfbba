"""The needle grid as lm-eval tasks: one prompt for each sample of each length and depth.

The samples of a length share their haystack, and the haystack of a shorter length is the beginning
of that of a longer one. Sample `n` of a depth has the same needles at every length. Prompts thus
begin alike as far as they can, and a backend that shares prefixes reads what is common only once.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.config.task import TaskConfig

from leval_tasks.common.chat import ChatTemplate, Rendered, count_tokens, rendered
from leval_tasks.common.errors import ContextLengthError
from leval_tasks.common.lm_task import GREEDY, GenerationTask
from leval_tasks.common.metadata import RetrievalSettings, read_metadata
from leval_tasks.common.metrics import (
    DEPTH,
    aggregations_of_known,
    compose,
    directions,
    scores_of_all,
)
from leval_tasks.common.model import find_limit, find_tokenizer, tokenizer_name
from leval_tasks.retrieval.counting import count_prompt_tokens
from leval_tasks.retrieval.haystack import read_haystack
from leval_tasks.retrieval.needles import (
    VARIANTS,
    Question,
    draw_question,
    is_found,
    move_needle,
    share_found,
)
from leval_tasks.statistics.retrieval import Retrieved, place_row

ANSWER_TOKENS = 128
"""Tokens of an answer in RULER, which the context length includes."""


ACCURACY = "accuracy"
"""Metric: share of the samples whose needle at the stated depth was found."""

RULER_SCORE = "ruler_score"
"""Metric: mean share of all values asked for that were found, where several are."""

Doc = Mapping[str, Any]


class NeedleTask(GenerationTask):
    """One variant of needles, at every length and depth of the settings.

    Args:
        config: lm-eval's configuration of the task, with `metadata` of the run.

    Raises:
        UserError: a setting, the data or the tokenizer is not usable.
    """

    VERSION = 1
    DEFAULT_ANSWER_TOKENS = ANSWER_TOKENS

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._metadata = dict(config.get("metadata") or {})
        self.variant = VARIANTS[str(self._metadata["variant"])]
        self._requested = read_metadata(RetrievalSettings, self._metadata)
        self._pieces: dict[int, int] = {}
        """Context length -> pieces of the haystack, once requests are built."""
        self._found: dict[tuple[int, int, int], bool] = {}
        """Length, depth and number of each scored sample -> whether its needle was found."""
        given = config.get("generation_kwargs") or {}
        lm_config = TaskConfig(
            task=config.get("task"),
            output_type=self.OUTPUT_TYPE,
            generation_kwargs={**GREEDY, "max_gen_toks": ANSWER_TOKENS, **given},
            num_fewshot=0,
            metadata=self._metadata,
        )
        self._configure(lm_config)

    @cached_property
    def settings(self) -> RetrievalSettings:
        """Return the settings of this run, with its context lengths.

        Raises:
            ContextLengthError: no context length is known, or one is above the backend's limit.
        """
        limit = find_limit(self._metadata)
        lengths = self._requested.context_length or (limit.known,)
        limit.check(lengths[-1], "context_length")
        settings = self._requested.with_changes(context_length=lengths)
        self._config.metadata["settings"] = settings.recorded()
        return settings

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the context lengths of this run, ascending."""
        return self.settings.context_length or ()

    @cached_property
    def _docs(self) -> list[dict[str, Any]]:
        """Return one entry per sample; those of the same number at all places are adjacent.

        So a `limit` keeps samples of every place.
        """
        settings = self.settings
        return [
            self._doc(length, depth, number)
            for number in range(settings.num_samples)
            for length in self.lengths
            for depth in settings.depths
        ]

    def _doc(self, length: int, depth: int, number: int) -> dict[str, Any]:
        """Return the entry of one sample."""
        question, value = self.question(depth, number)
        return {
            "document_id": f"{length}-{depth}",
            "question_id": number,
            "cluster": f"{length}-{depth}-{number}",
            "length": length,
            "depth": depth,
            "first_depth": question.needles[0].depth,
            "queries": list(question.queries),
            "values": list(question.values),
            "gold": value,
            "prompt": {},
        }

    def question(self, depth: int, number: int) -> tuple[Question, str]:
        """Return the question of a sample, and the value of the needle at the stated depth.

        That needle is one of those asked for. All others are at random depths, as in RULER.
        """
        settings = self.settings
        rng = Random(f"{settings.seed}/{depth}/{number}")
        question = draw_question(self.variant, settings.key_type, settings.value_type, rng)
        value = rng.choice(question.values)
        return move_needle(question, value, depth), value

    def test_docs(self) -> list[dict[str, Any]]:
        """Return the samples."""
        return self._docs

    def doc_to_text(self, doc: Doc) -> str:
        """Return the place and number of a sample. Its prompt is made when requests are built."""
        return str(doc["cluster"])

    def prepare(self, template: ChatTemplate | None = None, system_instruction: str = "") -> None:
        """Choose how much of the haystack each length takes, and record what was read.

        Args:
            template: lm-eval's chat template, if it applies one.
            system_instruction: text that precedes the prompt.

        Raises:
            SettingError: no tokenizer is known.
            ContextLengthError: question and answer alone do not fit.
            DataError: the haystack is too short, or its file is missing.
        """
        answer_tokens = self.answer_tokens
        self._template = template
        self._system = system_instruction
        self._tokenizer = find_tokenizer(self._metadata)
        self.haystack, data = read_haystack(self.settings, self._tokenizer, self.lengths[-1])
        limit = find_limit(self._metadata)
        for length in self.lengths:
            readable = length
            if limit.tokens is not None:
                readable = min(length, limit.tokens - limit.kept_back)
            self._fit(length, readable - answer_tokens)
        self._config.metadata.update(
            data={"sample": False, "path": data["source"], "files": {}, **data},
            prompt={
                "context_length": self.lengths[-1],
                "generated_tokens": answer_tokens,
                "tokenizer": tokenizer_name(self._metadata),
                "frame": "plain" if template is None else "chat_template",
            },
        )

    def _fit(self, length: int, room: int) -> None:
        """Find how many pieces of the haystack fit, and record the tokens of each prompt.

        Args:
            length: context length.
            room: tokens that a prompt may have.

        Raises:
            ContextLengthError: not even one piece fits.
        """
        docs = [doc for doc in self._docs if doc["length"] == length]
        bare = max(self._count(docs, pieces=0))
        pieces = self.haystack.pieces_within(max(0, room - bare))
        while pieces > 0:
            tokens = self._count(docs, pieces)
            excess = max(tokens) - room
            if excess <= 0:
                break
            shorter = self.haystack.token_ends[pieces - 1] - excess
            pieces = self.haystack.pieces_within(max(0, shorter))
        if pieces <= 0:
            raise ContextLengthError(
                f"context_length: {length} is too small for {self.task_name}: the question alone takes "
                f"{bare} tokens and {max(room, 0)} are left beside the answer. Give a larger "
                "context_length or a smaller max_gen_toks."
            )
        self._pieces[length] = pieces
        for doc, count in zip(docs, tokens, strict=True):
            doc["prompt"] = {
                "prompt_tokens": count,
                "document_tokens": self.haystack.token_ends[pieces - 1],
            }

    def _count(self, docs: Sequence[Doc], pieces: int) -> list[int]:
        """Return the tokens of the prompts of some samples with a part of the haystack."""
        return [self._count_prompt(doc, pieces) for doc in docs]

    def _count_prompt(self, doc: Doc, pieces: int) -> int:
        """Return the tokens of one prompt."""
        prompt = self._prompt(doc, pieces).text
        question, _ = self.question(doc["depth"], doc["question_id"])
        context = self.haystack.with_needles(question, pieces)
        before, has_context, after = prompt.partition(context)
        if not has_context:  # a chat template that changes what a message says
            return count_tokens(self._tokenizer, [prompt])[0]
        parts = [before, *self.haystack.parts(question, pieces), after]
        return count_prompt_tokens(self._tokenizer, self.haystack, prompt, parts)

    def _prompt(self, doc: Doc, pieces: int) -> Rendered:
        """Return the prompt of a sample around the first pieces of the haystack."""
        question, _ = self.question(doc["depth"], doc["question_id"])
        asked = question.prompt(self.haystack.with_needles(question, pieces))
        if self._template is None:
            system = f"{self._system}\n\n" if self._system else ""
            text = f"{system}{asked} {question.answer_prefix}"
            return Rendered(text, text)
        messages = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": question.answer_prefix},
        ]
        if self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        return rendered(messages, self._template, self._tokenizer)

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[Instance]:
        """Return the one request of a sample.

        All of a grid are about one text: a sweep passes them on together, so that a backend can read
        once what prompts of different lengths and depths begin with.
        """
        prompt = self._prompt(doc, self._pieces[doc["length"]])
        request = self.generation_request(doc, prompt.argument, kwargs["metadata"])
        request.shared_text = self.task_name
        return [request]

    def process_results(self, doc: Doc, results: Sequence[str]) -> dict[str, Any]:
        """Return whether the needle was found, under the metrics of its length and of its place."""
        length = doc["length"]
        depth = doc["depth"]
        found = is_found(doc["gold"], results[0])
        self._found[length, depth, doc["question_id"]] = found
        self._record_place(length, depth)
        scores = {
            compose(ACCURACY, length): float(found),
            compose(f"{DEPTH}{depth}", length): float(found),
        }
        if self.variant.several:
            scores[compose(RULER_SCORE, length)] = share_found(doc["values"], results[0])
        return scores_of_all(scores, self.metric_names(), doc["cluster"])

    def _record_place(self, length: int, depth: int) -> None:
        """Write the counts and interval of one place into the results."""
        places = self._config.metadata.setdefault("places", {})
        of_place = [found for key, found in self._found.items() if key[:2] == (length, depth)]
        count = Retrieved(length, sum(of_place), len(of_place))
        places.setdefault(str(length), {})[str(depth)] = place_row(count)

    def metric_names(self) -> list[str]:
        """Return every metric of this run."""
        metrics = [ACCURACY, *(f"{DEPTH}{depth}" for depth in self.settings.depths)]
        if self.variant.several:
            metrics.append(RULER_SCORE)
        return [compose(metric, length) for length in self.lengths for metric in metrics]

    def aggregation(self) -> dict[str, Any]:
        """Return how each metric becomes the task's figure and its standard error."""
        return aggregations_of_known(self.metric_names())

    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric."""
        return directions(self.aggregation())
