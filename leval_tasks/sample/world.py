"""Invented people and what is true of them: the facts that a sample document states.

Every person belongs to one document only, so no two documents can share a fact. In one document
each attribute has exactly four possible values, and what is true of a person is drawn from the
four uniformly and independently. A question that offers those four values can therefore not be
answered better than by chance without the document, whatever the reader knows of other questions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

VALUES_PER_ATTRIBUTE = 4
PEOPLE_PER_DOCUMENT = 16


@dataclass(frozen=True)
class Attribute:
    """One thing that can be said of a person.

    Attributes:
        question: question with `{who}`, asking for the value.
        claim: one clause with `{who}` and `{value}`, usable inside a longer sentence.
        sentences: full sentences with `{who}` and `{value}`, as the document words the fact.
        values: words that stand for the value; no word is a value of two attributes.
    """

    question: str
    claim: str
    sentences: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """What is true of one person in one document."""

    who: str
    attribute: Attribute
    value: str

    @property
    def claim(self) -> str:
        """The fact as one clause."""
        return self.attribute.claim.format(who=self.who, value=self.value)


@dataclass(frozen=True)
class World:
    """The facts of one document, and the four values that each attribute may take there."""

    facts: tuple[Fact, ...]
    values: dict[Attribute, tuple[str, ...]]

    def false_claim(self, fact: Fact, rng: random.Random) -> str:
        """A clause like the fact's own with one of the three values that are not true."""
        wrong = rng.choice([value for value in self.values[fact.attribute] if value != fact.value])
        return fact.attribute.claim.format(who=fact.who, value=wrong)


ATTRIBUTES = (
    Attribute(
        "Which instrument does {who} play?",
        "{who} plays the {value}",
        (
            "In the evenings one could hear {who} practising the {value} behind a closed door.",
            "Asked about music, {who} admitted to having played the {value} since childhood.",
            "The {value} that leans against the wall is the one that {who} plays.",
        ),
        ("cello", "oboe", "harp", "zither", "clarinet", "bassoon", "mandolin", "accordion"),
    ),
    Attribute(
        "Which animal does {who} keep?",
        "{who} keeps a {value}",
        (
            "It surprised nobody that {who} keeps a {value}, for the animal is seen everywhere.",
            "A {value} follows {who} from room to room and sleeps under the desk.",
            "For company {who} has a {value}, bought years ago from a travelling dealer.",
        ),
        ("tortoise", "raven", "ferret", "greyhound", "parrot", "hedgehog", "goose", "rabbit"),
    ),
    Attribute(
        "On which day of the week does {who} take the night watch?",
        "{who} takes the night watch on {value}",
        (
            "The rota gives the night watch of {value} to {who}, and it has never been changed.",
            "On {value} it is {who} who stays awake for the night watch.",
            "Every {value}, without exception, {who} takes over the night watch at ten.",
        ),
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    ),
    Attribute(
        "In which month did {who} arrive?",
        "{who} arrived in {value}",
        (
            "According to the register, {who} arrived in {value} with a single suitcase.",
            "It was {value} when {who} first came through the gate.",
            "Nobody remembers the year, but {who} certainly arrived in {value}.",
        ),
        ("January", "February", "April", "June", "July", "September", "October", "November"),
    ),
    Attribute(
        "What is the colour of the coat of {who}?",
        "the coat of {who} is {value}",
        (
            "From far away {who} can be told by a {value} coat with wide sleeves.",
            "The {value} coat on the third hook belongs to {who}.",
            "When it rains, {who} puts on a {value} coat that reaches to the knees.",
        ),
        ("crimson", "turquoise", "violet", "scarlet", "navy", "lilac", "beige", "maroon"),
    ),
    Attribute(
        "Which tree did {who} plant in the yard?",
        "{who} planted the {value} in the yard",
        (
            "The {value} in the yard was planted by {who} and is watered each week.",
            "Of the trees in the yard, {who} planted the {value}.",
            "A small plate says that {who} planted this {value} in the yard.",
        ),
        ("walnut", "juniper", "chestnut", "willow", "cypress", "hazel", "larch", "mulberry"),
    ),
    Attribute(
        "What does {who} study?",
        "{who} studies {value}",
        (
            "The long table by the window is where {who} studies {value}.",
            "By training and by love {who} is a student of {value}.",
            "Whoever has a question about {value} is sent to {who}, who studies it daily.",
        ),
        ("glaciers", "mosses", "comets", "dialects", "volcanoes", "fossils", "bridges", "tides"),
    ),
    Attribute(
        "From which town does {who} come?",
        "{who} comes from {value}",
        (
            "The accent gives it away: {who} comes from {value}.",
            "A framed view of {value}, the home town of {who}, hangs over the stove.",
            "Letters for {who} bear the postmark of {value}, where the family still lives.",
        ),
        ("Aldmoor", "Brinsford", "Caldwick", "Dunmere", "Elsworth", "Farrowby", "Gilsted"),
    ),
    Attribute(
        "What does {who} like to eat for breakfast?",
        "{who} likes to eat {value} for breakfast",
        (
            "The cook knows that {who} wants {value} for breakfast and nothing besides.",
            "At breakfast {who} takes a plate of {value} and reads in silence.",
            "There must always be {value} at breakfast, or {who} will complain.",
        ),
        ("porridge", "pancakes", "herring", "dumplings", "oatcakes", "waffles", "apricots"),
    ),
    Attribute(
        "What does {who} collect?",
        "{who} collects {value}",
        (
            "Two drawers are full of {value}, because {who} collects them.",
            "For many years {who} has collected {value}, labelling each with care.",
            "Visitors who want to please {who} bring {value} for the collection.",
        ),
        ("thimbles", "stamps", "feathers", "buttons", "seashells", "postcards", "marbles"),
    ),
)

_FIRST_NAMES = """\
Ada Bruno Clara Dario Edith Felix Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rosa
Simon Tilda Ulrich Vera Walter Yara Zeno Alma Boris Celia Dennis Elsa Frank Gilda Henrik
""".split()  # noqa: SIM905  (a list of one word a line is harder to read)
_SURNAME_HEADS = """\
Ash Birch Copper Dray Ember Fallow Grim Hollow Iron Kestrel Lark Marsh North Otter Pike
Quill Raven Stone Thorn Winter
""".split()  # noqa: SIM905  (a list of one word a line is harder to read)
_SURNAME_TAILS = """\
bridge by croft dale field gate ham hurst lock mont quist rose shaw stead ton wick
""".split()  # noqa: SIM905  (a list of one word a line is harder to read)


def names(rng: random.Random) -> list[str]:
    """All full names of one sample, shuffled; every surname occurs once."""
    surnames = [head + tail for head in _SURNAME_HEADS for tail in _SURNAME_TAILS]
    rng.shuffle(surnames)
    return [f"{rng.choice(_FIRST_NAMES)} {surname}" for surname in surnames]


def build(people: Sequence[str], attributes: int, rng: random.Random) -> World:
    """Draw the facts of one document.

    Args:
        people: full names, used in this document only.
        attributes: how many of the attributes the document speaks about.
        rng: source of every choice.

    Returns:
        One fact for each person and attribute.
    """
    chosen = rng.sample(ATTRIBUTES, attributes)
    values = {a: tuple(rng.sample(a.values, VALUES_PER_ATTRIBUTE)) for a in chosen}
    facts = tuple(
        Fact(who, attribute, rng.choice(values[attribute]))
        for attribute in chosen
        for who in people
    )
    return World(facts, values)
