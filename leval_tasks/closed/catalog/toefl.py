"""TOEFL: questions about a lecture; one letter is right, the reference is that letter."""

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import ONE_LETTER_PROMPT, OneLetter

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
    system_prompt=ONE_LETTER_PROMPT,
    rule=OneLetter(),
    in_group=True,
)
