"""GSM: sixteen worked examples as the document, then a question of grade-school arithmetic."""

import re

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import Extraction, Rule


class LastNumber(Rule):
    """The number that a worked solution ends in; the reference is read by the same rule."""

    guess = "nothing"
    guess_score = 0.0

    def read(self, response: str, gold: str) -> Extraction:
        """Digits of the number."""
        stated = re.search(r"The answer is (\S+)", response)
        if stated:
            token = stated.group(1)
        else:
            pieces = response.split("\n\n", 1)[0].split(" ")
            token = next((p for p in reversed(pieces) if any(map(str.isdigit, p))), "")
        # digits of every script, as the official scorer's `str.isdigit` takes them
        digits = "".join(filter(str.isdigit, token.split(".", 1)[0]))
        return Extraction(digits, parsed=bool(digits))

    def reference(self, gold: str) -> str:
        """Digits of the reference."""
        return self.read(gold, gold).answer


TASK = ClosedTask(
    key="gsm",
    title="GSM",
    place=2,
    file=PublishedFile(
        name="gsm100.jsonl",
        documents=100,
        questions=100,
        sha256="768d7b1d52be9406994b098fdfb9c2fd055bf2eb3d79748b42a9e55ddcc81f2a",
    ),
    system_prompt=(
        "Given several question answer pairs, you need to follow a similar format to answer the "
        "last question. Make sure the response is end with The answer is _ . "
    ),
    form="steps",
    rule=LastNumber(),
    own_clusters=True,
    in_group=True,
)
