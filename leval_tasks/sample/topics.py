"""Long conversations about one topic after the other."""

import random
from collections.abc import Iterator

from leval_tasks.sample.people import Document

TOPICS = """\
The tides of small harbours
Keeping bees on a flat roof
How old maps were coloured
The repair of wooden clocks
Baking bread at high altitude
The language of lighthouse signals
Growing tea in cold valleys
The history of paper kites
Walking routes along canals
The sound of stone bridges
Stars that sailors knew by name
Teaching chess to children"""
ASPECTS = "history cost tools people future books mistakes places".split()  # noqa: SIM905


def conversations(rng: random.Random) -> Iterator[Document]:
    """Twelve topics in turn; the questions ask for the first, second and third."""
    for _ in range(3):
        topics = rng.sample(TOPICS.split("\n"), 12)
        turns = []
        for topic in topics:
            name = topic[0].lower() + topic[1:]
            turns.append(f"USER: I would like to discuss the topic of {name}. ")
            turns.append("ASSISTANT: Gladly! What would you like to know about it? ")
            for aspect in rng.sample(ASPECTS, 4):
                turns.append(f"USER: Could you tell me something about the {aspect} of it? ")
                turns.append(
                    f"ASSISTANT: Of course. What matters about the {aspect} was written down some "
                    f"{rng.randint(20, 90)} years ago: begin with little, look closely, ask those "
                    "who have done it before, and do not expect to be finished within a week. "
                )
        yield (
            [
                f"What is the {place} topic we discussed? Only give me the topic name. Do not "
                "summarize yourself."
                for place in ("first", "second", "third")
            ],
            topics[:3],
            "\n ".join(turns),
        )
