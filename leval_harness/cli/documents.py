"""Commands on L-Eval's files: `data` (fetch them, are they intact?) and `score` (predictions)."""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import EXISTING_FILE, FOLDER, json_option
from leval_tasks import data as files
from leval_tasks.closed.catalog import ENTRIES, PREFIX, SCORES, ClosedTask, task_named
from leval_tasks.errors import DataError, HubUnreachableError
from leval_tasks.metadata import ClosedSettings


@click.group(epilog="Example: leval-harness data fetch --out DATA; leval-harness data verify DATA")
def data() -> None:
    """Fetch or verify the documents that the tasks read."""


@data.command(epilog="Example: leval-harness data verify DATA")
@click.argument("folder", metavar="[DATA]", required=False)
@json_option
def verify(folder: str | None, as_json: bool) -> None:
    """Compare files with the published ones.

    DATA is a folder with L-Eval's files; by default LEVAL_DATA_DIR, else the hub. Exit code 1 where
    a file is unreadable or not the published one.
    """
    source = files.resolve_source(folder)
    tasks = [task for task in ENTRIES if source.has(task)]
    if not tasks:
        raise files.missing_file(source, ENTRIES[0])
    _report([_check(source, task) for task in tasks], as_json)


@data.command(epilog="Example: leval-harness data fetch --out DATA")
@click.option("--out", required=True, type=FOLDER, help="Folder to write the files to.")
@json_option
def fetch(out: Path, as_json: bool) -> None:
    """Fetch all files from the hub data set L4NLP/LEval and check them.

    A file that is not the published one is not kept, and replaces nothing. Files that were fetched
    stay when another one fails. Exit code 1 where one failed or the hub cannot be reached.
    """
    out.mkdir(parents=True, exist_ok=True)
    hub = files.Source("hub", files.HUB_REPOSITORY)
    rows = []
    for task in ENTRIES:
        row = _check(hub, task)
        if row["ok"]:
            target = out / task.file
            partial = target.with_suffix(".part")
            partial.write_bytes(files.hub_file(task).read_bytes())
            row["path"] = str(partial.replace(target))
        rows.append(row)
    _report(rows, as_json)


def _check(source: files.Source, task: ClosedTask) -> dict[str, Any]:
    """Read a task's file; what was found, or why it could not be used."""
    try:
        file = files.load(source, task)
    except HubUnreachableError:
        raise
    except DataError as error:
        return {"file": task.file, "ok": False, "state": f"FAILED: {error}"}
    published = file.verified or source.kind == "sample"
    ok = published or not task.sha256
    unknown = "not known" if ok else "FAILED: not the published file"
    row = {"file": file.name, "ok": ok, "state": "as published" if published else unknown}
    return {**row, "documents": len(file.records), "sha256": file.sha256}


def _report(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows; exit code 1 where one is not fine."""
    lines = [f"  {row['file']:20s} {row['state']}" for row in rows]
    click.echo(json.dumps(rows) if as_json else "\n".join(lines))
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)


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
