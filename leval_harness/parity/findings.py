"""What scoring given ids cannot see: how setups make tokens of a text, and how they generate.

A missing BOS, another tokenizer or another chat template show in the token ids of the same text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leval_harness.parity.reading import Messages

CHAT: Messages = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Which river flows through Paris?"},
    {"role": "assistant", "content": "The Seine."},
    {"role": "user", "content": "And through Vienna? Think of 3 names: \"Inn\", 'Donau', Raab."},
]
"""The chat that both templates render: a system message, several turns, quotation marks."""

KINDS = ("bos", "tokenizer", "template")


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
