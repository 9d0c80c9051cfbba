"""What takes the scores of several tasks or runs.

The scores of a group of tasks, which tasks they stand for, and one unit for all of a metric.
"""

from collections.abc import Sequence
from dataclasses import replace

from leval_harness.results.lm_eval import ResultsFile
from leval_harness.results.scores import Score
from leval_harness.results.settings import canonical
from leval_harness.results.task_scores import scores_of
from leval_tasks.metrics import FAMILY_OF


def group_scores(group: str, file: ResultsFile, members: Sequence[Score]) -> list[Score]:
    """The scores of a group of tasks, with the settings of its `members`, a score of each.

    Empty where lm-eval computed no figure for the group, or none of its tasks is there. Which tasks
    they are, and how the group makes one figure of theirs, separates too.
    """
    if not members or not any(file.figures(group)):
        return []
    members = sorted(members, key=lambda member: member.task)
    names = dict.fromkeys(name for member in members for name in member.settings)
    lengths = {member.context_length for member in members}
    own = file.separating(group, None, is_ours=False)
    settings = {
        **{name: _joined([each.settings.get(name, "unset") for each in members]) for name in names},
        "group_tasks": " + ".join(member.task for member in members),
        "group_settings": {name: each for name, each in own.items() if each not in (None, {})},
    }
    base = Score(
        run=members[0].run,
        task=group,
        context_length=lengths.pop() if len(lengths) == 1 else None,
        members=len(members),
        settings=canonical(settings),
        limit=next((each.limit for each in members if each.limit is not None), None),
        partial=any(member.partial for member in members),
        sample=any(member.sample for member in members),
    )
    return scores_of(base, file, None)


def _joined(texts: Sequence[str]) -> str:
    """A setting of several tasks: each one's, in the order of the tasks, unless all agree."""
    return texts[0] if len(set(texts)) == 1 else " + ".join(texts)


def stand_for(scores: dict[str, list[Score]], file: ResultsFile) -> None:
    """Let a group's figure stand in tables for its tasks, that of the outermost one for groups.

    Our own groups stand for nothing: their tasks are the columns, with an average of them.
    """
    taken: set[str] = set()
    for group in file.groups:
        if not scores.get(group):
            continue
        if group in FAMILY_OF:
            scores[group] = [replace(each, primary=False) for each in scores[group]]
            continue
        inside = file.below(group) - taken
        taken |= inside
        for name in inside:
            scores[name] = [
                replace(each, primary=False, group=each.group or group)
                for each in scores.get(name, ())
            ]


def in_one_unit(scores: list[Score]) -> list[Score]:
    """Take no metric for a share that has a number above 1 anywhere.

    A number of at most 1 of it may be a share all the same: the two are not ranked together.
    """

    def of(score: Score) -> tuple[str, str, str]:
        return score.task, score.metric, score.chosen

    raw = {of(score) for score in scores if score.share is False and score.value is not None}
    return [
        replace(score, share=False, settings={**score.settings, "scale": "at most 1"})
        if score.share and of(score) in raw
        else score
        for score in scores
    ]
