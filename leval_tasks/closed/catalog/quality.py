"""QuALITY: questions about a story; one letter is right, the reference is `(B) option text`."""

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.rules import ONE_LETTER_PROMPT, OneLetter

TASK = ClosedTask(
    key="quality",
    title="QuALITY",
    place=3,
    file=PublishedFile(
        name="quality.jsonl",
        documents=15,
        questions=202,
        sha256="e12593a3da249dc1f769d10e07da896a524917f278900a6f6ef42e7fd4daa67b",
    ),
    system_prompt=ONE_LETTER_PROMPT,
    rule=OneLetter(),
    in_group=True,
)
