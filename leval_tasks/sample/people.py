"""Invented people: what is true of them is drawn first, then told and asked for."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

Document = tuple[list[str], list[str], str]  # questions, answers, text
LETTERS = "ABCD"
PEOPLE = 16
QUESTIONS = 8

FIRST_NAMES = "Ada Bruno Clara Dario Edith Felix Greta Hugo Ines Jonas Leo Mira Nils Olga Rosa Vera"
HEADS = "Ash Birch Copper Dray Ember Fallow Hollow Iron Kestrel Lark Marsh Otter Pike Quill Stone"
TAILS = "bridge croft dale field gate hurst lock mont quist rose shaw stead"

# question | sentence | the four values
ATTRIBUTES = """\
Which instrument does {} play? | In the evenings one can hear {} practise the {} behind a closed \
door upstairs | cello oboe harp zither
Which animal does {} keep? | It surprises nobody that {} keeps a {}, for the animal is seen all \
over the house | tortoise raven ferret greyhound
On which day does {} take the night watch? | The rota by the kitchen door says that {} takes the \
night watch on every single {} | Monday Tuesday Thursday Saturday
In which month did {} arrive? | According to the register at the gate, {} arrived with one small \
suitcase in {} | January April July October
Which colour has the coat of {}? | When it rains for long in the valley, {} puts on the coat with \
wide sleeves that is {} | crimson turquoise violet beige
Which tree did {} plant? | A small plate of brass in the yard says that {} planted the old {} \
beside the well | walnut juniper chestnut willow
What does {} study? | Whoever sits at the long table by the window will learn that {} studies {} \
day after day | glaciers mosses comets dialects
From which town does {} come? | The accent gives it away at the very first word to everyone here: \
{} comes from {} | Aldmoor Brinsford Caldwick Dunmere
What does {} collect? | Two drawers of the oak cupboard do not close any more, because {} collects \
so many {} | thimbles stamps buttons marbles"""

# claim | what holds in our world | what does not
TRUTHS = """\
a spider has {} legs | eight | ten
water boils at {} degrees Celsius at sea level | one hundred | eighty
a week has {} days | seven | nine
sound travels {} than light | more slowly | faster
iron is {} than water | denser | lighter
the Sun rises in the {} | east | west
the angles of a flat triangle add up to {} degrees | 180 | 200
whales breathe with {} | lungs | gills
honey is made by {} | bees | ants
the capital of France is {} | Paris | Lyon
ice {} on liquid water | floats | sinks
diamonds consist of {} | carbon | silicon
a chess board has {} squares | sixty-four | eighty-one
wild polar bears live around the {} | North Pole | South Pole
an ordinary guitar has {} strings | six | nine
the largest ocean of the Earth is the {} | Pacific | Atlantic
the human heart has {} chambers | four | three
bats are {} | mammals | birds
an octopus has {} arms | eight | twelve
pure water freezes at {} degrees Celsius | zero | twenty
the Amazon river flows through {} | South America | Africa
a leap year has {} days | 366 | 360
the tides of the sea are caused mainly by the {} | Moon | wind
the Earth circles the {} once a year | Sun | Moon"""


@dataclass(frozen=True)
class Fact:
    """What is true of one person, and the four values that could be."""

    who: str
    question: str
    sentence: str
    values: tuple[str, ...]
    value: str

    def says(self, value: str) -> str:
        """The document's sentence with a value."""
        return f"{self.sentence.format(self.who, value)}."


def facts_of(rng: random.Random) -> list[Fact]:
    """Every attribute of sixteen people, in random order."""
    names = list(product(FIRST_NAMES.split(), HEADS.split(), TAILS.split()))
    facts = []
    for first, head, tail in rng.sample(names, PEOPLE):
        who = f"{first} {head}{tail}"
        for line in ATTRIBUTES.split("\n"):
            question, sentence, words = line.split(" | ")
            values = tuple(words.split())
            facts.append(Fact(who, question.format(who), sentence, values, rng.choice(values)))
    return rng.sample(facts, len(facts))


def text_of(title: str, lead: str, sentences: Sequence[str]) -> str:
    """A document in paragraphs of eight sentences."""
    parts = [" ".join(sentences[at : at + 8]) for at in range(0, len(sentences), 8)]
    numbered = (f"{lead} {number}. {part}" for number, part in enumerate(parts, start=1))
    return "\n\n".join([title, *numbered]) + "\n"


def letters(count: int, rng: random.Random) -> list[str]:
    """Right letters, each of A to D equally often."""
    return [letter for _ in range(count // 4) for letter in rng.sample(LETTERS, 4)]


def options(fact: Fact, letter: str, rng: random.Random) -> list[str]:
    """The four values, the true one at the place of its letter."""
    wrong = [value for value in fact.values if value != fact.value]
    chosen = rng.sample(wrong, len(wrong))
    chosen.insert(LETTERS.index(letter), fact.value)
    return chosen


def listed(question: str, lines: Sequence[str]) -> str:
    """A question with its four options."""
    return "\n".join([question, *(f"{k}. {v}" for k, v in zip(LETTERS, lines, strict=True))])


def quality(rng: random.Random) -> Iterator[Document]:
    """Stories; options in brackets, the answer is `(B) option text`."""
    for place in ("CORBEL HOUSE", "THE HERMITAGE", "LANTERN HILL"):
        facts = facts_of(rng)
        questions, answers = [], []
        for fact, letter in zip(facts, letters(QUESTIONS, rng), strict=False):
            chosen = zip(LETTERS, options(fact, letter, rng), strict=True)
            questions.append(f"{fact.question}\n\n" + "\n".join(f" ({k}) {v}. " for k, v in chosen))
            answers.append(f"({letter}) {fact.value}.")
        yield questions, answers, _told(f"A WINTER AT {place}", "Evening", facts, rng)


def toefl(rng: random.Random) -> Iterator[Document]:
    """Lectures; the answer is one letter."""
    for place in ("Pinewater Station", "the Orrery Institute", "Whitcombe Farm"):
        facts = facts_of(rng)
        answers = letters(QUESTIONS, rng)
        asked = zip(facts, answers, strict=False)
        questions = [listed(f.question, options(f, letter, rng)) for f, letter in asked]
        yield questions, answers, _told(f"Campus talk: {place}", "My notes, page", facts, rng)


def coursera(rng: random.Random) -> Iterator[Document]:
    """Lessons; half of the questions have several right letters."""
    for place in ("Harrow Fen", "Mossgate Mill", "the Tallow Guild", "Saltmarsh College"):
        facts = facts_of(rng)
        single = letters(4, rng)
        asked = zip(facts, single, strict=False)
        questions = [listed(f.question, options(f, letter, rng)) for f, letter in asked]
        several = ["AB", "CD", "ABC", "BCD"]
        for at, answer in enumerate(several):
            lines = [
                fact.says(fact.value if letter in answer else options(fact, "A", rng)[1])
                for letter, fact in zip(LETTERS, facts[4 * at + 4 :], strict=False)
            ]
            questions.append(listed("Which statements are supported by the lesson?", lines))
        numbered = [f"Question {n}. {text}" for n, text in enumerate(questions, start=1)]
        title = f"Lecture notes: the people of {place}"
        yield numbered, [*single, *several], _told(title, "Slide", facts, rng)


def fiction(rng: random.Random) -> Iterator[Document]:
    """Stories in which some facts of our world are otherwise; `True [fact: False]`."""
    truths = rng.sample(TRUTHS.split("\n"), 3 * QUESTIONS)
    for ship in ("HALCYON", "MERIDIAN", "ANABASIS"):
        questions, answers, told = [], [], []
        cells = rng.sample([*product((True, False), repeat=2)] * 2, QUESTIONS)
        for number, (loyal, factual) in enumerate(cells, start=1):
            claim, real, other = truths.pop().split(" | ")
            asserted, denied = (real, other) if factual else (other, real)
            told.append(
                f"Every child aboard learns that {claim.format(asserted if loyal else denied)}."
            )
            statement = claim.format(asserted)
            questions.append(
                f"{number}.\t{statement[0].upper()}{statement[1:]}, True or False? Answer this "
                "question based on the world described in the document."
            )
            answers.append(f"{loyal} [fact: {factual}]")
        sentences = [*told, *(fact.says(fact.value) for fact in facts_of(rng))]
        rng.shuffle(sentences)
        yield questions, answers, text_of(f"THE LONG ORBIT OF {ship}", "Log entry", sentences)


def _told(title: str, lead: str, facts: Sequence[Fact], rng: random.Random) -> str:
    sentences = [fact.says(fact.value) for fact in facts]
    return text_of(title, lead, rng.sample(sentences, len(sentences)))
