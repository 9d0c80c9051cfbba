"""TOEFL: questions about a lecture; one letter is right, the reference is that letter."""

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.letters import SYSTEM_ONE_LETTER, OneLetter
from leval_tasks.closed.prompts import Frame

TASK = ClosedTask(
    key="toefl",
    title="TOEFL",
    place=4,
    file=PublishedFile(
        name="tpo.jsonl",
        documents=15,
        questions=269,
        sha256="7596d085ddc8e11418d53e956b492f9cba7087c2fc1b516508a26257eed1a57e",
    ),
    frame=Frame(SYSTEM_ONE_LETTER, framed=True, closed=True),
    rule=OneLetter(),
)
