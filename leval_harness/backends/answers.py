"""Greedy decoding of questions about one document, in batches.

transformers' own `generate` decodes, so that its logits processors, end-of-sequence tokens and
generation config apply as they do in lm-eval's `hf`. Only the cache that it starts from is ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from leval_harness.backends.arguments import depends_on_earlier_tokens, greedy
from leval_harness.backends.documents import sized
from leval_harness.backends.reading import Reader

_BATCH_TOKENS = 1024  # own tokens of a batch may be this many whatever the chunk is


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


def decode(
    reader: Reader,
    tokenizer: Any,
    text: list[int],
    prompts: Sequence[list[int]],
    new: int,
    until: Sequence[str],
    options: Mapping[str, Any],
    most: int,
) -> list[list[int]]:
    """New tokens of prompts that begin with a text; padding can follow the end of an answer.

    Args:
        reader: of texts.
        tokenizer: the model's, with a padding token.
        text: what all prompts begin with, shorter than each.
        prompts: token ids.
        new: largest number of new tokens.
        until: stop strings.
        options: of generation.
        most: largest number of prompts that are answered together.
    """
    found: dict[int, list[int]] = {}
    widths = {at: len(prompt) - len(text) for at, prompt in enumerate(prompts)}
    config = reader.head.model.generation_config
    if reader.copied or depends_on_earlier_tokens(options, config):
        most = 1  # in the second case padding would change the answers of a batch
    tokens = max(reader.chunk, _BATCH_TOKENS)
    order = sorted(widths, key=widths.__getitem__)
    for batch in sized(order, widths, most, tokens):
        rows = [prompts[at] for at in batch]
        # A long own part is read in chunks, too; it is that of a batch of one.
        reader.read(rows[0][:-1] if widths[batch[-1]] > tokens else text)
        width = len(rows[-1])
        stop = StopStrings(tokenizer, until, width)
        made = reader.generate(
            rows,
            tokenizer.pad_token_id,
            new,
            stopping_criteria=StoppingCriteriaList([stop]),
            **greedy(options),
        )
        for at, (number, answer) in enumerate(zip(batch, made[:, width:].tolist(), strict=True)):
            found[number] = answer[: stop.ended.get(at)]
    return [found[at] for at in range(len(prompts))]


def answer_length(tokens: Sequence[int], pad: int) -> int:
    """Tokens of an answer without the padding after it."""
    return next((n for n in range(len(tokens), 0, -1) if tokens[n - 1] != pad), 0)
