"""What the reader of a table needs to know; only what applies."""

from collections import defaultdict
from collections.abc import Sequence

from leval_harness.analysis.analyse import Analysis, family, grouped
from leval_harness.analysis.blocks import PRECISE_SOFTMAX, counted
from leval_harness.analysis.entries import CANNOT_TELL, SIGNIFICANT, Entry
from leval_harness.analysis.posgen_pairs import ceiling
from leval_harness.analysis.task_titles import task_label
from leval_harness.results import Score
from leval_harness.results.ratios import same_questions
from leval_harness.tables.cells import number_cell
from leval_tasks.closed.catalog import chance_note
from leval_tasks.statistics.paired import ASSUMED


def table_notes(
    entries: Sequence[Entry], analysis: Analysis, average: bool = True
) -> tuple[str, ...]:
    """Notes below a table of these entries; `average` is whether it has all that it could have."""
    done = [entry for entry in entries if entry.score.status == "done"]
    scores = [entry.score for entry in done]
    intervals = {entry.interval for entry in done}
    baselines = sorted({analysis.baselines[entry.block] for entry in entries} - {""})
    compared = bool(baselines) and any(entry.difference for entry in done)
    notes = {
        "sample: made with the bundled sample, which only shows that everything runs; its scores "
        "say nothing about L-Eval": any(score.sample for score in scores),
        "± where no samples were logged: lm-eval's own standard error": "reported" in intervals,
        "±: standard error, clustered by document (CR2)": intervals & {"clustered", "exact"},
        f"{SIGNIFICANT}: differs from the baseline ({', '.join(baselines)}) on the same "
        "questions: sign-flip over documents, McNemar's exact test where each question is its "
        "own document; Holm-corrected within the task, 5% level": compared,
        **dict.fromkeys(_too_few(done), True),
        f"{CANNOT_TELL} where an interval of the difference leaves out zero: {ASSUMED}": any(
            e.difference and e.mark == CANNOT_TELL and e.difference.beside_zero for e in done
        ),
        "No average: fewer than six tasks": not average,
        "Cut: share of the questions whose document was shortened, %; Unparsed: share of the "
        "answers in which no option or number was found, %": any(
            score.cut is not None for score in scores
        ),
        "At limit: share of the answers that the generation limit ended, %": any(
            score.at_limit is not None for score in scores
        ),
        "Thinking cut: share of the answers that ended before their thinking did, %; in square "
        "brackets the score if all of these were wrong, and if all were right": any(
            score.thinking_cut for score in scores
        ),
        "Semi-recursive: a model that never uses the far token is right in (1 + 1/modulus)/2 of "
        f"all places, {ceiling(17):.1f}% with modulus 17": any(
            score.task == "posgen_semi_recursive" for score in scores
        ),
        chance_note(): any(score.chance is not None for score in scores),
        "softmax: not float32, or not known to be: bfloat16 shifts a perplexity by some tenths of "
        "a percent": any(score.softmax not in PRECISE_SOFTMAX for score in scores),
        "partial: run with a limit, never ranked beside full runs": any(
            score.partial for score in scores
        ),
        "In brackets: the exact 95% interval; all answers are right, or all wrong": any(
            number_cell(entry).between and entry.score.stderr is None for entry in done
        ),
        **dict.fromkeys(_not_ranked(done), True),
        **dict.fromkeys(_unpaired(done, analysis), True),
        **dict.fromkeys(_in_groups(scores, analysis), True),
    }
    return tuple(note for note, applies in notes.items() if applies)


def _not_ranked(entries: Sequence[Entry]) -> list[str]:
    """A note of metrics of which nobody said which way is better."""
    names = sorted({e.score.metric for e in entries if e.score.higher_is_better is None})
    return [f"Not ranked, whether higher is better being unknown: {', '.join(names)}"][: len(names)]


def _unpaired(entries: Sequence[Entry], analysis: Analysis) -> list[str]:
    """A note of what was not compared, or not on all questions: others were asked."""
    names: dict[str, None] = {}
    for rivals in grouped(entries, family).values():
        base = [e for e in rivals if e.label == analysis.baselines[e.block]]
        asked = analysis.results.ratios(base[0].score) if len(base) == 1 else None
        for entry in rivals if asked is not None else ():
            own = analysis.results.ratios(entry.score)
            if own is not None and asked is not None and not same_questions(own, asked):
                names[f"{entry.label} ({task_label(entry.task)})"] = None
    said = ", ".join(names)
    return [f"Other questions than the baseline's, by their hashes: {said}"][: len(names)]


def _in_groups(scores: Sequence[Score], analysis: Analysis) -> list[str]:
    """A note of each group whose tasks and groups are left out of the table."""
    shown = {score.task for score in scores}
    left_out: dict[str, set[str]] = defaultdict(set)
    for entry in analysis.entries:
        if entry.score.group in shown:
            left_out[entry.score.group].add(entry.task)
    return [
        f"{group}: its own figure; {counted(len(names), 'task')} and groups in it are in the CSV "
        "alone"
        for group, names in sorted(left_out.items())
    ]


def _too_few(entries: Sequence[Entry]) -> list[str]:
    """A note for each task and number of documents that cannot tell a difference."""
    unclear = [entry for entry in entries if entry.mark == CANNOT_TELL]
    notes = []
    for (task, documents), (first, *_) in grouped(
        unclear, lambda entry: (entry.task, entry.score.clusters or 0)
    ).items():
        assert first.difference is not None
        notes.append(
            f"{CANNOT_TELL}: {task_label(task)}: {counted(documents, 'document')} cannot tell: the "
            f"smallest possible p is {first.difference.smallest_p:.3g}, the threshold "
            f"{first.difference.threshold:.3g}"
        )
    return notes
