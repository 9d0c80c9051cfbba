"""`leval-harness sweep`: models × methods × context lengths × tasks, resumable."""

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from leval_sweep.cells import Cell
    from leval_sweep.executors import Executor
    from leval_sweep.launch import Outcome
    from leval_sweep.runner import State

TAIL_LINES = 5


def _shard(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    try:
        index, total = (int(part) for part in value.split("/"))
    except ValueError:
        raise click.BadParameter("write it as I/N, for instance 1/8") from None
    if not 1 <= index <= total:
        raise click.BadParameter(f"I must be from 1 to N, not {index} of {total}")
    return index, total


@click.command(
    name="sweep",
    epilog="Example: leval-harness sweep quickstart --set metadata.num_docs=2 --out results",
)
@click.argument("config")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting, e.g. methods.yarn.factor=4; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Results folder; the sweep gets a folder of its name in it.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where cells run.",
)
@click.option(
    "--ray-address",
    help="A running Ray cluster (default: the environment's, else one is started here).",
)
@click.option("--dry-run", is_flag=True, help="Show the cells with estimated tokens and time.")
@click.option(
    "--retry-failed/--no-retry-failed",
    default=True,
    show_default=True,
    help="Try cells again that failed in an earlier run.",
)
@click.option(
    "--shard",
    metavar="I/N",
    callback=_shard,
    help="Every N-th cell only, from the I-th: one of N jobs on a shared folder.",
)
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: the cells as JSON.")
def command(
    config: str,
    overrides: tuple[str, ...],
    out: Path,
    executor: str,
    ray_address: str | None,
    dry_run: bool,
    retry_failed: bool,
    shard: tuple[int, int] | None,
    as_json: bool,
) -> int:
    """Run the sweep CONFIG: a YAML file, or the name of one that is shipped (quickstart).

    Every cell is one lm-eval evaluation in its own process. What is done is not done again, so the
    same command resumes a sweep that was ended, in whatever way. Exit code: 0 all cells done, 1
    some failed, 2 the config cannot be run, 130 after Ctrl-C.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; `leval-harness table` has the results")
    from leval_sweep.cells import plan
    from leval_sweep.config import load_config
    from leval_sweep.errors import ConfigError

    try:
        loaded = load_config(config, overrides)
        cells = plan(loaded)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    folder = out / loaded.name
    if dry_run:
        return _dry_run(cells, folder, as_json)
    from leval_sweep.executors import LocalExecutor, RayExecutor

    run_by = RayExecutor(ray_address) if executor == "ray" else LocalExecutor(loaded.jobs)
    return _run(cells, folder, run_by, retry_failed, shard)


def _dry_run(cells: "list[Cell]", folder: Path, as_json: bool) -> int:
    """Print the cells with what they are reckoned to cost."""
    from leval_sweep.estimate import METHOD, dry_run

    rows, total = dry_run(cells, folder)
    if as_json:
        click.echo(json.dumps({"cells": rows, "total": total, "method": METHOD}, indent=2))
        return 0
    from leval_sweep.progress import duration

    for row in rows:
        click.echo(
            f"{row['cell_id']}  {_tokens(row['prompt_tokens'])} prompt + "
            f"{_tokens(row['new_tokens'])} new tokens  {_time(row['seconds'], duration)}  "
            f"{'done' if row['done'] else 'to do'}  {row['title']}"
        )
    click.echo(
        f"{len(rows)} cells, {total['to_do']} to do: {_tokens(total['prompt_tokens'])} prompt + "
        f"{_tokens(total['new_tokens'])} new tokens, {_time(total['seconds'], duration)}"
    )
    click.echo(METHOD)
    return 0


def _tokens(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _time(value: float | None, duration: Any) -> str:
    return "time unknown" if value is None else f"about {duration(value)}"


def _run(
    cells: "list[Cell]",
    folder: Path,
    run_by: "Executor",
    retry_failed: bool,
    shard: tuple[int, int] | None,
) -> int:
    """Run what is not done, list what failed, write and print the table."""
    from leval_sweep import runner

    resume = "leval-harness " + shlex.join(sys.argv[1:])
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        with runner.sweep_lock(folder, shard):
            moved = runner.set_aside(folder, cells)
            if moved:
                click.echo(f"{moved} cells of an earlier config put aside in {folder}/.superseded")
            mine = runner.shard_of(cells, shard)
            state = runner.take_stock(folder, mine, retry_failed)
            for note in state.notes:
                click.echo(note)
            click.echo(
                f"{folder}: {len(mine)} cells, {len(state.finished)} done, "
                f"{len(state.pending)} to do"
            )
            outcomes = _compute(state, folder, resume, run_by)
            failed = [each for each in outcomes if not each.ok]
            failed += [runner.old_failure(folder, cell) for cell in state.skipped]
            told = True
            if state.finished or any(each.ok for each in outcomes):
                told = _report(folder)
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; what is done is kept. Resume with:\n  {resume}", err=True)
        return 130
    left = len(state.pending) - len(outcomes)
    _list_failures(failed, {cell.id: cell for cell in mine}, folder, left, resume)
    return 1 if failed or left or not told else 0


def _as_interrupt(number: int, frame: object) -> None:
    """A scheduler that ends a job sends SIGTERM: it is treated as Ctrl-C."""
    raise KeyboardInterrupt


def _compute(state: "State", folder: Path, resume: str, run_by: "Executor") -> "list[Outcome]":
    from leval_sweep import runner
    from leval_sweep.estimate import work
    from leval_sweep.progress import LiveProgress, PlainProgress

    if not state.pending:
        return []
    pace = runner.known_pace(folder, state, work([*state.finished, *state.pending]))
    display = LiveProgress if sys.stdout.isatty() else PlainProgress
    progress = display(state.pending, len(state.finished), pace, folder)
    return runner.run_pending(state, folder, resume, run_by, progress)


def _report(folder: Path) -> bool:
    """Table and page; what goes wrong here costs no cell, and is told."""
    try:
        from leval_leaderboard import report

        report.write_report(folder)
    except (ValueError, OSError, ImportError) as error:
        click.echo(f"Error: the results are there, the table is not: {error}", err=True)
        return False
    return True


def _list_failures(
    failed: "list[Outcome]", cells: "dict[str, Cell]", folder: Path, left: int, resume: str
) -> None:
    for outcome in failed:
        click.echo(f"\nFailed: {cells[outcome.cell_id].title}", err=True)
        click.echo(f"  {outcome.kind}: {outcome.reason}", err=True)
        for line in outcome.log_tail[-TAIL_LINES:]:
            click.echo(f"  | {line}", err=True)
        click.echo(f"  log: {folder / outcome.cell_id / 'log.txt'}", err=True)
    if left:
        click.echo(f"\n{left} cells were not started: the disk is full. Make room first.", err=True)
    if failed or left:
        click.echo(f"\n{len(failed)} cells failed. Try them again with:\n  {resume}", err=True)
