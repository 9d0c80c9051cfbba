"""What the reader of a table needs to know; only what applies."""

from collections.abc import Sequence

from leval_leaderboard.results.chance import CHANCE_NOTE
from leval_leaderboard.tables.analysis import Analysis, grouped
from leval_leaderboard.tables.blocks import PRECISE_SOFTMAX, counted
from leval_leaderboard.tables.entries import CANNOT_TELL, SIGNIFICANT, Entry
from leval_leaderboard.tables.names import task_label


def table_notes(
    entries: Sequence[Entry], analysis: Analysis, average: bool | None = None
) -> tuple[str, ...]:
    """Notes below a table of these entries.

    Args:
        entries: what the table shows.
        analysis: where they come from.
        average: whether the table has one; None where it could not.
    """
    done = [entry for entry in entries if entry.score.status == "done"]
    notes = []
    if any(entry.score.sample for entry in done):
        notes.append(
            "sample: made with the bundled sample, which only shows that everything runs; "
            "its scores say nothing about L-Eval"
        )
    intervals = {entry.interval for entry in done}
    if "reported" in intervals:
        notes.append("± where no samples were logged: lm-eval's own standard error")
    if intervals & {"clustered", "exact"}:
        notes.append("±: standard error, clustered by document (CR2)")
    baselines = sorted({analysis.baselines[entry.block] for entry in entries} - {""})
    if baselines and any(entry.difference for entry in done):
        notes.append(
            f"{SIGNIFICANT}: differs from the baseline ({', '.join(baselines)}) on the same "
            "questions: sign-flip over documents, McNemar's exact test where each question is its "
            "own document; Holm-corrected within the task, 5% level"
        )
    notes += _too_few(done)
    if average is False:
        notes.append("No average: fewer than six tasks")
    if any(entry.score.cut is not None for entry in done):
        notes.append(
            "Cut: share of the questions whose document was shortened, %; "
            "Unparsed: share of the answers in which no option or number was found, %"
        )
    if any(entry.score.chance is not None for entry in done):
        notes.append(CHANCE_NOTE)
    if any(entry.score.softmax not in PRECISE_SOFTMAX for entry in done):
        notes.append(
            "softmax: not float32, or not known to be: bfloat16 shifts a perplexity by some tenths "
            "of a percent"
        )
    if any(entry.score.partial for entry in done):
        notes.append("partial: run with a limit, never ranked beside full runs")
    return tuple(notes)


def _too_few(entries: Sequence[Entry]) -> list[str]:
    """A note for each task and number of documents that cannot tell a difference."""
    unclear = [entry for entry in entries if entry.mark == CANNOT_TELL]
    notes = []
    for first, *_ in grouped(unclear, lambda e: (e.task, e.score.clusters)).values():
        assert first.difference is not None
        documents = counted(first.score.clusters or 0, "document")
        notes.append(
            f"{CANNOT_TELL}: {task_label(first.task)}: {documents} cannot tell: the smallest "
            f"possible p is {first.difference.smallest_p:.3g}, the threshold "
            f"{first.difference.threshold:.3g}"
        )
    return notes
