"""`leval-harness posgen`: train, evaluate and tabulate the paper's own benchmark."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from leval_harness.output import (
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    given,
    json_option,
    records_text,
    setting_options,
    table_options,
    write_or_print,
)
from leval_tasks.metadata import SUBTASKS
from resonance_training.posgen_settings import ENCODINGS, PosGenRun, Recipe
from resonance_training.posgen_settings import preset as load_recipe

_COUNT = click.IntRange(1)


@click.group()
def command() -> None:
    """PosGen: train small models short, test them long, and compare RoPE encodings.

    Example: leval-harness posgen train --preset quick --out runs/posgen
    """


@command.command()
@click.option("--preset", default="quick", help="paper, paper-t5, code or quick.")
@click.option("--out", type=FOLDER, required=True, help="Output folder.")
@click.option("--subtask", "subtasks", multiple=True, help="Repeatable; default: all three.")
@click.option("--encoding", "encodings", multiple=True, help="Repeatable; default: all four.")
@click.option("--seed", "seeds", type=int, multiple=True, help="Repeatable; default: the preset's.")
@click.option("--modulus", type=int, help="Size of the number vocabulary.")
@click.option("--train-sequences", type=int, help="Number of training sequences.")
@setting_options(Recipe)
@click.option("--stack", "stack_size", type=_COUNT, default=1, help="Models trained at once (GPU).")
@click.option("--jobs", type=_COUNT, default=1, help="Processes that share the cores of a CPU.")
@click.option("--save-steps", type=_COUNT, default=200, help="Steps between two states.")
@click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto")
@json_option
def train(
    preset: str,
    out: Path,
    subtasks: tuple[str, ...],
    encodings: tuple[str, ...],
    modulus: int | None,
    train_sequences: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train what has no result yet; a stopped command continues.

    Example: leval-harness posgen train --preset paper --stack 20 --out runs/paper
    """
    recipe = load_recipe(preset)
    data = {**recipe.data, **given({"modulus": modulus, "train": train_sequences})}
    changes = {name: options.pop(name) for name in Recipe.model_fields if name in options}
    recipe = recipe.changed(data=data, **given(changes))
    runs = [
        PosGenRun(subtask, encoding, seed)
        for subtask in subtasks or SUBTASKS
        for encoding in encodings or ENCODINGS
        for seed in recipe.seeds
    ]
    from resonance_training.posgen_train import train_all  # torch, once all is known to be meant

    results: list[dict[str, Any]] = []
    for result in train_all(recipe, runs, out, **options):
        results.append(result)
        test = result["test"]
        click.echo(
            f"[{len(results)}/{len(runs)}] {result['subtask']} {result['encoding']} "
            f"seed {result['seed']}: ID {100 * test['id_accuracy']:.2f} %, "
            f"OOD {100 * test['ood_accuracy']:.2f} %",
            err=as_json,
        )
    if as_json:
        click.echo(json.dumps(results))


@command.command()
@click.argument("checkpoint", type=EXISTING_FOLDER)
@click.option("--subtask", help="Sub-task to test on; default: the one it was trained on.")
@click.option("--limit", type=int, help="Only the first so many sequences.")
@click.option("--device", default="cpu", help="Torch device.")
@json_option
def evaluate(checkpoint: Path, as_json: bool, **options: Any) -> None:
    """Test a checkpoint through lm-eval and the backend hf-long.

    Example: leval-harness posgen evaluate runs/posgen/cot/yarn/seed-0
    """
    from resonance_training.posgen_evaluate import evaluate_checkpoint

    metrics = evaluate_checkpoint(str(checkpoint), **options)
    if as_json:
        click.echo(json.dumps(metrics))
        return
    for name, value in metrics.items():
        click.echo(f"{name:24} {100 * value:6.2f} %")


@command.command()
@click.argument("folders", nargs=-1, required=True, type=EXISTING_FOLDER)
@table_options
@click.option("--figure", type=FILE, help="Also draw Figure 3 of the (one) folder: svg, pdf, png.")
@click.option("--position-figure", type=FILE, help="Also draw accuracy against position.")
def table(
    folders: tuple[Path, ...], output: str, as_json: bool, out: Path | None, **pictures: Path | None
) -> None:
    """The paper's Table 1, from finished runs and as published.

    Several FOLDERS are blocks of one table; it says how far each is from the published numbers.

    Example: leval-harness posgen table runs/posgen --figure runs/posgen/figure3.svg
    """
    from leval_leaderboard.results.posgen import read_experiment
    from leval_leaderboard.tables import posgen as tables
    from leval_leaderboard.tables.formats import load_format

    if any(pictures.values()) and len(folders) > 1:
        raise click.UsageError("a figure shows one folder; give one")
    experiments = [read_experiment(folder) for folder in folders]
    form = load_format(output)
    if as_json:
        text = records_text(tables.posgen_details(experiments).records())
    else:
        make = tables.posgen_details if form.every_number else tables.posgen_table
        text = form.text([make(experiments)])
    write_or_print(text, out)
    from leval_leaderboard.figures import posgen as figures
    from leval_leaderboard.figures.style import write_figure

    drawings = {"figure": figures.loss_figure, "position_figure": figures.position_figure}
    for name, draw in drawings.items():
        if target := pictures[name]:
            write_figure(partial(draw, experiments[0]), target)
            click.echo(f"Written: {target}", err=True)
