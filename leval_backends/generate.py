"""Greedy decoding of all questions that share a document, in batches.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`; only the cache it starts from is ours.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from leval_backends import attention
from leval_backends.plan import Step, make_plan
from leval_backends.reader import Counters, PathReader, batches, free_memory, out_of_memory
from leval_backends.reuse import Reuse, implementation, input_device

logger = logging.getLogger(__name__)

NEAR_TIE = 1e-4
_LISTED = 1000
# Keys of a checkpoint's generation config that greedy decoding does not look at, or that are the
# same for every row. Any other key may look at the tokens before, where padding would show.
_HARMLESS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id"),
        *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p"),
        *("epsilon_cutoff", "eta_cutoff", "transformers_version", "_from_model_config"),
        *("use_cache", "cache_implementation", "max_length", "max_new_tokens"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        "return_dict_in_generate",
    }
)
_OURS = frozenset({"do_sample", "temperature", "top_k", "top_p", "use_cache"})
_ALONE = frozenset(
    {
        *("num_beams", "num_return_sequences", "num_beam_groups", "constraints"),
        *("force_words_ids", "penalty_alpha", "dola_layers", "guidance_scale"),
        *("prompt_lookup_num_tokens", "assistant_model", "streamer", "max_length"),
        *("cache_implementation", "past_key_values", "stopping_criteria", "logits_processor"),
    }
)


@dataclass(frozen=True)
class Question:
    """One request, tokenised and cut.

    Attributes:
        name: How it is called in messages.
        tokens: The prompt.
        until: Stop strings, the end-of-sequence string included.
        max_new_tokens: Tokens to generate at most.
        options: Remaining generation options.
    """

    name: str
    tokens: list[int]
    until: tuple[str, ...]
    max_new_tokens: int
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Questions with the same key may be decoded together."""
        return json.dumps(
            [self.until, self.max_new_tokens, dict(self.options)], sort_keys=True, default=str
        )


def must_run_alone(options: Mapping[str, Any]) -> str:
    """Why generation options cannot be served from a shared prefix; empty if they can."""
    if options.get("do_sample"):
        return "sampling"
    used = sorted(
        key for key in _ALONE & options.keys() if options[key] not in (None, 1, False, 1.0)
    )
    return f"generation option {', '.join(used)}" if used else ""


def looks_back(options: Mapping[str, Any], generation_config: Any) -> bool:
    """Whether decoding looks at earlier tokens, so that rows of a batch must not be padded."""
    return bool(options.keys() - _OURS) or bool(generation_config.to_diff_dict().keys() - _HARMLESS)


class StopStrings(StoppingCriteria):
    """Stop each row at its first stop string, looked for in its last tokens as lm-eval does.

    Attributes:
        ended: New tokens of each stopped row, by its number.
    """

    def __init__(self, tokenizer: Any, until: Sequence[str], start: int) -> None:
        self.tokenizer = tokenizer
        self.start = start
        self.until = [
            # Two tokens more than the string takes: it may come out cut in another way.
            (stop, len(tokenizer.encode(stop, add_special_tokens=False)) + 2)
            for stop in until
            if stop
        ]
        self.ended: dict[int, int] = {}

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """True for rows that have just completed a stop string, `[batch]`."""
        fresh = input_ids[:, self.start :]
        done = [False] * len(fresh)
        for stop, width in self.until:
            texts = self.tokenizer.batch_decode(fresh[:, -width:])
            done = [was or stop in text for was, text in zip(done, texts, strict=True)]
        for row, stopped in enumerate(done):
            if stopped:
                self.ended.setdefault(row, fresh.shape[1])
        return torch.tensor(done, device=input_ids.device)


class NearTies(LogitsProcessor):
    """Note the steps whose two best logits differ by less than `NEAR_TIE`; change nothing."""

    def __init__(self, progress: Callable[[int], object]) -> None:
        self.steps: list[tuple[int, int, float, list[int]]] = []
        self.step = 0
        self.progress = progress

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores unchanged, `[batch, vocabulary]`."""
        best = scores.topk(2, dim=-1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        for row, gap in enumerate(gaps):
            if gap < NEAR_TIE:
                self.steps.append((row, self.step, gap, best.indices[row].tolist()))
        self.step += 1
        self.progress(len(gaps))
        return scores


class Decoder:
    """Answer questions in the order of a plan.

    Args:
        model: A causal language model of transformers.
        tokenizer: Its tokenizer, with a padding token.
        reuse: What `reuse.examine` found; mode `split` or `copied`.
        counters: What is counted.
        budget_bytes: For key/value caches.
        max_rows: Questions decoded together at most.
        chunk: Tokens in a forward pass at most.
        progress: Told how many tokens were computed.
        expect: Told before the start how many there will be at most.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        reuse: Reuse,
        counters: Counters,
        *,
        budget_bytes: int,
        max_rows: int,
        chunk: int,
        progress: Callable[[int], object] = lambda tokens: None,
        expect: Callable[[int], object] = lambda tokens: None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.reuse = reuse
        self.counters = counters
        self.budget_bytes = budget_bytes
        self.max_rows = max_rows
        self.chunk = chunk
        self.progress = progress
        self.expect = expect

    @torch.no_grad()
    def answer(
        self,
        questions: Sequence[Question],
        done: Callable[[int, list[int] | None], object],
    ) -> None:
        """Generate for every question.

        Args:
            questions: In any order.
            done: Called once a question with its index and new tokens, padding and what follows
                the end included; None where memory did not suffice.
        """
        prompts = [question.tokens for question in questions]
        plan = make_plan(prompts, max_suffix=min(1024, self.chunk))
        self.counters.planned(plan)
        self.expect(plan.computed_tokens + sum(q.max_new_tokens for q in questions))
        capacity = max(map(len, prompts), default=0)
        reader = PathReader(self.model, self.reuse, capacity, self.chunk, self.counters)
        with implementation(self.model, split=reader.split):
            for step in plan.steps:
                self._step(step, questions, reader, done)

    def _step(
        self,
        step: Step,
        questions: Sequence[Question],
        reader: PathReader,
        done: Callable[[int, list[int] | None], object],
    ) -> None:
        try:
            reader.extend(step, questions[step.source].tokens, progress=self.progress)
        except Exception as error:
            if not out_of_memory(error):
                raise
            # Steps below start from positions that are missing now; they rebuild them themselves.
            self._fail(step.rows, questions, done)
            return
        groups: dict[tuple[str, int], list[int]] = {}
        for row in sorted(step.rows, key=lambda row: (len(questions[row].tokens), row)):
            question = questions[row]
            equal = looks_back(question.options, self.model.generation_config)
            width = len(question.tokens) if equal else 0
            groups.setdefault((question.key, width), []).append(row)
        for group in groups.values():
            for batch in batches(
                group,
                [len(questions[row].tokens) - step.length for row in group],
                shared=step.length,
                extra=questions[group[0]].max_new_tokens,
                reuse=self.reuse,
                budget_bytes=self.budget_bytes,
                max_rows=self.max_rows,
                max_tokens=max(self.chunk, 1024),
            ):
                self._batch(batch, step.length, questions, reader, done)

    def _batch(
        self,
        batch: list[int],
        length: int,
        questions: Sequence[Question],
        reader: PathReader,
        done: Callable[[int, list[int] | None], object],
    ) -> None:
        """Decode a batch; where memory runs out, its halves; a single row fails by name."""
        try:
            rows = self._decode([questions[row] for row in batch], length, reader)
        except Exception as error:
            if not out_of_memory(error):
                raise
            free_memory()
            if len(batch) == 1:
                self._single(batch[0], length, questions, reader, done)
                return
            half = len(batch) // 2
            logger.warning("out of memory: %d questions at a time instead of %d", half, len(batch))
            self._batch(batch[:half], length, questions, reader, done)
            self._batch(batch[half:], length, questions, reader, done)
            return
        for row, tokens in zip(batch, rows, strict=True):
            done(row, tokens)

    def _single(
        self,
        row: int,
        length: int,
        questions: Sequence[Question],
        reader: PathReader,
        done: Callable[[int, list[int] | None], object],
    ) -> None:
        """The last resort for one question: read its own part in chunks as well."""
        question = questions[row]
        read = len(question.tokens) - 1
        try:
            if read == length:
                raise MemoryError  # its own part is one token already
            reader.extend(Step(row, length, read, (row,), (row,)), question.tokens)
            tokens = self._decode([question], read, reader)[0]
        except Exception as error:
            if not out_of_memory(error):
                raise
            self._fail([row], questions, done)
            return
        done(row, tokens)

    def _fail(
        self,
        rows: Sequence[int],
        questions: Sequence[Question],
        done: Callable[[int, list[int] | None], object],
    ) -> None:
        for row in rows:
            name = questions[row].name
            logger.error(
                "out of memory: request %s (%d prompt tokens) has no answer; the others count",
                name,
                len(questions[row].tokens),
            )
            self.counters.requests_failed.append(name)
            done(row, None)

    def _decode(
        self, questions: list[Question], length: int, reader: PathReader
    ) -> list[list[int]]:
        """New tokens of each question, all of which begin with the path's first `length`."""
        device = input_device(self.model)
        own = [question.tokens[length:] for question in questions]
        width = max(map(len, own))
        pads = torch.tensor([width - len(row) for row in own], device=device)
        padded = bool(pads.any())
        # Prefix, then each row's padding, then its own part: positions follow from the mask.
        ids = torch.full((len(own), length + width), self.tokenizer.pad_token_id, device=device)
        ids[:, :length] = torch.tensor(reader.tokens[:length], dtype=torch.long, device=device)
        mask = torch.ones_like(ids)
        for index, row in enumerate(own):
            ids[index, length + width - len(row) :] = torch.tensor(row, device=device)
            mask[index, length : length + width - len(row)] = 0
        first = questions[0]
        past = reader.rows(length, width + first.max_new_tokens, pads if padded else None)
        ties = NearTies(self.progress)
        stop = StopStrings(self.tokenizer, first.until, length + width)
        with attention.attending(past):
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=past,
                max_length=length + width + first.max_new_tokens,
                stopping_criteria=StoppingCriteriaList([stop]),
                logits_processor=LogitsProcessorList([ties]),
                pad_token_id=self.tokenizer.pad_token_id,
                use_cache=True,
                **greedy(first.options),
            )
        fresh: list[list[int]] = output[:, length + width :].tolist()
        self.counters.tokens_prefilled += sum(map(len, own))
        self.progress(sum(map(len, own)))
        self._count(questions, fresh, stop, ties)
        return fresh

    def _count(
        self,
        questions: list[Question],
        fresh: list[list[int]],
        stop: StopStrings,
        ties: NearTies,
    ) -> None:
        # A row that no stop string ended (the end-of-sequence string is one) ran to the limit,
        # or to another end token of the checkpoint's, after which there is padding.
        lengths = [stop.ended.get(row, self._length(tokens)) for row, tokens in enumerate(fresh)]
        self.counters.tokens_generated += sum(lengths)
        # The bar was told of every question's longest answer.
        self.progress(len(fresh) * (questions[0].max_new_tokens - ties.step))
        for row, step, gap, tokens in ties.steps:
            if step < lengths[row] and len(self.counters.near_ties) < _LISTED:
                self.counters.near_ties.append(
                    {"request": questions[row].name, "step": step, "gap": gap, "tokens": tokens}
                )

    def _length(self, tokens: list[int]) -> int:
        pad = self.tokenizer.pad_token_id
        length = len(tokens)
        while length and tokens[length - 1] == pad:
            length -= 1
        return length


def greedy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Generation options without those that only sampling has."""
    kept = {key: value for key, value in options.items() if key not in _OURS}
    return {**kept, "do_sample": False}
