"""`leval-harness score`: predictions in L-Eval's published format."""

import json
from pathlib import Path

import click

from leval_harness.cli.output import EXISTING_FILE, json_option
from leval_tasks.closed.catalog import ENTRIES, PREFIX, SCORES, task_named
from leval_tasks.common.metadata import ClosedSettings

KEYS = ", ".join(task.key for task in ENTRIES)


@click.command(epilog="Example: leval-harness score --task coursera coursera.pred.jsonl")
@click.option("--task", required=True, help=f"One of {KEYS}; also as {PREFIX}….")
@click.option(
    "--end-of-thinking",
    default=ClosedSettings().end_of_thinking,
    help="What ends a model's thinking, which is not scored; empty keeps everything.",
)
@click.option("--thinking-opened", is_flag=True, help="The prompts already opened the thinking.")
@json_option
@click.argument("predictions", type=EXISTING_FILE)
def score(
    task: str, end_of_thinking: str, thinking_opened: bool, as_json: bool, predictions: Path
) -> None:
    """Score PREDICTIONS with L-Eval's official rules, in percent.

    Each line is a JSON object with the reference under "gt" and the response under a key that
    contains "_pred". Lines that are not JSON are dropped and counted, and so are records whose
    "evaluation" is none that the official scorer takes (f1, rouge, exam). References of another
    task are refused.
    """
    from leval_tasks.closed.predictions import read, refuse_other_task

    chosen, found = task_named(task, "--task"), read(predictions)
    refuse_other_task(chosen, [gold for _, gold in found.pairs.values()], "--task")
    rows = [
        chosen.score_responses([response], gold, at, end_of_thinking, opened=thinking_opened)
        for at, (response, gold) in found.pairs.items()
    ]
    figures = chosen.aggregate(rows)
    shown = (*SCORES, "unparsed", *chosen.rule.parts)
    row = {
        "task": chosen.key,
        "n": len(rows),
        **{name: _percent(figures[name]) for name in shown if name in figures},
        "dropped_lines": found.dropped,
        **({"skipped_records": found.skipped} if found.skipped else {}),
    }
    if as_json:
        click.echo(json.dumps(row))
        return
    click.echo(f"{predictions} ({found.key}), {len(rows)} responses")
    if found.dropped:
        click.echo(f"{found.dropped} lines are not JSON and are left out.", err=True)
    if found.skipped:
        click.echo(f"{found.skipped} records are skipped for their 'evaluation'.", err=True)
    for name, value in row.items():
        if isinstance(value, float):
            click.echo(f"  {name:20s} {value:9.4f} %")


def _percent(fraction: float) -> float:
    return round(100 * fraction, 4)  # the official scorer's four decimals
