"""What scoring given ids cannot see: how setups make tokens of a text, and how they generate.

A missing BOS, another tokenizer or another chat template show in the token ids of the same text.

`probe` lets a setup continue three prompts, one after the other. The second one shares a long
prefix with the first and may read it from a cache; that of the third is of another text. Then the
setup scores what it generated. A greedy token that its own reading ranks well below the first place
shows a stale cache or a fault of decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from leval_harness.parity.reading import Messages

CHAT: Messages = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Which river flows through Paris?"},
    {"role": "assistant", "content": "The Seine."},
    {"role": "user", "content": "And through Vienna? Think of 3 names: \"Inn\", 'Donau', Raab."},
]
"""The chat that both templates render: a system message, several turns, quotation marks."""

TOKENS = 16
SUFFIX = 8
"""Tokens of a text that end a prompt and are not shared."""
PREFIX = 512
NEAR_TIE = 1.0
"""Nats below the first place that rounding explains: two bfloat16 engines differ by up to 0.75."""

KINDS = ("bos", "tokenizer", "template", "probe")


@dataclass(frozen=True)
class Finding:
    """A difference that is no difference of losses; `kind` is one of `KINDS`."""

    kind: str
    sentence: str


def compare_encodings(
    a: Mapping[str, Sequence[int] | None], b: Mapping[str, Sequence[int] | None]
) -> list[Finding]:
    """What differs between the token ids that both make of the same texts.

    Args:
        a: ids by the name of a text; None where the setup cannot say.
        b: the same of the other setup.
    """
    for name, left in a.items():
        right = b.get(name)
        if left is None or right is None:
            continue
        size = min(len(left), len(right))
        if list(left[:size]) == list(right[:size]):
            continue
        if list(left[1:size]) == list(right[: size - 1]):
            return [Finding("bos", f"A puts token {left[0]} before a text, B does not")]
        if list(right[1:size]) == list(left[: size - 1]):
            return [Finding("bos", f"B puts token {right[0]} before a text, A does not")]
        at = next(i for i in range(size) if left[i] != right[i])
        if at == 0 and list(left[1:size]) == list(right[1:size]):
            return [Finding("bos", f"A begins a text with token {left[0]}, B with {right[0]}")]
        return [
            Finding(
                "tokenizer",
                f"the tokenizers differ from token {at} of {name} on: A makes "
                f"{list(left[at : at + 3])}, B {list(right[at : at + 3])}",
            )
        ]
    return []


def compare_templates(a: Sequence[int] | None, b: Sequence[int] | None) -> list[Finding]:
    """What differs between a chat as both render it; [] is a setup without a template."""
    if a is None or b is None or list(a) == list(b):
        return []
    if not a or not b:
        without, other = ("A", "B") if not a else ("B", "A")
        return [Finding("template", f"{without} has no chat template, {other} has one")]
    size = min(len(a), len(b))
    at = next((i for i in range(size) if a[i] != b[i]), size)
    return [
        Finding(
            "template",
            f"the chat templates render other tokens from token {at} on: A {list(a[at : at + 3])}, "
            f"B {list(b[at : at + 3])}; {len(a)} and {len(b)} tokens in all",
        )
    ]


class Generating(Protocol):
    """A side of a comparison."""

    name: str

    def call(self, name: str, *arguments: Any) -> Any:
        """Of its reader."""


def probe(side: Generating, row: list[int], other: list[int]) -> list[Finding]:
    """One for each prompt whose generated tokens contradict the side's own reading.

    Args:
        side: what generates and reads.
        row: tokens of a text, of which the prompts are made.
        other: as many tokens of another text, the prefix of the third prompt.
    """
    size = max(2, min(PREFIX, len(row) - 2 * SUFFIX - TOKENS))
    first, second = row[size : size + SUFFIX], row[size + SUFFIX : size + 2 * SUFFIX]
    prompts = [row[:size] + first, row[:size] + second, other[:size] + second]
    made = [side.call("generate", prompt, TOKENS) for prompt in prompts]
    found = []
    for state, prompt, tokens in zip(("cold", "warm", "another"), prompts, made, strict=True):
        if not tokens:
            continue
        reading = side.call("read", [[*prompt, *tokens]])[0]
        gaps = (reading.top[:, 0] - reading.logprob)[-len(tokens) :]
        if gaps.max() > NEAR_TIE:
            sentence = (
                f"{side.name}, {state} prefix: generated token {np.argmax(gaps) + 1} of {TOKENS} "
                f"lies {gaps.max():.2f} nats below the one that its own reading ranks first"
            )
            found.append(Finding("probe", sentence))
    return found
