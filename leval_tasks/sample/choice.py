"""Multiple-choice documents: Coursera (one or more letters), QuALITY and TOEFL (one letter)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from leval_tasks.sample import prose
from leval_tasks.sample.world import Fact, World, build

LETTERS = "ABCD"
_ATTRIBUTES = 9
_SINGLE_QUESTIONS = 8
_COURSERA_SINGLE = 4

Record = dict[str, object]


def quality(people: list[list[str]], places: list[str], rng: random.Random) -> list[Record]:
    """QuALITY records: options in brackets, gold answer `(B) option text`."""
    records = []
    for names, place in zip(people, places, strict=True):
        world = build(names, _ATTRIBUTES, rng)
        instructions, outputs = [], []
        for fact, letter in _asked(world, _SINGLE_QUESTIONS, rng):
            options = _options(world, fact, letter, rng)
            lines = [f" ({key}) {value}. " for key, value in zip(LETTERS, options, strict=True)]
            question = fact.attribute.question.format(who=fact.who)
            instructions.append(f"{question}\n\n" + "\n".join(lines))
            outputs.append(f"({letter}) {fact.value}.")
        text = _text(world, prose.STORY, place.upper(), rng)
        records.append(_record(instructions, outputs, text))
    return records


def toefl(people: list[list[str]], places: list[str], rng: random.Random) -> list[Record]:
    """TOEFL records: options after a letter and a full stop, gold answer one letter."""
    records = []
    for names, place in zip(people, places, strict=True):
        world = build(names, _ATTRIBUTES, rng)
        asked = list(_asked(world, _SINGLE_QUESTIONS, rng))
        instructions = [_listed(fact, _options(world, fact, x, rng)) for fact, x in asked]
        text = _text(world, prose.TALK, place, rng)
        records.append(_record(instructions, [letter for _, letter in asked], text))
    return records


def coursera(people: list[list[str]], places: list[str], rng: random.Random) -> list[Record]:
    """Coursera records: in each document four questions with one letter and four with several.

    Over two documents each letter is in as many of the longer answers as every other letter.
    """
    triples = _shuffled([LETTERS.replace(letter, "") for letter in LETTERS], rng)
    records = []
    for index, (names, place) in enumerate(zip(people, places, strict=True)):
        world = build(names, _ATTRIBUTES, rng)
        asked = list(_asked(world, _COURSERA_SINGLE, rng))
        questions = [(_listed(fact, _options(world, fact, x, rng)), x) for fact, x in asked]
        pair = "".join(sorted(rng.sample(LETTERS, 2)))
        rest = "".join(letter for letter in LETTERS if letter not in pair)
        longer = [pair, rest, *(triples[(2 * index + i) % len(triples)] for i in range(2))]
        left = [fact for fact in world.facts if fact not in {f for f, _ in asked}]
        chosen = rng.sample(left, len(LETTERS) * len(longer))
        for i, answer in enumerate(longer):
            facts = chosen[i * len(LETTERS) : (i + 1) * len(LETTERS)]
            questions.append((_statements(world, facts, answer, rng), answer))
        rng.shuffle(questions)
        instructions = [f"Question {i}. {text}" for i, (text, _) in enumerate(questions, start=1)]
        text = _text(world, prose.LECTURE, place, rng)
        records.append(_record(instructions, [answer for _, answer in questions], text))
    return records


def _asked(world: World, n: int, rng: random.Random) -> list[tuple[Fact, str]]:
    """Facts to ask for, each once, with the letter of the right answer: A to D equally often."""
    letters = [letter for _ in range(n // 4) for letter in _shuffled(LETTERS, rng)]
    return list(zip(rng.sample(world.facts, n), letters, strict=True))


def _options(world: World, fact: Fact, letter: str, rng: random.Random) -> list[str]:
    """The four values of the fact's attribute, the true one at the place of `letter`."""
    options = _shuffled([v for v in world.values[fact.attribute] if v != fact.value], rng)
    options.insert(LETTERS.index(letter), fact.value)
    return options


def _listed(fact: Fact, options: Sequence[str]) -> str:
    lines = [f"{letter}. {value}" for letter, value in zip(LETTERS, options, strict=True)]
    return "\n".join([fact.attribute.question.format(who=fact.who), *lines])


def _statements(world: World, facts: Sequence[Fact], answer: str, rng: random.Random) -> str:
    """A question over four statements of which those in `answer` are true."""
    lines = ["Which of the following statements are supported by the lesson?"]
    for letter, fact in zip(LETTERS, facts, strict=True):
        claim = fact.claim if letter in answer else world.false_claim(fact, rng)
        lines.append(f"{letter}. {claim[0].upper()}{claim[1:]}")
    return "\n".join(lines)


def _text(world: World, voice: prose.Voice, place: str, rng: random.Random) -> str:
    return prose.paragraphs(prose.tell(world.facts, rng), voice, place, rng)


def _record(instructions: list[str], outputs: list[str], text: str) -> Record:
    return {"instructions": instructions, "outputs": outputs, "input": text}


def _shuffled(items: Sequence[str], rng: random.Random) -> list[str]:
    return rng.sample(items, len(items))
