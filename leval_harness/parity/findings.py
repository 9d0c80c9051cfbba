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
    a: Mapping[str, list[int] | None], b: Mapping[str, list[int] | None]
) -> list[Finding]:
    """The first difference between the token ids that both make of the same texts.

    Args:
        a: ids by the name of a text; None where the setup cannot say.
        b: the same of the other setup.
    """
    for name, left in a.items():
        right = b.get(name)
        if left is None or right is None:
            continue
        size = min(len(left), len(right))
        if left[:size] == right[:size]:
            continue
        for one, other, x, y in (("A", "B", left, right), ("B", "A", right, left)):
            if x[1:size] == y[: size - 1]:
                return [Finding("bos", f"{one} puts token {x[0]} before a text, {other} does not")]
        if left[1:size] == right[1:size]:
            return [Finding("bos", f"A begins a text with token {left[0]}, B with {right[0]}")]
        return [Finding("tokenizer", f"the tokenizers differ in {name}: {_place(left, right)}")]
    return []


def compare_templates(a: list[int] | None, b: list[int] | None) -> list[Finding]:
    """What differs between a chat as both render it; [] is a setup without a template."""
    if a is None or b is None or a == b:
        return []
    if not a or not b:
        without, other = ("A", "B") if not a else ("B", "A")
        return [Finding("template", f"{without} has no chat template, {other} has one")]
    return [Finding("template", f"the chat templates render other tokens: {_place(a, b)}")]


def _place(a: Sequence[int], b: Sequence[int]) -> str:
    """Where two texts part."""
    size = min(len(a), len(b))
    at = next((i for i in range(size) if a[i] != b[i]), size)
    return f"from token {at} on A has {list(a[at : at + 3])}, B {list(b[at : at + 3])}"
