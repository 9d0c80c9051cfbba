"""SFiction documents: a world in which some facts of ours are otherwise.

A statement asserts either the real value of a fact or the other one; the story holds either. The
four combinations occur equally often, so whether a statement is true in the story says nothing
about whether it is true in our world, and neither follows from the wording of the question.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

from leval_tasks.sample import prose, world

QUESTIONS = 8
_FACTS_PER_DOCUMENT = 12
_ATTRIBUTES = 9

_LEADS = (
    "The log repeats what every child aboard is taught, namely that {claim}.",
    "Measured again and again, the result stayed the same: {claim}.",
    "In this world {claim}, and the crew build their plans on it.",
    "Nobody on the ship has ever doubted that {claim}.",
    "The first page of the almanac says that {claim}.",
)
_QUESTION = (
    "{number}.\t{claim}, True or False? "
    "Answer this question based on the world described in the document."
)


@dataclass(frozen=True)
class Truth:
    """A fact of our world with one value that holds here and one that does not."""

    claim: str
    real: str
    other: str

    def say(self, value: str) -> str:
        """The claim with a value."""
        return self.claim.format(value)


_TRUTHS = tuple(
    Truth(*line.split(" | "))
    for line in """\
a spider has {} legs | eight | ten
water boils at {} degrees Celsius at sea level | one hundred | eighty
a week has {} days | seven | nine
the chemical symbol of gold is {} | Au | Go
sound travels {} than light | more slowly | faster
iron is {} than water | denser | lighter
the Sun rises in the {} | east | west
the angles of a flat triangle add up to {} degrees | 180 | 200
whales breathe with {} | lungs | gills
honey is made by {} | bees | ants
the capital of France is {} | Paris | Lyon
ice {} on liquid water | floats | sinks
diamonds consist of {} | carbon | silicon
the gas that leaves take in from the air to grow is {} | carbon dioxide | methane
a chess board has {} squares | sixty-four | eighty-one
wild polar bears live around the {} | North Pole | South Pole
the Moon takes about {} days to circle the Earth | twenty-seven | fifty
an ordinary guitar has {} strings | six | nine
the largest ocean of the Earth is the {} | Pacific | Atlantic
the human heart has {} chambers | four | three
bats are {} | mammals | birds
the star closest to the Earth is {} | the Sun | Sirius
lead melts at a {} temperature than tungsten | lower | higher
an octopus has {} arms | eight | twelve
the planet with the most striking rings is {} | Saturn | Mars
pure water freezes at {} degrees Celsius | zero | twenty
a marathon is about {} kilometres long | forty-two | sixty
the Amazon river flows through {} | South America | Africa
blood is pumped through the human body by the {} | heart | liver
penicillin was first obtained from a {} | mould | seaweed
the largest land animal is the {} | African elephant | white rhinoceros
a leap year has {} days | 366 | 360
the hardest natural mineral is {} | diamond | quartz
the tides of the sea are caused mainly by the {} | Moon | wind
table salt is a compound of sodium and {} | chlorine | sulphur
the Earth circles the {} once a year | Sun | Moon""".splitlines()
)


def documents(
    people: list[list[str]], places: list[str], rng: random.Random
) -> list[dict[str, object]]:
    """SFiction records, one for each group of people.

    Args:
        people: the names of each document.
        places: the name of each ship.
        rng: source of every choice.
    """
    truths = rng.sample(_TRUTHS, len(_TRUTHS))
    records = []
    for index, (names, place) in enumerate(zip(people, places, strict=True)):
        own = truths[index * _FACTS_PER_DOCUMENT : (index + 1) * _FACTS_PER_DOCUMENT]
        records.append(_document(own, names, place, rng))
    return records


def _document(
    truths: list[Truth], names: list[str], place: str, rng: random.Random
) -> dict[str, object]:
    cells = list(product((True, False), repeat=2)) * (QUESTIONS // 4)
    rng.shuffle(cells)
    instructions, outputs, sentences = [], [], []
    for number, (truth, (loyal, factual)) in enumerate(zip(truths, cells, strict=False), start=1):
        asserted = truth.real if factual else truth.other
        denied = truth.other if factual else truth.real
        sentences.append(_sentence(truth.say(asserted if loyal else denied), rng))
        claim = truth.say(asserted)
        instructions.append(_QUESTION.format(number=number, claim=claim[0].upper() + claim[1:]))
        outputs.append(f"{loyal} [fact: {factual}]")
    sentences += [
        _sentence(truth.say(rng.choice((truth.real, truth.other))), rng)
        for truth in truths[QUESTIONS:]
    ]
    sentences += prose.tell(world.build(names, _ATTRIBUTES, rng).facts, rng)
    rng.shuffle(sentences)
    text = prose.paragraphs(sentences, prose.VOYAGE, place, rng)
    return {"instructions": instructions, "outputs": outputs, "input": text}


def _sentence(claim: str, rng: random.Random) -> str:
    return rng.choice(_LEADS).format(claim=claim)
