"""Generated tokens, cold and warm: faults that scoring given tokens cannot see.

A setup continues three prompts, one after the other. The second one shares a long prefix with the
first and may read it from a cache; that of the third is of another text. Then the setup scores what
it generated. A greedy token that its own reading ranks well below the first place shows a stale
cache or a fault of decoding.
"""

from typing import Any, Protocol

import numpy as np

from leval_harness.parity.inputs import Finding

TOKENS = 16
SUFFIX = 8
"""Tokens of a text that end a prompt and are not shared."""
PREFIX = 512
NEAR_TIE = 1.0
"""Nats below the first place that rounding explains: two bfloat16 engines differ by up to 0.75."""


class Generating(Protocol):
    """A side of a comparison."""

    name: str

    def call(self, name: str, *arguments: Any) -> Any:
        """Of its reader."""


def findings(side: Generating, row: list[int], other: list[int]) -> list[Finding]:
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
