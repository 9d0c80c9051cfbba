"""`leval-harness card`: results in the formats that collections of results read."""

from pathlib import Path

import click

from leval_border.errors import UserError, printable
from leval_harness.cli.output import FOLDER, read_results, results_argument


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
def command(results: tuple[Path, ...], out: Path, baseline: str | None, **said: object) -> None:
    """Write RESULTS as Every Eval Ever records and as the Hub's .eval_results files."""
    from leval_harness.analysis import analyse
    from leval_harness.cards import write_cards
    from leval_harness.cards.publication import read_publication
    from leval_harness.tables.formats import plain

    publication = read_publication(**said)  # type: ignore[arg-type]
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
