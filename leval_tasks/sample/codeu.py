"""CodeU documents: many small functions, a few calls of them at the end, and what they print.

The gold answer is what Python prints when it runs the document's own functions, in a fresh
namespace. The functions hold constants of their own, so names and calls alone do not tell it.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable

ROWS = 12
_FUNCTIONS = 48
_INSTRUCTIONS = (
    "What will the code at the end of the document print? Read the functions that it calls and "
    "give the final output.\nLet's think step by step\n",
    "Work out the final output of the calls at the end of the document from the functions that "
    "they use.\nLet's think step by step\n",
)
_ADJECTIVES = """\
amber brisk calm dense eager faint gentle hollow idle jolly keen lucid mellow narrow opaque
plain quiet rapid silent tidy upper vivid warm young
""".split()  # noqa: SIM905  (a list of one word a line is harder to read)
_NOUNS = """\
anchor basket candle dagger engine feather garden hammer island jacket kettle ladder mirror
needle orchid pebble quiver ribbon saddle tunnel umbrella valley window yarn
""".split()  # noqa: SIM905  (a list of one word a line is harder to read)

# Each writes one function from its name and constants of its own; `x` is a whole number >= 0.
Template = Callable[[str, random.Random], str]


def _scale(name: str, rng: random.Random) -> str:
    a, b = rng.randint(3, 29), rng.randint(11, 97)
    return (
        f"# Multiply the number by {a} and add {b}.\n"
        f"def {name}(x):\n    product = x * {a}\n    return product + {b}\n"
    )


def _remainder(name: str, rng: random.Random) -> str:
    a, m = rng.randint(7, 41), rng.randint(101, 499)
    return (
        f"# Square the number, add {a}, and keep the remainder after division by {m}.\n"
        f"def {name}(x):\n    square = x * x\n    return (square + {a}) % {m}\n"
    )


def _steps(name: str, rng: random.Random) -> str:
    n, a, b = rng.randint(3, 6), rng.randint(5, 19), rng.randint(2, 9)
    return (
        f"# Starting with the number, {n} times add {a} and then the index times {b}.\n"
        f"def {name}(x):\n    total = x\n    for index in range({n}):\n"
        f"        total += {a} + index * {b}\n    return total\n"
    )


def _branch(name: str, rng: random.Random) -> str:
    a, b, c = rng.randint(20, 60), rng.randint(3, 9), rng.randint(100, 300)
    return (
        f"# Numbers up to {a} are multiplied by {b}; from larger ones, {a} is taken away and\n"
        f"# {c} is added.\n"
        f"def {name}(x):\n    if x <= {a}:\n        return x * {b}\n    return x - {a} + {c}\n"
    )


def _digits(name: str, rng: random.Random) -> str:
    a, b = rng.randint(111, 899), rng.randint(3, 17)
    return (
        f"# Add {a}, sum the decimal digits of the result, and multiply the sum by {b}.\n"
        f"def {name}(x):\n    digits = str(x + {a})\n"
        f"    return sum(int(digit) for digit in digits) * {b}\n"
    )


def _multiples(name: str, rng: random.Random) -> str:
    n, a = rng.randint(3, 5), rng.randint(4, 83)
    return (
        f"# A list of {n} numbers: the given one, and each next one larger by {a}.\n"
        f"def {name}(x):\n    return [x + {a} * index for index in range({n})]\n"
    )


def _pick(name: str, rng: random.Random) -> str:
    values = [rng.randint(100, 999) for _ in range(6)]
    return (
        f"# Look up a value in a fixed table, by the number's remainder after division by 6.\n"
        f"def {name}(x):\n    table = {values}\n    return table[x % 6]\n"
    )


def _alternate(name: str, rng: random.Random) -> str:
    a, b, n = rng.randint(9, 39), rng.randint(2, 8), rng.randint(2, 4)
    return (
        f"# {n} times: an odd number grows by {a}, an even one is halved and grows by {b}.\n"
        f"def {name}(x):\n    for _ in range({n}):\n"
        f"        x = x + {a} if x % 2 else x // 2 + {b}\n    return x\n"
    )


_TEMPLATES: tuple[Template, ...] = (
    _scale, _remainder, _steps, _branch, _digits, _multiples, _pick, _alternate,
)  # fmt: skip
_NUMBER_TEMPLATES = tuple(t for t in _TEMPLATES if t is not _multiples)


def run(source: str) -> str:
    """What Python prints when it runs a generated document, without the last line break."""
    printed = io.StringIO()
    namespace: dict[str, object] = {"__name__": "document"}
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<document>", "exec"), namespace)
    return printed.getvalue().rstrip("\n")


def documents(rng: random.Random) -> list[dict[str, object]]:
    """CodeU records, one question each; no function occurs in two documents."""
    names = iter(rng.sample([f"{a}_{b}" for a in _ADJECTIVES for b in _NOUNS], ROWS * _FUNCTIONS))
    seen: set[str] = set()
    answers: set[str] = set()
    records: list[dict[str, object]] = []
    while len(records) < ROWS:
        own = [_function(next(names), index, seen, rng) for index in range(_FUNCTIONS)]
        text, answer = _with_calls(own, answers, rng)
        answers.add(answer)
        instruction = _INSTRUCTIONS[len(records) % len(_INSTRUCTIONS)]
        records.append({"instructions": [instruction], "outputs": [answer], "input": text})
    return records


def _function(name: str, index: int, seen: set[str], rng: random.Random) -> tuple[str, str, bool]:
    """Name, source and whether the function gives a number; its body is new to the sample."""
    template = _TEMPLATES[index % len(_TEMPLATES)]
    while True:
        source = template(name, rng)
        body = source.replace(name, "f")
        if body not in seen:
            seen.add(body)
            return name, source, template in _NUMBER_TEMPLATES


def _with_calls(
    functions: list[tuple[str, str, bool]], taken: set[str], rng: random.Random
) -> tuple[str, str]:
    """The document and its output: three calls, each on the result of the one before.

    An output of at least three characters is kept, because shorter ones are found in almost any
    response by the scorer's search for the answer anywhere in it.
    """
    shuffled = rng.sample(functions, len(functions))
    code = "\n\n".join(source for _, source, _ in shuffled)
    numeric = [name for name, _, number in shuffled if number]
    while True:
        first, second = rng.sample(numeric, 2)
        last = rng.choice([name for name, _, _ in shuffled if name not in (first, second)])
        text = (
            f"{code}\n\nfirst = {first}({rng.randint(3, 60)})\n"
            f"second = {second}(first)\nprint({last}(second))\n"
        )
        answer = run(text)
        if len(answer) >= 3 and answer not in taken:
            return text, answer
