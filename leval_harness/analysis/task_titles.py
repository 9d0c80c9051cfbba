"""Names of tasks as the paper prints them, and which belong together."""

from leval_harness.results.posgen import SUBTASKS
from leval_tasks.closed.catalog import TASKS

CLOSED = {name: task.title for name, task in TASKS.items() if task.in_group}
"""The six tasks of the paper's Table 2, in its order; only all six have an average."""

BESIDE = {name: task.title for name, task in TASKS.items() if not task.in_group}
"""Stand beside the six, in no average."""

POSGEN = {f"posgen_{subtask}": title for subtask, title in SUBTASKS.items()}

_LABELS = {
    "ppl_govreport": "GovReport",
    "ppl_proofpile": "Proof-pile",
    "ppl_pg19": "PG19",
    "ppl_pydocs": "Python docs",
    "reach_govreport": "Reach on GovReport",
    "reach_proofpile": "Reach on Proof-pile",
    "reach_pg19": "Reach on PG19",
    "reach_pydocs": "Reach on Python docs",
    **CLOSED,
    **BESIDE,
    **POSGEN,
}


def task_label(task: str) -> str:
    """Short name of a task for a column head."""
    return _LABELS.get(task, task)


def length_label(length: float | None) -> str:
    """Context length as papers write it: 8192 -> `8K`, 10000 -> `10,000`."""
    if length is None or length != length:
        return "–"
    whole = int(length)
    return f"{whole // 1024}K" if whole % 1024 == 0 else f"{whole:,}"
