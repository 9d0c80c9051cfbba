"""Greedy decoding of questions about one document, in batches.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`. Only the cache that it starts from is ours.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from leval_harness.backends.arguments import depends_on_earlier_tokens, greedy
from leval_harness.backends.documents import batches
from leval_harness.backends.reading import Reader

_BATCH_TOKENS = 1024  # own tokens of a batch may be this many whatever the chunk is


@dataclass(frozen=True)
class Question:
    """One request, tokenised and cut; `until` contains the end-of-sequence string."""

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


def sized(
    rows: Sequence[int], widths: Mapping[int, int], most: int, tokens: int
) -> Iterator[list[int]]:
    """Divide rows into batches.

    Args:
        rows: numbers, in an order in which the widths grow.
        widths: own tokens of each row.
        most: largest number of rows of a batch.
        tokens: largest number of own tokens of a batch of several rows, padding included.
    """
    batch: list[int] = []
    for row in rows:
        size = len(batch) + 1
        if batch and (size > most or size * widths[row] > tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


class Decoder:
    """Answers questions in the order that reads least.

    Args:
        reader: of texts.
        tokenizer: the model's, with a padding token.
        most: largest number of questions that are answered together.
    """

    def __init__(self, reader: Reader, tokenizer: Any, most: int) -> None:
        self.reader, self.tokenizer, self.most = reader, tokenizer, most
        self.tokens = max(reader.chunk, _BATCH_TOKENS)

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, list[int]]]:
        """Number and new tokens of each question, as soon as its batch is finished."""
        texts = [each.tokens for each in questions]
        for batch in batches(texts, [len(text) - 1 for text in texts]):
            self.reader.read(texts[batch.source][: batch.shared])
            self.reader.path.keep()
            most = 1 if self.reader.copied else self.most
            for group in self._groups(questions, batch.rows):
                widths = {row: len(texts[row]) - batch.shared for row in group}
                for rows in sized(group, widths, most, self.tokens):
                    longest = texts[rows[-1]]
                    # A long own part is read in chunks, too; it is that of a batch of one.
                    alone = len(longest) - batch.shared > self.tokens
                    self.reader.read(longest[: -1 if alone else batch.shared])
                    found = self._decode([questions[row] for row in rows])
                    yield from zip(rows, found, strict=True)

    def _groups(self, questions: Sequence[Question], rows: Sequence[int]) -> list[list[int]]:
        """Rows that can be decoded together, sorted by length."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        config = self.reader.head.model.generation_config
        for row in sorted(rows, key=lambda row: (len(questions[row].tokens), row)):
            question = questions[row]
            equal = depends_on_earlier_tokens(question.options, config)
            options = json.dumps(dict(question.options), sort_keys=True, default=str)
            width = len(question.tokens) if equal else 0
            key = (question.until, question.max_new_tokens, options, width)
            groups.setdefault(key, []).append(row)
        return list(groups.values())

    def _decode(self, questions: list[Question]) -> list[list[int]]:
        """New tokens of questions that begin with the path; padding can follow a row's end."""
        first, pad = questions[0], self.tokenizer.pad_token_id
        width = max(len(each.tokens) for each in questions)
        stop = StopStrings(self.tokenizer, first.until, width)
        output = self.reader.generate(
            [each.tokens for each in questions],
            pad,
            first.max_new_tokens,
            stopping_criteria=StoppingCriteriaList([stop]),
            **greedy(first.options),
        )
        fresh = [
            tokens[: stop.ended.get(row)] for row, tokens in enumerate(output[:, width:].tolist())
        ]
        lengths = [stop.ended.get(row, self._length(tokens)) for row, tokens in enumerate(fresh)]
        self.reader.counters.tokens_generated += sum(lengths)
        return fresh

    def _length(self, tokens: list[int]) -> int:
        pad = self.tokenizer.pad_token_id
        return next((n for n in range(len(tokens), 0, -1) if tokens[n - 1] != pad), 0)
