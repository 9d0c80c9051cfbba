"""`leval-harness score`: score a prediction file in L-Eval's published format."""

import json
from pathlib import Path

import click


@click.command(epilog="Example: leval-harness score --task coursera coursera.pred.jsonl")
@click.option(
    "--task",
    required=True,
    help="coursera, gsm, quality, toefl, codeu, sfiction or topic_retrieval; the prefix leval_ "
    "is accepted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON alone on stdout.")
@click.argument("predictions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def command(task: str, as_json: bool, predictions: Path) -> None:
    """Score PREDICTIONS with L-Eval's official rules, in percent.

    Each line is a JSON object with the reference under "gt" and the response under a key that
    contains "_pred". Lines that are not JSON are dropped and counted.
    """
    from leval_tasks.closed import predictions as files
    from leval_tasks.closed.scoring import RULES
    from leval_tasks.errors import SettingError, one_of

    try:
        rule = one_of("--task", task.removeprefix("leval_"), RULES)
    except SettingError as error:
        raise click.BadParameter(str(error), param_hint="--task") from error
    read = files.read(predictions)
    summary = files.score(rule, read)
    row = {
        "task": rule,
        "n": summary.n,
        "exact_match": percent(summary.exact_match),
        "exact_match_strict": percent(summary.exact_match_strict),
        "unparsed": percent(summary.unparsed / summary.n),
        **{name: percent(value) for name, value in summary.parts.items()},
        "dropped_lines": read.dropped,
    }
    if as_json:
        click.echo(json.dumps(row))
        return
    click.echo(f"{predictions} ({read.key}), {summary.n} responses")
    if read.dropped:
        click.echo(f"{read.dropped} lines are not JSON and are left out.", err=True)
    for name, value in row.items():
        if isinstance(value, float):
            click.echo(f"  {name:20s} {value:9.4f} %")


def percent(fraction: float) -> float:
    """A fraction as percent with the official scorer's four decimals."""
    return round(100 * fraction, 4)
