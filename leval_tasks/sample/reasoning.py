"""Worked arithmetic and code, each with answers that are computed."""

import contextlib
import io
import random
from collections.abc import Iterator
from itertools import product

from leval_tasks.sample.people import FIRST_NAMES, Document

EXAMPLES, ROWS, FUNCTIONS = 16, 12, 48
PLACES = (
    ("an orchard", "tree", "apples"),
    ("a vineyard", "vine", "grapes"),
    ("a garden", "bush", "berries"),
)
THINK = "Let's think step by step\n"


def arithmetic(rng: random.Random) -> Iterator[Document]:
    """The same sixteen worked examples in each document, one new question a row."""
    problems = [_problem(number, rng) for number in range(EXAMPLES + ROWS)]
    examples = "".join(
        f"{question}{steps}The answer is {answer}\n\n"
        for question, steps, answer in problems[:EXAMPLES]
    )
    for question, _, answer in problems[EXAMPLES:]:
        yield [question], [str(answer)], examples


def _problem(number: int, rng: random.Random) -> tuple[str, str, int]:
    """Question, steps of the solution and answer."""
    who = rng.choice(FIRST_NAMES.split())
    place, plant, fruit = rng.choice(PLACES)
    rows, plants, weight = rng.randint(6, 14), rng.randint(8, 15), rng.randint(20, 40)
    crate = rng.randint(5, 9)
    kept = rows * plants * weight % crate + crate * rng.randint(4, 20)
    total = rows * plants * weight
    crates, price = (total - kept) // crate, rng.randint(2, 9)
    question = (
        f"Question: {who} looks after {place} on the sunny side of hill number {number + 1}. There "
        f"are {rows} rows with {plants} plants in each row, and this autumn every {plant} gave "
        f"{weight} kilograms of {fruit}. The family keeps {kept} kilograms for juice and cake, and "
        f"everything else is packed into crates that hold {crate} kilograms each. On the market a "
        f"crate is sold for {price} dollars. How many dollars do all the crates bring?\n{THINK}"
    )
    steps = (
        f"There are {rows} * {plants} = {rows * plants} plants.\n"
        f"Together they gave {rows * plants} * {weight} = {total} kilograms of {fruit}.\n"
        f"Without the family's share {total} - {kept} = {total - kept} kilograms are left.\n"
        f"They fill {total - kept} / {crate} = {crates} crates.\n"
        f"The crates bring {crates} * {price} = {crates * price} dollars.\n"
    )
    return question, steps, crates * price


WORDS = (
    "amber brisk calm dense eager faint gentle hollow",
    "anchor basket candle dagger engine feather",
)
TEMPLATES = (
    "# Multiply the number by {a} and add {b}.\n"
    "def {name}(x):\n    product = x * {a}\n    return product + {b}\n",
    "# Square the number, add {a}, and keep the remainder after division by {b}.\n"
    "def {name}(x):\n    square = x * x\n    return (square + {a}) % {b} + 100\n",
    "# Starting with the number, three times add {a} and then the index times {b}.\n"
    "def {name}(x):\n    for index in range(3):\n        x += {a} + index * {b}\n    return x\n",
    "# Numbers up to {b} are multiplied by {a}; from larger ones {a} is taken away.\n"
    "def {name}(x):\n    if x <= {b}:\n        return x * {a}\n    return x - {a}\n",
)


def code(rng: random.Random) -> Iterator[Document]:
    """Many small functions and a few calls; the answer is what Python prints."""
    for _ in range(ROWS):
        names = [f"{a}_{b}" for a, b in product(*(words.split() for words in WORDS))]
        rng.shuffle(names)
        functions = [
            TEMPLATES[at % len(TEMPLATES)].format(
                name=name, a=rng.randint(11, 39), b=rng.randint(101, 499)
            )
            for at, name in enumerate(names)
        ]
        first, second, third = rng.sample(names, 3)
        calls = f"first = {first}({rng.randint(3, 60)})\nsecond = {second}(first)\n"
        text = "\n\n".join([*rng.sample(functions, FUNCTIONS), f"{calls}print({third}(second))\n"])
        question = (
            "What will the code at the end of the document print? Read the functions that it calls "
            f"and give the final output.\n{THINK}"
        )
        yield [question], [_printed(text)], text


def _printed(source: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(source, "<document>", "exec"), {"__name__": "document"})
    return output.getvalue().rstrip("\n")
