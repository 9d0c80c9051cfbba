"""`leval-harness score`: predictions in L-Eval's published format."""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import EXISTING_FILE, examples, json_option
from leval_tasks.closed.catalog import ENTRIES, PREFIX, SCORES, task_named
from leval_tasks.common.metadata import ClosedSettings

KEYS = ", ".join(task.key for task in ENTRIES)


@click.command(
    epilog=examples(
        """echo '{"gt": "18", "my_pred": "The answer is 18"}' > answers.jsonl""",
        "leval-harness score --task gsm answers.jsonl",
    )
)
@click.option(
    "--task",
    required=True,
    help=f"Task that the predictions answer: {KEYS}; the names of lm-eval ({PREFIX}gsm) work, too.",
)
@click.option(
    "--end-of-thinking",
    default=ClosedSettings().end_of_thinking,
    help="Text that ends a model's thinking; what precedes it is not scored. An empty text scores "
    "everything.",
)
@click.option(
    "--thinking-opened",
    is_flag=True,
    help="The prompts already opened the thinking, so responses begin inside it.",
)
@json_option
@click.argument("predictions", type=EXISTING_FILE)
def score(
    task: str, end_of_thinking: str, thinking_opened: bool, as_json: bool, predictions: Path
) -> None:
    """Score PREDICTIONS by L-Eval's official rules, in percent.

    Each line is a JSON object with the reference answer under "gt" and the response under a key
    that contains "_pred". Lines that are not JSON are skipped and counted, and so are records whose
    "evaluation" is not one of those that the official scorer accepts (f1, rouge, exam). Answers to
    another task are refused.
    """
    from leval_tasks.closed.predictions import read, refuse_other_task

    chosen = task_named(task, "--task")
    records = read(predictions)
    refuse_other_task(chosen, [gold for _, gold in records.pairs.values()], "--task")
    rows = [
        chosen.score_responses([response], gold, number, end_of_thinking, opened=thinking_opened)
        for number, (response, gold) in records.pairs.items()
    ]
    figures = chosen.aggregate(rows)
    result: dict[str, Any] = {"task": chosen.key, "n": len(rows)}
    for name in (*SCORES, "unparsed", *chosen.rule.parts):
        if name in figures:
            result[name] = _percent(figures[name])
    result["dropped_lines"] = records.dropped
    if records.skipped:
        result["skipped_records"] = records.skipped
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"{predictions} ({records.key}), {len(rows)} responses")
    if records.dropped:
        click.echo(f"{records.dropped} lines are not JSON and were skipped.", err=True)
    if records.skipped:
        click.echo(f"{records.skipped} records were skipped for their 'evaluation'.", err=True)
    for name, value in result.items():
        if isinstance(value, float):
            click.echo(f"  {name:20s} {value:9.4f} %")


def _percent(fraction: float) -> float:
    """Return a fraction in percent, with the official scorer's four decimals."""
    return round(100 * fraction, 4)
