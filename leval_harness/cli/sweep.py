"""`leval-harness sweep`: models × methods × context lengths × tasks, resumable."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.console import interrupted_by_signals, outlive_readers
from leval_harness.cli.output import FOLDER
from leval_harness.layout import LOG, SUPERSEDED
from leval_harness.secrets import redact
from resonance_vllm.errors import printable

if TYPE_CHECKING:
    from leval_harness.sweep.cells import PlannedCell
    from leval_harness.sweep.executors import Executor
    from leval_harness.sweep.launch import CellOutcome

Shard = tuple[int, int]
TAIL_LINES = 5


def _shard(ctx: click.Context, param: click.Parameter, value: str | None) -> Shard | None:
    if value is None:
        return None
    if not re.fullmatch("[0-9]{1,9}/[0-9]{1,9}", value):
        raise click.BadParameter("write it as I/N, for instance 1/8")
    index, total = (int(part) for part in value.split("/"))
    if not 1 <= index <= total:
        raise click.BadParameter(f"I must be from 1 to N, not {index} of {total}")
    return index, total


def _print_schema(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from leval_harness.sweep.config_files import file_schema

        click.echo(json.dumps(file_schema(), indent=1))
        ctx.exit()


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
@click.option("--executor", type=click.Choice(["local", "ray"]), default="local")
@click.option("--ray-address", help="A running Ray cluster; default: Ray's own, else a new one.")
@click.option("--dry-run", is_flag=True, help="Show the cells with estimated tokens and time.")
@click.option(
    "--retry-failed/--no-retry-failed", default=True,
    help="Try cells again that failed in an earlier run.",
)  # fmt: skip
@click.option(
    "--shard", metavar="I/N", callback=_shard,
    help="Every N-th cell only, from the I-th: one of N jobs on a shared folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: the cells as JSON.")
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON Schema of sweep files, for editors.",
)  # fmt: skip
def sweep(
    config: str,
    overrides: tuple[str, ...],
    out: Path,
    executor: str,
    ray_address: str | None,
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Run the sweep CONFIG: a YAML file, or the name of one that is shipped (quickstart).

    Every cell is one lm-eval evaluation in its own process. What is done is not done again, so the
    same command resumes a sweep that was ended, in whatever way. Exit code: 0 all cells done, 1
    some failed, 2 the config cannot be run, 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; `leval-harness table` has the results")
    from leval_harness.sweep.cells import plan
    from leval_harness.sweep.config_files import load_config

    with interrupted_by_signals():
        loaded = load_config(config, overrides)
        cells = plan(loaded, prepare=not dry_run)
        folder = out / loaded.name
        if dry_run:
            _dry_run(cells, folder, as_json, loaded.jobs)
            return 0
        from leval_harness.sweep.executors import LocalExecutor, RayExecutor

        outlive_readers()
        executing = RayExecutor(ray_address) if executor == "ray" else LocalExecutor(loaded.jobs)
        return _run(cells, folder, executing, **chosen)


def _dry_run(cells: "list[PlannedCell]", folder: Path, as_json: bool, jobs: int) -> None:
    """Print the cells with their estimated costs."""
    from leval_harness.sweep.estimate import METHOD, dry_run
    from leval_harness.sweep.identity import first_few
    from leval_harness.sweep.progress import duration
    from leval_harness.sweep.runner import earlier_cells

    rows, total = dry_run(cells, folder, jobs)
    known = not any(cell.is_preview for cell in cells)  # else no id of the plan lasts
    earlier = earlier_cells(folder, cells) if known else []
    if as_json:
        superseded = [
            {"cell_id": each.folder.name, "title": each.title, "differs": each.differs}
            for each in earlier
        ]
        facts = {"cells": rows, "total": total, "superseded": superseded, "method": METHOD}
        click.echo(json.dumps(facts, indent=2))
        return

    def cost(row: dict[str, Any], between: str) -> str:
        prompt, new = (
            "unknown" if row[key] is None else f"{row[key]:,.0f}"
            for key in ("prompt_tokens", "new_tokens")
        )
        seconds = row["seconds"]
        time = "time unknown" if seconds is None else f"about {duration(seconds)}"
        return f"{prompt} prompt + {new} new tokens{between}{time}"

    for row in rows:
        state = "done" if row["done"] else "to do"
        cell_id = row["cell_id"] or "(model to come)"
        click.echo(f"{cell_id:16}  {cost(row, '  ')}  {state}  {row['title']}")
    together = {**total, "seconds": total["wall_seconds"]}
    at_a_time = f", {jobs} cells at a time" if jobs > 1 else ""
    click.echo(f"{_cells(len(rows))}, {total['to_do']} to do: {cost(together, ', ')}{at_a_time}")
    if earlier:
        place = printable(str(folder / SUPERSEDED))
        click.echo(f"{_cells(len(earlier))} of an earlier config would be moved to {place}:")
    for each in earlier:
        changes = [f"{name}: {old} -> {new}" for name, (old, new) in each.differs.items()]
        click.echo(printable(f"{each.folder.name:16}  {each.title}: {first_few(changes)}"))
    click.echo(METHOD)


def _run(
    cells: "list[PlannedCell]",
    folder: Path,
    executor: "Executor",
    retry_failed: bool,
    shard: Shard | None,
) -> int:
    """Run what is not done, list what failed, write and print the table."""
    from leval_harness.sweep import runner
    from leval_harness.sweep.progress import display

    resume = redact("leval-harness " + shlex.join(sys.argv[1:]))
    outcomes: list[CellOutcome] = []
    place, again = printable(str(folder)), printable(resume)
    try:
        with runner.sweep_lock(folder, shard):
            stock = runner.take_stock(folder, cells, retry_failed, shard)
            for note in stock.notes:
                click.echo(note)
            done, to_do = len(stock.finished), len(stock.pending)
            click.echo(f"{place}: {_cells(len(stock.cells))}, {done} done, {to_do} to do")
            if stock.pending:
                with display(stock.pending, done, folder) as progress:
                    outcomes = runner.run_pending(stock, folder, resume, executor, progress)
            finished = stock.finished or any(each.ok for each in outcomes)
            with runner.one_at_a_time(folder):
                reported = _report(folder) if finished else True
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; what is done is kept. Resume with:\n  {again}", err=True)
        return 130
    failed = [each for each in outcomes if not each.ok]
    failed += [runner.old_failure(folder, cell) for cell in stock.skipped]
    titles = {cell.id: cell.record.title for cell in stock.cells}
    for outcome in failed:
        click.echo(f"\nFailed: {titles[outcome.cell_id]}", err=True)
        click.echo(f"  {outcome.kind}: {outcome.reason}", err=True)
        tail = [line for line in outcome.log_tail if outcome.reason not in line]
        for line in tail[-TAIL_LINES:]:
            click.echo(f"  | {line}", err=True)
        click.echo(f"  log: {printable(str(folder / outcome.cell_id / LOG))}", err=True)
    if not_started := to_do - len(outcomes):
        click.echo(
            f"\n{_cells(not_started)} not started: the disk is full. Make room first.", err=True
        )
    if failed or not_started:
        click.echo(f"\nFailed: {_cells(len(failed))}. Try again with:\n  {again}", err=True)
    return 1 if failed or not_started or not reported else 0


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
