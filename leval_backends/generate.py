"""Greedy decoding of all questions that share a document, in batches.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`; only the cache it starts from is ours.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from leval_backends import attention
from leval_backends.memory import attempt
from leval_backends.options import greedy, looks_back
from leval_backends.plan import Step, make_plan
from leval_backends.reader import PathReader, Setup, batches
from leval_backends.reuse import input_device, shared_attention
from leval_backends.steps import NearTies, StopStrings

logger = logging.getLogger(__name__)

_LISTED = 1000  # near ties

# A question's place and its new tokens, padding and what follows the end included; None where
# memory did not suffice.
Answered = tuple[int, list[int] | None]


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
    """Answer questions, in the order that computes least.

    Args:
        questions: In any order.
        setup: With reuse of mode `split` or `copied`.
        tokenizer: Of the model, with a padding token.
    """

    def __init__(self, questions: Sequence[Question], setup: Setup, tokenizer: Any) -> None:
        self.questions = questions
        self.setup = setup
        self.model = setup.model
        self.counters = setup.counters
        self.tokenizer = tokenizer
        self.reader = PathReader(setup, max(len(question.tokens) for question in questions))

    @torch.no_grad()
    def answers(self) -> Iterator[Answered]:
        """Answer every question; each is yielded as soon as its batch is finished."""
        plan = make_plan(
            [question.tokens for question in self.questions],
            max_suffix=min(1024, self.setup.settings.prefill_chunk),
        )
        self.counters.asked(
            prompts=plan.prompt_tokens,
            unique=plan.unique_tokens,
            expected=plan.computed_tokens + sum(q.max_new_tokens for q in self.questions),
        )
        with shared_attention(self.model, split=self.setup.split):
            for step in plan.steps:
                yield from self._step(step)

    def _step(self, step: Step) -> Iterator[Answered]:
        if attempt(self.reader.extend, step, self.questions[step.source].tokens) is None:
            # Steps below start from positions that are missing now; they rebuild them themselves.
            for row in step.rows:
                yield row, self._failed(row)
            return
        groups: dict[tuple[str, int], list[int]] = {}
        for row in sorted(step.rows, key=lambda row: (len(self.questions[row].tokens), row)):
            question = self.questions[row]
            equal = looks_back(question.options, self.model.generation_config)
            width = len(question.tokens) if equal else 0
            groups.setdefault((question.key, width), []).append(row)
        for group in groups.values():
            for batch in batches(
                self.setup,
                group,
                [len(self.questions[row].tokens) - step.length for row in group],
                shared=step.length,
                extra=self.questions[group[0]].max_new_tokens,
                max_tokens=max(self.setup.settings.prefill_chunk, 1024),
            ):
                yield from self._batch(batch, step.length)

    def _batch(self, batch: list[int], length: int) -> Iterator[Answered]:
        """Decode a batch; where memory runs out, its halves; a single row fails by name."""
        answers = attempt(self._decode, [self.questions[row] for row in batch], length)
        half = len(batch) // 2
        if answers is not None:
            yield from zip(batch, answers, strict=True)
        elif half:
            logger.warning("out of memory: %d questions at a time instead of %d", half, len(batch))
            yield from self._batch(batch[:half], length)
            yield from self._batch(batch[half:], length)
        else:
            yield batch[0], self._single(batch[0], length)

    def _single(self, row: int, length: int) -> list[int] | None:
        """The last resort for one question: read its own part in chunks as well."""
        question = self.questions[row]
        read = len(question.tokens) - 1
        step = Step(row, length, read, (row,), (row,))
        # Where its own part is one token already, chunks of it are no smaller.
        if read > length and attempt(self.reader.extend, step, question.tokens) is not None:
            answers = attempt(self._decode, [question], read)
            if answers is not None:
                return answers[0]
        return self._failed(row)

    def _failed(self, row: int) -> list[int] | None:
        self.counters.failed(self.questions[row].name, len(self.questions[row].tokens))
        return None

    def _decode(self, questions: list[Question], length: int) -> list[list[int]]:
        """New tokens of each question, all of which begin with the path's first `length`."""
        device = input_device(self.model)
        suffixes = [question.tokens[length:] for question in questions]
        width = max(map(len, suffixes))
        pads = torch.tensor([width - len(suffix) for suffix in suffixes], device=device)
        padded = bool(pads.any())
        # Prefix, then each row's padding, then its own part: positions follow from the mask.
        shape = (len(suffixes), length + width)
        ids = torch.full(shape, self.tokenizer.pad_token_id, device=device)
        ids[:, :length] = torch.tensor(self.reader.tokens[:length], dtype=torch.long, device=device)
        mask = torch.ones_like(ids)
        for index, suffix in enumerate(suffixes):
            ids[index, length + width - len(suffix) :] = torch.tensor(suffix, device=device)
            mask[index, length : length + width - len(suffix)] = 0
        first = questions[0]
        past = self.reader.rows(length, width + first.max_new_tokens, pads if padded else None)
        ties = NearTies(self.counters)
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
        self.counters.prefilled(sum(map(len, suffixes)))
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
        # The bar expects every question's longest answer.
        self.counters.advance(len(fresh) * (questions[0].max_new_tokens - ties.step))
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
