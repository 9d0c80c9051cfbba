"""`leval-harness sweep`: models × methods × context lengths × tasks, resumable."""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import FOLDER
from leval_harness.results.layout import FAILED_RUNS, LOG
from resonance_vllm.common.errors import SettingError

if TYPE_CHECKING:
    from leval_harness.sweep.config import SweepConfig
    from leval_harness.sweep.run_record import RunRecord


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
@click.option("--dry-run", is_flag=True, help="Show the runs and what would fail; run nothing.")
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

    Runs that one loaded model can serve share a process, and processes share the GPUs. What is
    done is not done again, so the same command resumes a sweep that was ended, in whatever way; on
    several machines it shares the work. Exit code: 0 all runs done, 1 some failed, 2 the config
    cannot be run, 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; `leval-harness table` has the results")
    from leval_harness.sweep.config import load_config
    from leval_harness.sweep.plan import plan

    with interrupted_by_signals():
        loaded = load_config(config, overrides)
        folder = out / loaded.name
        if not dry_run:
            _refuse_unwritable(folder)
        runs = plan(loaded)
        loaded = loaded.model_copy(update={"jobs": jobs or loaded.jobs})
        if dry_run:
            _dry_run(loaded, runs, folder, executor, as_json)
            return 0
        return _run(loaded, runs, folder, executor)


def _refuse_unwritable(folder: Path) -> None:
    """Say what cannot be written before anything is loaded; nothing is left behind."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written ({error.strerror})") from None


def _dry_run(
    config: "SweepConfig", runs: "list[RunRecord]", folder: Path, executor: str, as_json: bool
) -> None:
    """Print what the sweep would do.

    Raises:
        ConfigError: something would make a run fail.
    """
    from leval_harness.sweep import ConfigError
    from leval_harness.sweep.dry_run import dry_run
    from leval_harness.sweep.executor import capacity_here

    found = dry_run(runs, folder, capacity_here(executor, config.jobs))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        for line in found.lines():
            click.echo(line)
    if found.problems:
        raise ConfigError("\n".join(found.problems))


def _run(
    config: "SweepConfig",
    runs: "list[RunRecord]",
    path: Path,
    executor: str,
) -> int:
    """Run what is not done, list what failed, write and print the table where all is over."""
    from leval_harness.sweep.run import elsewhere, run_sweep

    command = "leval-harness " + shlex.join(sys.argv[1:])
    try:
        states = run_sweep(config, runs, path, command, executor)
        others = elsewhere(states)
        finished = any(state.done for state in states.values())
        reported = _report(path) if finished and not others else True
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; what is done is kept. Resume with:\n  {command}", err=True)
        return 130
    failed = {name: state.failure for name, state in states.items() if state.failure}
    titles = {run.run_id: run.title for run in runs}
    for name, reason in failed.items():
        click.echo(f"\nFailed: {titles[name]}\n  {reason}", err=True)
        click.echo(f"  log: {path}/{FAILED_RUNS}/{name}/{LOG}", err=True)
    if failed:
        many = _runs(len(failed))
        click.echo(f"\nFailed: {many}. Try again with:\n  {command}", err=True)
    if others:
        hosts = ", ".join(sorted({str(each.get("host", "?")) for each in others}))
        many = _runs(len(others))
        click.echo(f"{many} still computed on {hosts}; who ends last writes the table")
    return 1 if failed or not reported else 0


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _report(folder: Path) -> bool:
    """Write table and page; return whether it worked. An error here costs no run."""
    from leval_harness.cli.results import write_report

    try:
        write_report(folder)
    except (ValueError, OSError, ImportError) as error:
        click.echo(f"Error: the results are there, the table is not: {error}", err=True)
        return False
    return True
