"""QuALITY: questions about a story; one letter is right, the reference is `(B) option text`."""

from leval_tasks.closed.definition import ClosedTask, PublishedFile
from leval_tasks.closed.letters import SYSTEM_ONE_LETTER, OneLetter
from leval_tasks.closed.prompts import Frame

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
    frame=Frame(SYSTEM_ONE_LETTER, framed=True, closed=True),
    rule=OneLetter(),
)
