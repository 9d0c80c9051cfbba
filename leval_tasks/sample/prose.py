"""Readable text from facts: one sentence a fact, in the voice of a kind of document."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from leval_tasks.sample.world import Fact

_SENTENCES_PER_PARAGRAPH = 8

# Sentences that state nothing about anybody; a document uses each at most once.
_ASIDES = (
    "The weather had been mild for some days, and the windows stood open.",
    "Such details may seem small, but a small place is made of them.",
    "Let us go on, because the list is long and the afternoon is short.",
    "The corridor smells of wax and old paper at every hour.",
    "Some of this was told with a smile and some of it quite seriously.",
    "It is easy to mix people up, so it pays to read slowly.",
    "A bell rings twice a day, and nobody takes much notice of it.",
    "There is more to say, and we shall come to it in good time.",
    "The stairs creak, the pipes knock, and life goes on regardless.",
    "Not everything that one hears in the kitchen should be believed.",
    "Outside, the wind moved the grass and then let it rest again.",
    "One learns these things by listening and not by asking.",
    "A visitor needs a week to find the way around without help.",
    "The notes on this point were short but perfectly clear.",
    "Here the account pauses for a moment before it continues.",
    "Dust danced in the light that fell through the high windows.",
    "Habits like these are hard to change, and no one wants to.",
    "The old clock was slow, as it had always been.",
    "Keep this in mind, for we shall not repeat it.",
    "What follows was written down on the same evening.",
)


@dataclass(frozen=True)
class Voice:
    """How one kind of document opens, moves on and ends; `{place}` is the name of the place."""

    title: str
    opening: str
    transitions: tuple[str, ...]
    ending: str


LECTURE = Voice(
    "Lecture notes: the people of {place}",
    "Hello and welcome to this course. In this lesson we look at a single community, {place}, and "
    "at the people who live and work there. The aim is to practise reading a case closely: every "
    "detail below was recorded by the course team, and the exercises ask for nothing else.",
    (
        "Let us move on to the next part of the lesson.",
        "The next slide of this lesson adds further observations.",
        "We continue with what the field notes say.",
        "Another part of the record concerns the following points.",
        "So far so good; now for some more observations.",
    ),
    "That is the end of this lesson. In the next one we shall discuss how such notes are taken.",
)
STORY = Voice(
    "A WINTER AT {place}",
    "I had meant to stay at {place} for a night, and I stayed for the whole winter. When I left, I "
    "wrote down what I had seen of the people there, so that I should not forget them.",
    (
        "The days grew shorter, and I grew used to the house.",
        "Snow fell in the second week, and we were shut in together.",
        "I slept well and woke early.",
        "Later that month the road was closed again.",
        "By then I was no longer counted as a guest.",
    ),
    "In March the road was clear, and I took the first cart down to the valley. THE END",
)
TALK = Voice(
    "Campus talk: {place}",
    "All right, everyone, let's get started. Today I want to tell you about {place}, where I spent "
    "my last sabbatical. Many of you asked who lives there, so I will simply go through my notes.",
    (
        "Okay, so that brings me to the next page.",
        "Now, where was I? Right, the next group of notes.",
        "Somebody asked about this after class last time, so listen.",
        "Okay, moving on, because we only have an hour.",
        "And this is the part that I find most interesting.",
    ),
    "Okay, that is all for today. Please read the next chapter before we meet again.",
)
VOYAGE = Voice(
    "THE LONG ORBIT OF {place}",
    "The colony ship {place} had been under way for three generations. Its crew kept a log of the "
    "world as they knew it, and this is a part of that log.",
    (
        "The engines hummed, and the log went on.",
        "A new watch began, and somebody else took the pen.",
        "The stars outside had hardly moved.",
        "On the next page the handwriting changes.",
        "The lights were dimmed for the ship's night.",
    ),
    "Here the log breaks off, for the ship had come in sight of its new home.",
)


def paragraphs(sentences: Sequence[str], voice: Voice, place: str, rng: random.Random) -> str:
    """A document: title, opening, the sentences in order with asides between them, ending."""
    asides = rng.sample(_ASIDES, len(_ASIDES))
    blocks = [voice.title.format(place=place), voice.opening.format(place=place)]
    for index, start in enumerate(range(0, len(sentences), _SENTENCES_PER_PARAGRAPH)):
        lines = list(sentences[start : start + _SENTENCES_PER_PARAGRAPH])
        if asides:
            lines.insert(rng.randint(1, len(lines)), asides.pop())
        if index:
            lines.insert(0, voice.transitions[index % len(voice.transitions)])
        blocks.append(" ".join(lines))
    return "\n\n".join([*blocks, voice.ending]) + "\n"


def tell(facts: Sequence[Fact], rng: random.Random) -> list[str]:
    """One sentence a fact, in random order, so that what is asked stands anywhere in the text."""
    return [
        rng.choice(fact.attribute.sentences).format(who=fact.who, value=fact.value)
        for fact in rng.sample(facts, len(facts))
    ]
