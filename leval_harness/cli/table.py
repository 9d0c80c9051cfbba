"""`leval-harness table`: comparison tables from results on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import (
    json_text,
    read_results,
    records_text,
    results_argument,
    show_tables,
    show_verdict,
    table_options,
    write_or_print,
)

if TYPE_CHECKING:
    from leval_harness.results import Results


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
def command(
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
    from leval_harness.tables import build_tables, details_table
    from leval_harness.tables.effective_context import difference_table
    from leval_harness.tables.formats import load_format

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
    from leval_harness.results.verify import verify
    from leval_harness.tables.formats import plain

    outcome = verify(read)
    if as_json:
        click.echo(json_text(outcome.as_dict()))
    else:
        for problem in outcome.differences:
            click.echo(plain(problem))
        for name in outcome.not_recomputed:
            click.echo(f"Not recomputed: {plain(name)}")
        click.echo(
            f"{outcome.checked} numbers recomputed from the samples, {outcome.rescored} answers "
            f"scored again, {len(outcome.differences)} differences, {len(outcome.not_recomputed)} "
            "numbers not recomputed"
        )
    if outcome.differences:
        raise SystemExit(1)
