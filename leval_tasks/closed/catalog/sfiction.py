"""SFiction: is a statement true in the story, and is it true in our world? Two prompts a question.

A response without `[fact:` makes the official scorer crash; here its fact answer is unparsed and
both parts score 0.
"""

from collections.abc import Sequence

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import Extraction, Judgement, Rule, compare

FACT_MARK = "[fact:"


class TrueTwice(Rule):
    """True or false, in the story and in our world; the score is the mean of both."""

    parts = ("loyalty", "factuality")
    guess = "true or false"
    guess_score = 0.5

    def read(self, response: str, gold: str) -> Extraction:
        """`true` or `false` from one of the two answers, else the error mark."""
        for word in response.lower().split():
            for value in ("true", "false"):
                if value in word:
                    return Extraction(value, parsed=True)
        return Extraction("<error>", parsed=False)

    def join(self, responses: Sequence[str]) -> str:
        """The stored form of the two answers."""
        return f"{responses[0]} {FACT_MARK} {responses[1]}]"

    def judge(self, response: str, gold: str) -> Judgement:
        """Score both answers of the stored form."""
        loyalty_gold, fact_gold = split_stored(gold)
        loyalty_text, fact_text = split_stored(response)
        loyalty, fact = self.read(loyalty_text, gold), self.read(fact_text or "", gold)
        scores = (
            compare(loyalty.answer, loyalty_gold.strip()),
            compare(fact.answer, (fact_gold or "").strip()),
        )
        if fact_text is None:
            scores = (0.0, 0.0)
        mean = sum(scores) / 2
        return Judgement(
            mean,
            mean,
            loyalty.parsed and fact.parsed,
            f"{loyalty.answer}, {fact.answer}",
            dict(zip(self.parts, scores, strict=True)),
        )


def split_stored(stored: str) -> tuple[str, str | None]:
    """Loyalty text and fact text of the stored form, lower-cased.

    The fact text loses its last character, meant to be the bracket. It is None where the stored
    form has no `[fact:`, where the official scorer crashes.
    """
    parts = stored.lower().split(FACT_MARK)
    return parts[0], parts[1][:-1] if len(parts) > 1 else None


def real_world_question(instruction: str) -> str:
    """The instruction turned to the real world; kept where it lacks the usual sentence."""
    return instruction.replace(
        "based on the world described in the document.",
        "based on the real-world knowledge and facts up until your last training",
    )


TASK = ClosedTask(
    key="sfiction",
    title="SFiction",
    place=6,
    file=PublishedFile(
        name="sci_fi.jsonl",
        documents=7,
        questions=64,
        sha256="eb704ffaacb8c84df4b9d70a8557066de25798b9af1332fd1f2dee77a8112d06",
    ),
    system_prompt=(
        "Now you are given a scientific fiction. I will ask you some questions and the answer "
        'should be "True" or "False". Notice that you should answer the question based on the '
        "evidence in the document instead of your background knowledge."
    ),
    second_question=real_world_question,
    rule=TrueTwice(),
    in_group=True,
)
