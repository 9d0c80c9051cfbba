"""`leval-harness table`: comparison tables from results on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from leval_leaderboard.format_names import format_names

if TYPE_CHECKING:
    from leval_leaderboard.results import Results


@click.command(
    name="table",
    epilog="Example: leval-harness table results/all-methods --baseline yarn --format tex",
)
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--format", "output", type=click.Choice(format_names()), default="md",
    show_default=True, help="csv writes every number, the others the tables people read.",
)  # fmt: skip
@click.option("--baseline", help="Method to compare with; default: the one the sweep names.")
@click.option(
    "--columns", default="", metavar="NAMES",
    help="Extra columns, comma-separated: seconds, tokens_per_second, peak_memory, "
    "tokens_prefilled, tokens_shared, tokens_generated, tokens_unique.",
)  # fmt: skip
@click.option(
    "--published/--no-published", default=None,
    help="Show the paper's tables; default: where they match what was run.",
)  # fmt: skip
@click.option(
    "--pair", "pairs", multiple=True, metavar="METHOD:BASELINE",
    help="Only paired differences of perplexity, nats a token, by text and pooled. Repeatable.",
)  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option("--json", "as_json", is_flag=True, help="Every number as JSON instead of a table.")
@click.option(
    "--verify", is_flag=True, help="Recompute every aggregate from the samples; report differences."
)
def command(
    results: tuple[Path, ...],
    output: str,
    baseline: str | None,
    columns: str,
    published: bool | None,
    pairs: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    verify: bool,
) -> None:
    """Compare methods from one or more RESULTS folders, also plain lm-eval output."""
    from leval_border.files import write_text
    from leval_leaderboard.results import load_results
    from leval_leaderboard.tables import analyse, build_tables, details_table
    from leval_leaderboard.tables.differences import difference_table, parse_pairs
    from leval_leaderboard.tables.escape import plain
    from leval_leaderboard.tables.formats import load_format

    read = load_results(*results)
    for warning in read.warnings:
        click.echo(f"Note: {plain(warning)}", err=True)
    if verify:
        _verify(read, as_json)
        return
    analysis = analyse(read, baseline)
    names = [name.strip() for name in columns.split(",") if name.strip()]
    form = load_format(output)
    if pairs:
        tables = [difference_table(analysis, parse_pairs(pairs))]
    elif as_json or form.every_number:
        tables = [details_table(analysis, bool(published))]
    else:
        tables = build_tables(analysis, names, published)
    text = _json(tables[0].records()) if as_json else form.text(tables)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
        click.echo(f"Written: {out}", err=True)


def _json(records: list[dict[str, object]]) -> str:
    import json

    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _verify(read: "Results", as_json: bool) -> None:
    """Print what does not agree and end with exit code 1 if anything does not."""
    import json

    from leval_leaderboard.results.verify import verify
    from leval_leaderboard.tables.escape import plain

    outcome = verify(read)
    if as_json:
        click.echo(json.dumps(outcome.as_dict(), indent=1, ensure_ascii=False))
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
