"""`leval-harness score`: score a prediction file in L-Eval's published format."""

import json
from pathlib import Path

import click

from leval_border.errors import printable
from leval_harness.cli.output import EXISTING_FILE, json_option
from leval_tasks.closed.catalog import TASKS, task_named
from leval_tasks.closed.definition import PREFIX, SCORES

*keys, last_key = (task.key for task in TASKS.values())


@click.command(epilog="Example: leval-harness score --task coursera coursera.pred.jsonl")
@click.option("--task", required=True, help=f"{', '.join(keys)} or {last_key}; also as {PREFIX}….")
@json_option
@click.argument("predictions", type=EXISTING_FILE)
def command(task: str, as_json: bool, predictions: Path) -> None:
    """Score PREDICTIONS with L-Eval's official rules, in percent.

    Each line is a JSON object with the reference under "gt" and the response under a key that
    contains "_pred". Lines that are not JSON are dropped and counted, and so are records whose
    "evaluation" is none that the official scorer takes (f1, rouge, exam).
    """
    from leval_tasks.closed.predictions import read

    chosen = task_named(task, "--task")
    found = read(predictions)
    judged = [chosen.rule.judge(response, gold) for response, gold in found.pairs]
    rows = [chosen.score_judged(each, at) for at, each in zip(found.places, judged, strict=True)]
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
    click.echo(f"{printable(str(predictions))} ({found.key}), {len(rows)} responses")
    if found.dropped:
        click.echo(f"{found.dropped} lines are not JSON and are left out.", err=True)
    if found.skipped:
        click.echo(f"{found.skipped} records are skipped for their 'evaluation'.", err=True)
    for name, value in row.items():
        if isinstance(value, float):
            click.echo(f"  {name:20s} {value:9.4f} %")


def _percent(fraction: float) -> float:
    return round(100 * fraction, 4)  # the official scorer's four decimals
