"""Groups of tasks in a results file: their own figures, and what stands in tables for what."""

from collections.abc import Sequence
from dataclasses import replace

from leval_harness.results.lm_eval import ResultsFile, figures_of
from leval_harness.results.scores import FAMILY_OF, Score
from leval_harness.results.settings import canonical
from leval_harness.results.task_scores import scores_of


def group_scores(group: str, file: ResultsFile, members: Sequence[Score]) -> list[Score]:
    """The scores of a group of tasks; settings are those of its members, a score of each.

    With which tasks they are, and how the group makes one figure of theirs. None where lm-eval
    computed no figure for the group, or none of its tasks is there.
    """
    values = file.groups.get(group)
    if not members or not isinstance(values, dict) or not any(figures_of(values)):
        return []
    members = sorted(members, key=lambda member: member.task)
    names = dict.fromkeys(name for member in members for name in member.settings)
    lengths = {member.context_length for member in members}
    own = file.deciding_of(group, None, is_ours=False)
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
    return scores_of(base, values, file, None)


def _joined(texts: Sequence[str]) -> str:
    """A setting of several tasks: each one's, in the order of the tasks, unless all agree."""
    return texts[0] if len(set(texts)) == 1 else " + ".join(texts)


def stand_for(scores: dict[str, list[Score]], file: ResultsFile) -> None:
    """A group's figure stands in tables for its tasks, that of the outermost one for groups.

    Our own groups stand for nothing: their tasks are the columns, with an average of them.
    """
    taken: set[str] = set()
    for group in file.groups:
        if not scores.get(group):
            continue
        if group in FAMILY_OF:
            scores[group] = [replace(each, primary=False) for each in scores[group]]
            continue
        inside = below(group, file) - taken
        taken |= inside
        for name in inside:
            scores[name] = [
                replace(each, primary=False, group=each.group or group)
                for each in scores.get(name, ())
            ]


def below(group: str, file: ResultsFile) -> set[str]:
    """Names of the tasks and groups in a group, at any depth."""
    found: set[str] = set()
    ahead = [group]
    while ahead:
        new = set(file.members_of(ahead.pop())) - found - {group}
        found |= new
        ahead += new
    return found
