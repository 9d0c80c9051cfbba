"""`leval-harness sweep`: models × methods × context lengths × tasks, resumable."""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import FOLDER
from leval_harness.layout import CELLS, FAILED_CELLS, LOG
from resonance_vllm.errors import SettingError

if TYPE_CHECKING:
    from leval_harness.cell_record import CellRecord
    from leval_harness.sweep.config import SweepConfig


@click.command(
    name="sweep",
    epilog="Example: leval-harness sweep quickstart --set methods.yarn.factor=4 --out results",
)
@click.argument("config")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE",
    help="Override a setting, e.g. methods.yarn.factor=4; may be repeated.",
)  # fmt: skip
@click.option("--out", type=FOLDER, default="results", help="The sweep gets a folder in it.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=None,
    help="Processes at a time for models that take no GPU. [default: that of the config]",
)  # fmt: skip
@click.option("--executor", type=click.Choice(["local", "ray"]), default="local")
@click.option("--dry-run", is_flag=True, help="Show the groups and their cells; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON.")
def sweep(
    config: str,
    overrides: tuple[str, ...],
    out: Path,
    jobs: int | None,
    executor: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the sweep CONFIG: a YAML file, or the name of one that is shipped (quickstart).

    Cells that one loaded model can serve share a process, and processes share the GPUs. What is
    done is not done again, so the same command resumes a sweep that was ended, in whatever way; on
    several machines it shares the work. Exit code: 0 all cells done, 1 some failed, 2 the config
    cannot be run, 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; `leval-harness table` has the results")
    from leval_harness.sweep.cells import plan
    from leval_harness.sweep.config import load_config

    with interrupted_by_signals():
        loaded = load_config(config, overrides)
        folder = out / loaded.name
        if not dry_run:
            _refuse_unwritable(folder)
        cells = plan(loaded)
        loaded = loaded.model_copy(update={"jobs": jobs or loaded.jobs})
        if dry_run:
            _dry_run(cells, folder, as_json)
            return 0
        return _run(loaded, cells, folder, executor)


def _refuse_unwritable(folder: Path) -> None:
    """Say what cannot be written before anything is loaded; nothing is left behind."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written ({error.strerror})") from None


def _dry_run(cells: "list[CellRecord]", folder: Path, as_json: bool) -> None:
    """Print the groups with their cells, and in what these differ from cells on disk."""
    from leval_harness.sweep.identity import closest
    from leval_harness.sweep.run import grouped, visible_gpus

    finished = {path.name: path for path in sorted((folder / CELLS).glob("*"))}
    planned = {cell.cell_id for cell in cells}
    others = [path for name, path in finished.items() if name not in planned]
    rows: list[dict[str, Any]] = []
    for group in grouped(cells, visible_gpus()):
        of_group = []
        for cell in group.cells:
            row: dict[str, Any] = {"cell_id": cell.cell_id}
            row |= {"title": cell.title, "done": cell.cell_id in finished}
            if not row["done"] and others:
                row["closest"], row["differs"] = closest(cell, others)
            of_group.append(row)
        rows.append({"model": group.cells[0].model.name, "gpus": group.gpus, "cells": of_group})
    if as_json:
        click.echo(json.dumps({"groups": rows}, indent=2))
        return
    for number, each in enumerate(rows, start=1):
        click.echo(f"Group {number}: {each['model']}, {_cells(len(each['cells']))}, one load")
        click.echo(f"  GPUs: {each['gpus']}")
        for row in each["cells"]:
            state = "done " if row["done"] else "to do"
            click.echo(f"  {row['cell_id']}  {state}  {row['title']}")
            for place, (old, new) in list(row.get("differs", {}).items())[:5]:
                click.echo(f"    not {row['closest']}: {place}: {old} -> {new}")
    to_do = sum(not row["done"] for each in rows for row in each["cells"])
    click.echo(f"{_cells(len(cells))}, {to_do} to do")


def _run(
    config: "SweepConfig",
    cells: "list[CellRecord]",
    path: Path,
    executor: str,
) -> int:
    """Run what is not done, list what failed, write and print the table where all is over."""
    from leval_harness.sweep.run import elsewhere, run_sweep

    command = "leval-harness " + shlex.join(sys.argv[1:])
    try:
        states = run_sweep(config, cells, path, command, executor)
        others = elsewhere(states)
        finished = any(state.done for state in states.values())
        reported = _report(path) if finished and not others else True
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; what is done is kept. Resume with:\n  {command}", err=True)
        return 130
    failed = {name: state.failure for name, state in states.items() if state.failure}
    titles = {cell.cell_id: cell.title for cell in cells}
    for name, reason in failed.items():
        click.echo(f"\nFailed: {titles[name]}\n  {reason}", err=True)
        click.echo(f"  log: {path}/{FAILED_CELLS}/{name}/{LOG}", err=True)
    if failed:
        many = _cells(len(failed))
        click.echo(f"\nFailed: {many}. Try again with:\n  {command}", err=True)
    if others:
        hosts = ", ".join(sorted({str(each.get("host", "?")) for each in others}))
        many = _cells(len(others))
        click.echo(f"{many} still computed on {hosts}; who ends last writes the table")
    return 1 if failed or not reported else 0


def _cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"


def _report(folder: Path) -> bool:
    """Write table and page; return whether it worked. An error here costs no cell."""
    from leval_harness.cli.results import write_report

    try:
        write_report(folder)
    except (ValueError, OSError, ImportError) as error:
        click.echo(f"Error: the results are there, the table is not: {error}", err=True)
        return False
    return True
