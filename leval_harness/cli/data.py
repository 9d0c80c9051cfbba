"""`leval-harness data`: L-Eval's files, fetched and verified."""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import FOLDER, json_option
from leval_tasks.closed.catalog import ENTRIES, ClosedTask
from leval_tasks.common import data as files
from leval_tasks.common.errors import DataError, HubUnreachableError


@click.group(epilog="Example: leval-harness data fetch --out DATA; leval-harness data verify DATA")
def data() -> None:
    """Fetch or verify the documents that the tasks read."""


@data.command(epilog="Example: leval-harness data verify DATA")
@click.argument("folder", metavar="[DATA]", required=False)
@json_option
def verify(folder: str | None, as_json: bool) -> None:
    """Compare files with the published ones.

    DATA is a folder with L-Eval's files; by default LEVAL_DATA_DIR, else the hub. Exit code 1 where
    one is another.
    """
    source = files.resolve_source(folder)
    if not any(map(source.has, ENTRIES)):
        raise files.missing_file(source, ENTRIES[0])
    _report([_checked(source, task) for task in ENTRIES if source.has(task)], as_json)


@data.command(epilog="Example: leval-harness data fetch --out DATA")
@click.option("--out", required=True, type=FOLDER, help="Folder to write the files to.")
@json_option
def fetch(out: Path, as_json: bool) -> None:
    """Fetch all files from the hub and check them."""
    hub, rows = files.Source("hub", files.HUB_REPOSITORY), []
    for task in ENTRIES:
        rows.append(_checked(hub, task))
        if rows[-1]["ok"]:
            out.mkdir(parents=True, exist_ok=True)
            (out / task.file).write_bytes(files.hub_file(task).read_bytes())
    _report(rows, as_json)


def _checked(source: files.Source, task: ClosedTask) -> dict[str, Any]:
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
    return {"file": task.file, "ok": ok, "state": "as published" if published else unknown}


def _report(rows: list[dict[str, Any]], as_json: bool) -> None:
    shown = "\n".join(f"  {row['file']:20s} {row['state']}" for row in rows)
    click.echo(json.dumps(rows) if as_json else shown)
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)
