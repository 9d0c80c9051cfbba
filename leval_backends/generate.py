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
from transformers import LogitsProcessorList, StoppingCriteriaList

from leval_backends import attention
from leval_backends.options import greedy, looks_back
from leval_backends.plan import Step, make_plan
from leval_backends.reader import Counters, PathReader, batches, free_memory, out_of_memory
from leval_backends.reuse import Reuse, implementation, input_device
from leval_backends.steps import NearTies, StopStrings

logger = logging.getLogger(__name__)

_LISTED = 1000  # near ties


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
