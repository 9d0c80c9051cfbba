"""Commands that show and hand on results: `table`, `page`, `card`, `upload`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FOLDER,
    json_text,
    read_results,
    records_text,
    results_argument,
    show_tables,
    show_verdict,
    table_options,
    write_or_print,
)
from leval_harness.format_names import format_names
from leval_harness.secrets import redact
from resonance_vllm.errors import UserError, plain, printable
from resonance_vllm.files import write_text

if TYPE_CHECKING:
    from leval_harness.old_results import Results


@click.command(
    name="table",
    epilog="Example: leval-harness table results/all-methods --baseline yarn --format tex",
)
@results_argument
@table_options
@click.option("--baseline", help="Method to compare with; default: the one the sweep names.")
@click.option(
    "--columns", default="", show_default=False, metavar="NAMES",
    help="Extra columns, comma-separated: seconds, tokens_per_second, peak_memory, "
    "tokens_prefilled, tokens_shared, tokens_generated, tokens_unique.",
)  # fmt: skip
@click.option(
    "--published/--no-published", default=None,
    help="Show the paper's tables; default: where they match what was run.",
)  # fmt: skip
@click.option(
    "--margin", type=click.FloatRange(min=0, max=1, min_open=True), default=None, metavar="NATS",
    help="Effective context length: a smaller loss is no degradation, a smaller gain no benefit; "
    "nats a token. Default: the sweep's, else 0.01.",
)  # fmt: skip
@click.option(
    "--reference", metavar="MODEL",
    help="Effective context length: the model whose key tokens (LongPPL) get a table.",
)  # fmt: skip
@click.option(
    "--pair", "pairs", multiple=True, metavar="METHOD:BASELINE",
    help="Only paired differences of perplexity, nats a token, by text and pooled. Repeatable.",
)  # fmt: skip
@click.option(
    "--verify", is_flag=True, help="Recompute every aggregate from the samples; report differences."
)
def table(
    results: tuple[Path, ...],
    output: str | None,
    out: Path | None,
    as_json: bool,
    verify: bool,
    **chosen: Any,
) -> None:
    """Compare methods from one or more RESULTS folders, also plain lm-eval output."""
    from leval_harness.analysis import analyse
    from leval_harness.analysis.differences import paired_differences, parse_pairs
    from leval_harness.old_tables import build_tables, details_table
    from leval_harness.old_tables.effective_context import difference_table
    from leval_harness.old_tables.formats import load_format

    read = read_results(results)
    if verify:
        _verify(read, as_json)
        return
    analysis = analyse(read, chosen["baseline"], chosen["margin"])
    form = load_format(output or "md")
    if chosen["pairs"]:
        tables = [difference_table(*paired_differences(analysis, parse_pairs(chosen["pairs"])))]
    elif as_json or form.every_number:
        tables = [details_table(analysis, bool(chosen["published"]))]
    else:
        names = [name.strip() for name in chosen["columns"].split(",") if name.strip()]
        tables = build_tables(analysis, names, chosen["published"], chosen["reference"])
    if as_json:
        records = [record for table in tables for record in table.records()]
        write_or_print(records_text(records), out)
    elif output is None and out is None:
        show_tables(tables)
        if not chosen["pairs"]:
            show_verdict(analysis)
    else:
        write_or_print(form.text(tables), out)


def _verify(read: "Results", as_json: bool) -> None:
    """Print what does not agree and end with exit code 1 if anything does not."""
    from leval_harness.analysis.labels import counted
    from leval_harness.old_results.verify import verify

    outcome = verify(read)
    if as_json:
        click.echo(json_text(outcome.as_dict()))
    else:
        for problem in outcome.differences:
            click.echo(plain(problem))
        for name in outcome.not_recomputed:
            click.echo(f"Not recomputed: {plain(name)}")
        click.echo(
            f"{counted(outcome.checked, 'number')} recomputed from the samples, "
            f"{counted(outcome.rescored, 'answer')} scored again, "
            f"{counted(len(outcome.differences), 'difference')}, "
            f"{counted(len(outcome.not_recomputed), 'number')} not recomputed"
        )
    if outcome.differences:
        raise SystemExit(1)


@click.command(
    name="page", epilog="Example: leval-harness page results/all-methods --out public/leaderboard"
)
@results_argument
@click.option("--out", required=True, type=FOLDER, help="Folder; an earlier page is replaced.")
@click.option("--baseline", help="Method to compare with at first; the page can change it.")
@click.option(
    "--diff", "diffs", multiple=True, type=EXISTING_FILE,
    help="A diff.json of leval-harness diff to show; may be repeated.",
)  # fmt: skip
@click.option("--title", default="Long-context leaderboard")
def page(
    results: tuple[Path, ...], out: Path, baseline: str | None, diffs: tuple[Path, ...], title: str
) -> None:
    """Write a leaderboard page that opens from disk, from one or more RESULTS folders."""
    from leval_harness.analysis import analyse
    from leval_harness.page import write_page
    from leval_harness.page.write import read_diff

    shown = [read_diff(path) for path in diffs]
    index = write_page(analyse(read_results(results), baseline), out, title, shown)
    click.echo(f"Page: {printable(str(index.resolve()))}")


@click.command(
    name="card",
    epilog="Example: leval-harness card results/quickstart --out cards "
    "--model-id SmolLM2-135M=HuggingFaceTB/SmolLM2-135M --organization 'My group'",
)
@results_argument
@click.option("--out", required=True, type=FOLDER, help="Folder; cards of the same runs replaced.")
@click.option("--organization", default="", show_default=False, help="Who made the results.")
@click.option(
    "--relationship", default="other",
    help="Of who evaluates to the model: first_party, third_party, collaborative, other.",
)  # fmt: skip
@click.option(
    "--model-id", "models", multiple=True, metavar="NAME=ORG/MODEL",
    help="What the Hub calls a model of the results. Repeatable.",
)  # fmt: skip
@click.option(
    "--benchmark", "benchmarks", multiple=True, metavar="TASK[:METRIC]=ORG/DATASET:TASK_ID",
    help="A benchmark on the Hub that a task is. Repeatable.",
)  # fmt: skip
@click.option("--source-url", default="", show_default=False, help="Where results can be seen.")
@click.option("--baseline", help="Method that the others stand against; as for `table`.")
def card(results: tuple[Path, ...], out: Path, baseline: str | None, **about: object) -> None:
    """Write RESULTS as Every Eval Ever records and as the Hub's .eval_results files."""
    from leval_harness.analysis import analyse
    from leval_harness.cards import write_cards
    from leval_harness.cards.publication import read_publication

    publication = read_publication(**about)  # type: ignore[arg-type]
    written = write_cards(analyse(read_results(results), baseline), out, publication)
    for each in written.left_out:
        click.echo(f"Left out: {plain(each)}", err=True)
    if not written.records:
        raise UserError("RESULTS: no number to publish; what was left out is named above")
    place = printable(str(out))
    click.echo(
        f"{written.records} records with {written.instances} questions below {place}/data, "
        f"{written.hub_files} files for the Hub below {place}/hub"
    )


@click.command(
    name="upload",
    epilog="Example: leval-harness upload results/quickstart --repo my-group/long-context-results",
)
@click.argument("folder", type=EXISTING_FOLDER)
@click.option("--repo", required=True, metavar="ORG/NAME", help="Data set repository to write to.")
@click.option("--public", is_flag=True, help="A repository that is created can be read by all.")
@click.option("--dry-run", is_flag=True, help="List the files; upload nothing.")
def upload(folder: Path, repo: str, public: bool, dry_run: bool) -> None:
    """Upload FOLDER (results of a sweep, a page, cards) to a data set repository of the Hub.

    All files go into one commit, under the folder's name. Unfinished cells and hidden files stay.
    A text that holds something in the form of a credential stops the upload. Log in with `hf auth
    login`, or set HF_TOKEN.
    """
    from leval_harness.cards.upload import check_repository, files_to_upload
    from leval_harness.cards.upload import upload as send

    check_repository(repo)
    files = files_to_upload(folder)
    megabytes = sum((folder / path).stat().st_size for path in files) / 1e6
    if dry_run:
        click.echo("\n".join(printable(path.as_posix()) for path in files))
        click.echo(f"{len(files)} files, {megabytes:.1f} MB; nothing was uploaded", err=True)
        return
    address = send(folder, files, repo, private=not public)
    click.echo(f"{len(files)} files, {megabytes:.1f} MB: {printable(address)}")


def write_report(results_dir: Path) -> None:
    """Write `table.md` and its like, and `page/`, into a results folder; show tables and verdict.

    Raises:
        ResultsError: nothing readable in the folder.
        OSError: the folder cannot be written.
    """
    from leval_harness.analysis import analyse
    from leval_harness.old_results import load_results
    from leval_harness.page import write_page
    from leval_harness.old_tables import build_tables, details_table
    from leval_harness.old_tables.formats import load_format

    results = load_results(results_dir)
    analysis = analyse(results)
    tables, every_number = build_tables(analysis), [details_table(analysis)]
    written = []
    for name in format_names():
        form = load_format(name)
        if form.suffix:
            text = redact(form.text(every_number if form.every_number else tables), names=False)
            write_text(results_dir / f"table.{form.suffix}", text)
            written.append(f".{form.suffix}")
    show_tables(tables)
    for warning in results.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    index = write_page(analysis, results_dir / "page")
    others = ", ".join(suffix for suffix in written if suffix != ".md")
    click.echo(f"Tables: {results_dir / 'table.md'} (also {others})")
    click.echo(f"Page:   {index.resolve()}")
    show_verdict(analysis)
