"""`leval-harness sweep`: models × methods × context lengths × tasks, resumable."""

import json
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import FOLDER, examples
from leval_harness.results.layout import FAILED_RUNS, LOG
from leval_harness.sweep.executor import EXECUTORS, Capacity, capacity_here
from resonance_vllm.common.errors import SettingError

if TYPE_CHECKING:
    from leval_harness.sweep.config import SweepConfig
    from leval_harness.sweep.run_record import RunRecord


@click.command(
    name="sweep",
    epilog=examples(
        "leval-harness sweep quickstart --dry-run",
        "leval-harness sweep quickstart",
        "leval-harness sweep quickstart --set methods.yarn.factor=4 --out results-x4 --dry-run",
    ),
)
@click.argument("config")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE",
    help="Override a setting of the config, for example methods.yarn.factor=4. Repeatable.",
)  # fmt: skip
@click.option(
    "--out", type=FOLDER, default="results",
    help="Folder in which the sweep gets a folder of its name.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1),
    help="Number of processes at a time for models that use no GPU.",
    show_default="that of the config",
)  # fmt: skip
@click.option(
    "--executor", type=click.Choice(list(EXECUTORS)), default="local",
    help="Where workers are started: on this machine, or on a Ray cluster.",
)  # fmt: skip
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the runs, what they need and what would fail; run nothing.",
)
@click.option(
    "--device-tflops", type=click.FloatRange(min=0, min_open=True), metavar="N",
    help="With --dry-run: 10^12 operations per second that one device reaches in practice, for the "
    "estimate of hours.",
    show_default="what finished runs have reached on this machine",
)  # fmt: skip
@click.option(
    "--device-gb", type=click.FloatRange(min=0, min_open=True), metavar="N",
    help="With --dry-run: memory of one device in 10^9 bytes, beyond which a run is remarked on.",
    show_default="that of this machine's GPUs",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the --dry-run as JSON.")
def sweep(
    config: str,
    overrides: tuple[str, ...],
    out: Path,
    jobs: int | None,
    executor: str,
    dry_run: bool,
    device_tflops: float | None,
    device_gb: float | None,
    as_json: bool,
) -> int:
    """Compare models, methods and context lengths as CONFIG says, and show the results.

    CONFIG is a YAML file, or the name of a sweep that this package ships (quickstart). Runs that
    one loaded model can serve share a process, and processes share the GPUs. Finished runs are not
    repeated: the same command resumes a sweep that was interrupted in any way, and started on
    several machines it shares the work between them.

    \b
    Exit codes:
      0    all runs are done
      1    some runs failed
      2    the config cannot be run
      130  ended by Ctrl-C, SIGTERM or SIGHUP
    """  # noqa: D301 - click's mark of a paragraph that is not wrapped
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run; `leval-harness table` has the results")
    for option, value in (("--device-tflops", device_tflops), ("--device-gb", device_gb)):
        if value is not None and not dry_run:
            raise click.UsageError(f"{option} goes with --dry-run")
    from leval_harness.sweep.config import load_config
    from leval_harness.sweep.plan import plan

    with interrupted_by_signals():
        loaded = load_config(config, overrides)
        folder = out / loaded.name
        if not dry_run:
            _refuse_unwritable(folder)
        loaded = loaded.model_copy(update={"jobs": jobs or loaded.jobs})
        capacity = partial(capacity_here, executor, loaded.jobs)
        runs = plan(loaded, capacity)
        if dry_run:
            _dry_run(runs, folder, capacity(), device_tflops, device_gb, as_json)
            return 0
        return _run(loaded, runs, folder, executor)


def _refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that cannot be written before anything is loaded; leave nothing behind."""
    ancestors = (folder, *folder.absolute().parents)
    existing = next(ancestor for ancestor in ancestors if ancestor.exists())
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise SettingError(f"--out: {folder} cannot be written ({error.strerror})") from None


def _dry_run(
    runs: "list[RunRecord]",
    folder: Path,
    capacity: Capacity,
    device_tflops: float | None,
    device_gb: float | None,
    as_json: bool,
) -> None:
    """Print what the sweep would do.

    Raises:
        ConfigError: something would make a run fail.
    """
    from leval_harness.sweep import ConfigError
    from leval_harness.sweep.dry_run import dry_run

    report = dry_run(runs, folder, capacity, device_tflops, device_gb)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        for line in report.lines():
            click.echo(line)
    if report.problems:
        raise ConfigError("\n".join(report.problems))


def _run(
    config: "SweepConfig",
    runs: "list[RunRecord]",
    path: Path,
    executor: str,
) -> int:
    """Run what is not done, report failures, and write and print the tables when all is over."""
    from leval_harness.sweep.run import elsewhere, run_sweep

    command = "leval-harness " + shlex.join(sys.argv[1:])
    reported = True
    try:
        states = run_sweep(config, runs, path, command, executor)
        others = elsewhere(states)
        # the machine that ends last writes the tables
        if not others and any(state.done for state in states.values()):
            reported = _report(path)
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; finished runs are kept. Resume with:\n  {command}", err=True)
        return 130
    failed = {name: state.failure for name, state in states.items() if state.failure}
    titles = {run.run_id: run.title for run in runs}
    for name, reason in failed.items():
        click.echo(f"\nFailed: {titles[name]}\n  {reason}", err=True)
        click.echo(f"  log: {path}/{FAILED_RUNS}/{name}/{LOG}", err=True)
    if failed:
        count = _runs(len(failed))
        click.echo(f"\nFailed: {count}. Try again with:\n  {command}", err=True)
    if others:
        hosts = ", ".join(sorted({str(claim.get("host", "?")) for claim in others}))
        count = _runs(len(others))
        click.echo(f"{count} still in progress on {hosts}, which will write the tables")
    if failed or not reported:
        return 1
    return 0


def _runs(number: int) -> str:
    """Return `1 run`, `2 runs` and so on."""
    plural = "" if number == 1 else "s"
    return f"{number} run{plural}"


def _report(folder: Path) -> bool:
    """Write tables and page, and return whether that worked. An error here loses no run."""
    from leval_harness.cli.results import write_report
    from leval_harness.sweep.progress import discard_output

    try:
        write_report(folder)
    except BrokenPipeError:  # `| head -1`: the page is written all the same
        discard_output()
        return _report(folder)
    except (ValueError, OSError, ImportError) as error:
        click.echo(f"Error: the runs are done, but the tables failed: {error}", err=True)
        return False
    return True
