"""Grade-school arithmetic: sixteen worked examples as the shared document, and a question a row.

A question is true by construction: its story and its solution are written from the same numbers,
and every step of the solution is computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

SHOTS = 16
ROWS = 12
THINK = "Let's think step by step\n"


@dataclass(frozen=True)
class Problem:
    """A question with its solution; the answer is a whole number."""

    question: str
    steps: tuple[str, ...]
    answer: int

    @property
    def prompt(self) -> str:
        """The question as the task asks it."""
        return f"Question: {self.question}\n{THINK}"

    @property
    def worked(self) -> str:
        """The question with its solution, as one of the shared examples."""
        return self.prompt + "\n".join([*self.steps, f"The answer is {self.answer}"]) + "\n\n"


def _orchard(who: str, rng: random.Random) -> Problem:
    rows, trees, weight = rng.randint(6, 14), rng.randint(8, 15), rng.choice((20, 30, 40))
    crate = rng.choice((5, 10))
    total = rows * trees * weight
    kept = crate * rng.randint(4, 20)
    return Problem(
        f"{who} looks after an orchard on the sunny side of the hill. The orchard has {rows} rows "
        f"with {trees} apple trees in each row, and this autumn every tree gave {weight} kilograms "
        f"of apples. The family keeps {kept} kilograms for juice and cake, and all other apples "
        f"are packed into crates that hold {crate} kilograms each. How many crates are filled?",
        (
            f"First we count the trees of the orchard: {rows} * {trees} = {rows * trees} trees.",
            f"Together the trees gave {rows * trees} * {weight} = {total} kilograms of apples.",
            f"After the family has taken its share, {total} - {kept} = {total - kept} kilograms "
            "are left.",
            f"A crate holds {crate} kilograms, so the apples fill "
            f"{total - kept} / {crate} = {(total - kept) // crate} crates.",
        ),
        (total - kept) // crate,
    )


def _shop(who: str, rng: random.Random) -> Problem:
    books, price = rng.randint(3, 12), rng.randint(4, 15)
    pens, cost = rng.randint(5, 20), rng.randint(2, 6)
    spent = books * price + pens * cost
    paid = spent + rng.randint(3, 60)
    return Problem(
        f"Before the first day of school {who} goes to the stationery shop on the market square. "
        f"There {books} notebooks are bought at {price} dollars each, and {pens} coloured pens at "
        f"{cost} dollars each. At the till {who} hands over {paid} dollars and waits for the "
        "change, which goes straight into the savings box. How many dollars go into the box?",
        (
            f"The notebooks cost {books} * {price} = {books * price} dollars in all.",
            f"The coloured pens cost {pens} * {cost} = {pens * cost} dollars in all.",
            f"Both together come to {books * price} + {pens * cost} = {spent} dollars.",
            f"The change is {paid} - {spent} = {paid - spent} dollars, and it goes into the box.",
        ),
        paid - spent,
    )


def _bus(who: str, rng: random.Random) -> Problem:
    start, off, on = rng.randint(30, 60), rng.randint(5, 20), rng.randint(6, 25)
    if (start - off + on) % 2:
        on += 1
    after, last = start - off + on, rng.randint(3, 15)
    return Problem(
        f"{who} drives the evening bus from the harbour to the railway station. At the harbour "
        f"{start} people get on. At the museum {off} people get off and {on} people get on. At the "
        "hospital exactly half of the passengers leave the bus and nobody joins them. At the "
        f"theatre {last} more people get on, and after that the bus does not stop until it reaches "
        "the station. How many passengers does it bring to the station?",
        (
            f"When {off} people have left the bus at the museum, {start} - {off} = {start - off} "
            "are still on it.",
            f"With the people who get on there, it carries {start - off} + {on} = {after} people.",
            f"Half of them leave at the hospital, so {after} / 2 = {after // 2} stay.",
            f"At the theatre the number grows to {after // 2} + {last} = {after // 2 + last}.",
        ),
        after // 2 + last,
    )


def _savings(who: str, rng: random.Random) -> Problem:
    weekly, weeks = rng.randint(6, 25), rng.randint(8, 30)
    saved = weekly * weeks
    spent, gift = rng.randint(10, saved - 10), rng.randint(15, 90)
    return Problem(
        f"{who} wants to buy a used bicycle and puts {weekly} dollars aside every week. After "
        f"{weeks} weeks a lamp and a lock are on offer, and {spent} dollars of the savings are "
        "spent on them. An aunt is so pleased about this thrift that she doubles what is left, and "
        f"on top of that a neighbour adds {gift} dollars for help in the garden. How many dollars "
        f"does {who} have now?",
        (
            f"In {weeks} weeks the savings grow to {weekly} * {weeks} = {saved} dollars.",
            f"The lamp and the lock leave {saved} - {spent} = {saved - spent} dollars.",
            f"The aunt doubles this to {saved - spent} * 2 = {2 * (saved - spent)} dollars.",
            f"With the neighbour's money it is {2 * (saved - spent)} + {gift} = "
            f"{2 * (saved - spent) + gift} dollars.",
        ),
        2 * (saved - spent) + gift,
    )


def _bakery(who: str, rng: random.Random) -> Problem:
    trays, loaves, price = rng.randint(5, 14), 4 * rng.randint(3, 9), rng.randint(2, 6)
    total = trays * loaves
    left, rolls = total // 4, rng.randint(10, 70)
    return Problem(
        f"{who} runs a bakery by the old bridge. This morning {trays} trays with {loaves} loaves "
        "on each came out of the oven. By noon three quarters of all the loaves had been sold, and "
        "a quarter was still on the shelf. In the afternoon every one of these was sold for "
        f"{price} dollars, and sweet rolls brought in another {rolls} dollars. How many dollars "
        "did the bakery take in the afternoon?",
        (
            f"The oven gave {trays} * {loaves} = {total} loaves this morning.",
            f"A quarter of them was left at noon, which is {total} / 4 = {left} loaves.",
            f"These were sold for {left} * {price} = {left * price} dollars.",
            f"With the sweet rolls the afternoon brought {left * price} + {rolls} = "
            f"{left * price + rolls} dollars.",
        ),
        left * price + rolls,
    )


def _ride(who: str, rng: random.Random) -> Problem:
    speed, hours, slow, more = (
        rng.randint(14, 24), rng.randint(2, 6), rng.randint(8, 13), rng.randint(2, 5)
    )  # fmt: skip
    done = speed * hours + slow * more
    rest = rng.randint(15, 80)
    return Problem(
        f"{who} rides a bicycle from one end of the long lake to the other. On the flat road the "
        f"speed is {speed} kilometres an hour, and this part takes {hours} hours. Then the path "
        f"climbs, the speed drops to {slow} kilometres an hour, and {more} more hours go by. In "
        f"the evening a signpost says that {rest} kilometres remain to the end of the lake. How "
        "many kilometres is the whole way?",
        (
            f"The flat road is {speed} * {hours} = {speed * hours} kilometres long.",
            f"On the climbing path the bicycle covers {slow} * {more} = {slow * more} kilometres.",
            f"By the evening that makes {speed * hours} + {slow * more} = {done} kilometres.",
            f"With what remains, the whole way is {done} + {rest} = {done + rest} kilometres.",
        ),
        done + rest,
    )


def _library(who: str, rng: random.Random) -> Problem:
    rooms = rng.randint(3, 6)
    shelves, books, lent = rng.randint(8, 20), rng.randint(25, 60), rng.randint(30, 150)
    kept = shelves * books - lent
    gift = rooms * rng.randint(10, 30) + (-kept) % rooms
    total = kept + gift
    return Problem(
        f"{who} is in charge of the town library while it moves to a new building. The old "
        f"building had {shelves} shelves with {books} books on each. On the day of the move {lent} "
        f"of these books are lent out and stay with their readers, but a retired teacher gives the "
        f"library {gift} books as a present. All the books at hand are spread evenly over {rooms} "
        "reading rooms. How many books stand in each reading room?",
        (
            f"The old shelves held {shelves} * {books} = {shelves * books} books.",
            f"Without the books that are lent out there are {shelves * books} - {lent} = {kept}.",
            f"The present raises the number to {kept} + {gift} = {total} books.",
            f"Each reading room gets {total} / {rooms} = {total // rooms} books.",
        ),
        total // rooms,
    )


def _choir(who: str, rng: random.Random) -> Problem:
    altos, factor, fewer = rng.randint(8, 20), rng.randint(2, 4), rng.randint(2, 7)
    sopranos, tenors = altos * factor, altos - fewer
    seats = rng.randint(5, 30)
    singers = altos + sopranos + tenors
    return Problem(
        f"{who} prepares the stage for a concert of the town choir. There are {altos} altos in the "
        f"choir. The number of sopranos is {factor} times the number of altos, and there are "
        f"{fewer} fewer tenors than altos; other voices are not needed tonight. Every singer gets "
        f"one chair, and {seats} further chairs are put out for the orchestra. How many chairs are "
        "put on the stage?",
        (
            f"The choir has {altos} * {factor} = {sopranos} sopranos.",
            f"The number of tenors is {altos} - {fewer} = {tenors}.",
            f"Altos and sopranos are {altos} + {sopranos} = {altos + sopranos} singers.",
            f"With the tenors it is {altos + sopranos} + {tenors} = {singers} singers.",
            f"The orchestra's chairs make it {singers} + {seats} = {singers + seats} chairs.",
        ),
        singers + seats,
    )


_FAMILIES: tuple[Callable[[str, random.Random], Problem], ...] = (
    _orchard, _shop, _bus, _savings, _bakery, _ride, _library, _choir,
)  # fmt: skip


def documents(names: list[str], rng: random.Random) -> list[dict[str, object]]:
    """GSM records: the same sixteen worked examples in each, one new question a row.

    Args:
        names: at least SHOTS + ROWS names, one for each problem.
        rng: source of every choice.
    """
    families = cycle(_FAMILIES)
    problems: list[Problem] = []
    for name in names[: SHOTS + ROWS]:
        family = next(families)
        problem = family(name, rng)
        while problem.answer in {other.answer for other in problems}:
            problem = family(name, rng)
        problems.append(problem)
    shared = "".join(problem.worked for problem in rng.sample(problems[:SHOTS], SHOTS))
    return [
        {"instructions": [p.prompt], "outputs": [str(p.answer)], "input": shared}
        for p in problems[SHOTS:]
    ]
