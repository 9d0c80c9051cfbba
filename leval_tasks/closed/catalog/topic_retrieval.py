"""Topic retrieval: which topic of a long conversation came first, second, third?"""

from collections.abc import Mapping

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import Extraction, Judgement, Rule


class TopicName(Rule):
    """The topic's name anywhere in the response; a guess has no chance level.

    The three questions about a conversation ask for its first, second and third topic in turn;
    the three positions weigh the same.
    """

    parts = ("first", "second", "third")

    def read(self, response: str, gold: str) -> Extraction:
        """The whole response."""
        return Extraction(response, bool(response.strip()))

    def part_scores(self, judged: Judgement, number: int) -> Mapping[str, float | None]:
        """The score at the position that the question asks for."""
        place = number % len(self.parts)
        return {n: judged.score if at == place else None for at, n in enumerate(self.parts)}


TASK = ClosedTask(
    key="topic_retrieval",
    title="TopicRet",
    place=7,
    file=PublishedFile(
        name="topic_retrieval_longchat.jsonl",
        documents=50,
        questions=150,
        sha256="c048104b31ad60d460bcd474bad41603b42418a4e3e32cd955d752d1bf11e11f",
    ),
    system_prompt=(
        "Below is a record of our previous conversation on many different topics. You are the "
        "ASSISTANT, and I am the USER. At the beginning of each topic, the USER will say 'I would "
        "like to discuss the topic of <TOPIC>'. Memorize each <TOPIC>. At the end of the record, I "
        "will ask you to retrieve the first/second/third topic names. Now the record start. "
    ),
    form="record",
    rule=TopicName(),
)
