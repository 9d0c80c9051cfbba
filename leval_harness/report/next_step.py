"""What would decide an open question on effective context length: a command and its time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from leval_harness.report.effective_context import TASK_PREFIX
from leval_harness.report.labels import counted
from leval_harness.report.number_text import Estimate, joined_names
from leval_harness.results.methods import SETTING

SWEEP_COMMAND = "leval-harness sweep "

NUMBER_OF_DOCUMENTS = f"{SETTING}num_docs"

MOST_TIMES = 16
"""A method that needs more documents than so many times those read lies at the margin."""


@dataclass(frozen=True)
class Undecided:
    """A method whose effective context length is undecided.

    Attributes:
        method: its label.
        loss_increase: in the last bin, whose interval contains the margin.
        margin: nats/token.
    """

    method: str
    loss_increase: Estimate
    margin: float

    @property
    def times_the_documents(self) -> float:
        """Return how many times the documents would decide it.

        The half-width of an interval falls with the square root of the number of documents.
        """
        half_width = self.loss_increase.high - self.loss_increase.mean
        distance = abs(self.margin - self.loss_increase.mean)
        if not math.isfinite(half_width) or distance == 0:
            return math.inf
        return float(half_width / distance) ** 2


def command_that_decides(undecided: Sequence[Undecided], part: pd.DataFrame) -> str:
    """Return the sentence that says how to decide what is undecided, and how long that takes.

    Args:
        undecided: the methods of one model.
        part: the rows of that model in the compared frame.
    """
    names = joined_names([method.method for method in undecided], "and")
    times = max(method.times_the_documents for method in undecided)
    if times > MOST_TIMES:
        return (
            f"Undecided: {names}, whose loss increase lies at the margin of "
            f"{undecided[0].margin:g}. More documents do not decide it; choose another --margin."
        )
    runs = part[part["task"].str.startswith(TASK_PREFIX)].drop_duplicates(["run", "task"])
    if have_no_further_documents(runs):
        read = int(runs["asked"].max())
        return (
            f"Undecided: {names}. No further documents of this length are left: the tasks have "
            f"{counted(read, 'document')}. Add a task with other documents, or choose another "
            "--margin."
        )
    documents_read = runs.drop_duplicates("task").set_index("task")["num_docs"].fillna(1)
    # At least one more: a factor of one would ask for the same documents again.
    needed = {
        str(task): math.ceil(count * max(times, 1.0001)) for task, count in documents_read.items()
    }
    growth = max(needed[str(task)] / count for task, count in documents_read.items())
    minutes = max(1, round(_busy_seconds(runs) * growth / 60))
    how = _settings_or_command(runs["command"].iloc[0], needed)
    return f"Undecided: {names}. To decide, in about {counted(minutes, 'minute')}: {how}"


def have_no_further_documents(runs: pd.DataFrame) -> bool:
    """Return whether every task had fewer documents than it was asked to read."""
    if not {"asked", NUMBER_OF_DOCUMENTS} <= {*runs}:
        return False
    wanted = pd.to_numeric(runs[NUMBER_OF_DOCUMENTS], errors="coerce")
    return bool(runs["asked"].lt(wanted).fillna(False).all())


def _settings_or_command(command: object, documents: dict[str, int]) -> str:
    """Return the sweep's command with more documents; without a command the settings alone."""
    if isinstance(command, str) and command.startswith(SWEEP_COMMAND):
        settings = [f"--set tasks.{task}.metadata.num_docs={n}" for task, n in documents.items()]
        return f"`{' '.join([command, *settings])}`"
    return ", ".join(f"`num_docs: {n}` for {task}" for task, n in documents.items()) + "."


def _busy_seconds(runs: pd.DataFrame) -> float:
    """Return the seconds in which at least one run was computed; runs side by side count once."""
    known = runs.dropna(subset=["created", "seconds"]).drop_duplicates("run")
    spans = []
    for created, seconds in zip(known["created"], known["seconds"], strict=True):
        start = datetime.fromisoformat(created).timestamp()
        spans.append((start, start + seconds))
    total = 0.0
    busy_until = -math.inf
    for start, end in sorted(spans):
        total += max(end - max(start, busy_until), 0.0)
        busy_until = max(busy_until, end)
    return total
