"""Greedy decoding of all questions that share a document, in batches.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`. Only the cache that it starts from is ours.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from leval_harness.backends.arguments import depends_on_earlier_tokens, greedy
from leval_harness.backends.attention import attending, shared_attention
from leval_harness.backends.forward import input_device, left_padded
from leval_harness.backends.path_reader import PathReader, Setup
from leval_harness.backends.prompt_trie import Step, make_plan
from leval_harness.backends.resources import Counters, attempt, halving

NEAR_TIE = 1e-4
_MOST_NEAR_TIES = 1000  # are listed
_MAX_SUFFIX = 1024  # tokens of a question that is read in a batch

# A question's place and its new tokens, padding and what follows the end included. None where it
# does not fit into memory.
Answered = tuple[int, list[int] | None]


@dataclass(frozen=True)
class Question:
    """One request, tokenised and cut; `until` contains the end-of-sequence string."""

    name: str
    tokens: list[int]
    until: tuple[str, ...]
    max_new_tokens: int
    options: Mapping[str, Any]

    @property
    def length(self) -> int:
        """Positions of the prompt and its longest answer."""
        return len(self.tokens) + self.max_new_tokens


class StopStrings(StoppingCriteria):
    """Stop each row at its first stop string, searched in its last tokens as lm-eval does.

    What a row got after its stop string, while other rows went on, is cut by `ended`.

    Args:
        tokenizer: The model's.
        until: The strings.
        start: Length of the prompt's ids.
    """

    def __init__(self, tokenizer: Any, until: Sequence[str], start: int) -> None:
        self.tokenizer = tokenizer
        self.start = start
        self.until = [stop for stop in until if stop]
        # Two tokens more than a string takes: the model may have cut it in another way.
        lengths = [len(tokenizer.encode(stop, add_special_tokens=False)) for stop in self.until]
        self.width = max(lengths, default=0) + 2
        self.ended: dict[int, int] = {}  # stopped row -> its new tokens

    def __call__(
        self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any
    ) -> torch.Tensor:
        """True for rows that have completed a stop string, `[batch]`."""
        if self.until:
            length = input_ids.shape[1]
            fresh = input_ids[:, max(self.start, length - self.width) :]
            for row, text in enumerate(self.tokenizer.batch_decode(fresh)):
                if any(stop in text for stop in self.until):
                    self.ended.setdefault(row, length - self.start)
        done = [row in self.ended for row in range(len(input_ids))]
        return torch.tensor(done, device=input_ids.device)


class NearTies(LogitsProcessor):
    """Record the steps whose two best logits differ by less than `NEAR_TIE`; changes nothing."""

    def __init__(self, counters: Counters) -> None:
        self.best: list[Any] = []  # of each step: values and indices `[batch, 2]`, on the device
        self.counters = counters

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores unchanged, `[batch, vocabulary]`."""
        self.best.append(scores.topk(2, dim=-1))
        self.counters.advance(len(scores))
        return scores

    def listed(self) -> Iterator[tuple[int, int, float, list[int]]]:
        """Row, step, difference and both tokens of each, by step."""
        if self.best:
            values, tokens = (torch.stack(each).cpu() for each in zip(*self.best, strict=True))
            gaps = values[..., 0] - values[..., 1]
            for step, row in (gaps < NEAR_TIE).nonzero().tolist():
                yield row, step, gaps[step, row].item(), tokens[step, row].tolist()


class Decoder:
    """Answer questions in the order that computes least. The tokenizer has a padding token."""

    def __init__(self, questions: Sequence[Question], setup: Setup, tokenizer: Any) -> None:
        self.questions = questions
        self.setup = setup
        self.model = setup.model
        self.counters = setup.counters
        self.tokenizer = tokenizer
        self.reader = PathReader(setup, max(len(question.tokens) for question in questions))

    @torch.no_grad()
    def answers(self) -> Iterator[Answered]:
        """Answer every question. Each is yielded as soon as its batch is finished."""
        plan = make_plan(
            [question.tokens for question in self.questions],
            max_suffix=min(_MAX_SUFFIX, self.setup.settings.prefill_chunk),
        )
        generated = sum(question.max_new_tokens for question in self.questions)
        self.counters.expect(
            plan.prompt_tokens, plan.unique_tokens, plan.computed_tokens + generated
        )
        with shared_attention(self.model, split=self.setup.split):
            for step in plan.steps:
                yield from self._step(step)

    def _step(self, step: Step) -> Iterator[Answered]:
        prompt = self.questions[step.members[0]].tokens
        if not self.reader.extend(prompt, step.start, step.length):
            # Later steps that start from the missing positions read them again themselves.
            for row in step.rows:
                self._failed(row)
            return
        if step.branches:
            self.reader.keep()
        for group in self._groups(step.rows):
            for batch in self.setup.batches(
                group,
                [len(self.questions[row].tokens) - step.length for row in group],
                shared=step.length,
                extra=self.questions[group[0]].max_new_tokens,
                max_tokens=max(self.setup.settings.prefill_chunk, _MAX_SUFFIX),
            ):
                yield from self._batch(batch, step.length)

    def _groups(self, rows: Sequence[int]) -> list[list[int]]:
        """Rows that can be decoded together, sorted by length."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in sorted(rows, key=lambda row: (len(self.questions[row].tokens), row)):
            question = self.questions[row]
            equal = depends_on_earlier_tokens(question.options, self.model.generation_config)
            # A prompt of one token leaves nothing to read before it, where rows are read apart.
            equal |= len(question.tokens) == 1 and not self.setup.reuse.padded
            width = len(question.tokens) if equal else 0
            options = json.dumps(dict(question.options), sort_keys=True, default=str)
            key = (question.until, question.max_new_tokens, options, width)
            groups.setdefault(key, []).append(row)
        return list(groups.values())

    def _batch(self, batch: list[int], length: int) -> Iterator[Answered]:
        def decode(rows: list[int]) -> list[list[int]]:
            return self._decode([self.questions[row] for row in rows], length)

        for row, tokens in halving(decode, batch, "questions"):
            yield row, self._single(row, length) if tokens is None else tokens

    def _single(self, row: int, length: int) -> list[int] | None:
        """The last resort for one question: read its own part in chunks as well."""
        question = self.questions[row]
        read = len(question.tokens) - 1
        self.reader.cut(length)
        self.reader.keep()
        # Where its own part is one token already, chunks of it are no smaller.
        if read > length and self.reader.extend(question.tokens, length, read):
            answers = attempt(self._decode, [question], read)
            if answers is not None:
                return answers[0]
        self._failed(row)
        return None

    def _failed(self, row: int) -> None:
        self.counters.failed(self.questions[row].name, len(self.questions[row].tokens))

    def _decode(self, questions: list[Question], length: int) -> list[list[int]]:
        """New tokens of each question; all begin with the path's first `length` tokens."""
        device, pad = input_device(self.model), self.tokenizer.pad_token_id
        first = questions[0]
        parts = [question.tokens[length:] for question in questions]
        past = self.reader.rows(parts, length, first.max_new_tokens)
        # Padding comes after a prefix that is stored apart, else before everything. `generate`
        # derives the positions from the mask.
        before = length if past.split else 0
        suffixes, pads = left_padded([each.tokens[before:] for each in questions], device, pad)
        prefix = torch.tensor(first.tokens[:before], dtype=torch.long, device=device)
        ids = torch.cat([prefix.expand(len(questions), -1), suffixes], 1)
        width = ids.shape[1]
        mask = torch.ones_like(ids)
        if pads is not None:
            past.pads = pads
            mask[:, before:] = torch.arange(width - before, device=device) >= pads[:, None]
        ties = NearTies(self.counters)
        stop = StopStrings(self.tokenizer, first.until, width)
        _forget_image_positions(self.model)
        with attending(past):
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=past,
                max_length=width + first.max_new_tokens,
                stopping_criteria=StoppingCriteriaList([stop]),
                logits_processor=LogitsProcessorList([ties]),
                pad_token_id=pad,
                use_cache=True,
                **greedy(first.options),
            )
        rows = enumerate(output[:, width:].tolist())
        fresh = [tokens[: stop.ended.get(row)] for row, tokens in rows]
        self.counters.prefilled(sum(map(len, parts)))
        self._count(questions, fresh, stop, ties)
        return fresh

    def _count(
        self, questions: list[Question], fresh: list[list[int]], stop: StopStrings, ties: NearTies
    ) -> None:
        # A row that no stop string ended (the end-of-sequence string is one) ran to the limit, or
        # to another end token of the checkpoint, after which there is padding.
        lengths = [stop.ended.get(row, self._length(tokens)) for row, tokens in enumerate(fresh)]
        self.counters.tokens_generated += sum(lengths)
        # The progress bar expects every question's longest answer.
        self.counters.advance(len(fresh) * (questions[0].max_new_tokens - len(ties.best)))
        for row, step, gap, tokens in ties.listed():
            if step < lengths[row] and len(self.counters.near_ties) < _MOST_NEAR_TIES:
                self.counters.near_ties.append(
                    {"request": questions[row].name, "step": step, "gap": gap, "tokens": tokens}
                )

    def _length(self, tokens: list[int]) -> int:
        pad = self.tokenizer.pad_token_id
        return next((n for n in range(len(tokens), 0, -1) if tokens[n - 1] != pad), 0)


def _forget_image_positions(model: Any) -> None:
    """Drop the offset of text after images that vision-language models keep from the last batch.

    They add it to the positions of any later batch that starts from a cache.
    """
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None
