"""Commands that train: `posgen`, the paper's own benchmark, and `finetune`."""

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import (
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    examples,
    given_options,
    json_option,
    model_path,
    setting_options,
    table_options,
    write_or_print,
)
from leval_harness.training import settings
from leval_harness.training.settings import Architecture, FineTuneSettings, PosGenRun, Recipe
from leval_tasks.common.metadata import SUBTASKS
from leval_tasks.posgen.encodings import ENCODINGS, parse_tests, tests_of, trained_by_default

DATA_OPTIONS = ("modulus", "train", "train_length", "length", "seed_policy")
"""Options that are settings of the data set, `PosGenSettings`."""


@click.group(
    epilog=examples(
        "leval-harness posgen train --preset quick --subtask cot --encoding yarn --seed 0 --epochs 1 "
        "--out runs/posgen",
        "leval-harness posgen evaluate runs/posgen --encoding resonance_yarn",
        "leval-harness posgen table runs/posgen",
        "leval-harness posgen table runs/posgen --figure runs/posgen/figure3.svg",
    )
)
def posgen() -> None:
    """Run PosGen: train small models short, test them long, and compare RoPE encodings."""


@posgen.command(
    short_help="Train models, and test them on longer sequences.",
    epilog=examples(
        "leval-harness posgen train --preset quick --subtask cot --encoding yarn --seed 0 --epochs 1 "
        "--out runs/posgen",
    ),
)
@click.option(
    "--preset", default="quick", help="Recipe in harness_configs/posgen that the options change."
)
@click.option(
    "--out", type=FOLDER, required=True, help="Folder of the trained models and their results."
)
@click.option(
    "--subtask", "subtasks", type=click.Choice(SUBTASKS), multiple=True,
    help="Train on this sub-task only. Repeatable.", show_default="those of the preset",
)  # fmt: skip
@click.option(
    "--encoding", "encodings", type=click.Choice(list(ENCODINGS)), multiple=True,
    help="Train with this position encoding only. Repeatable.",
    show_default="those of the --reading",
)  # fmt: skip
@click.option(
    "--seed", "seeds", type=int, multiple=True,
    help="Seed of initial weights, dropout and batch order; each seed is one more model. Repeatable.",
    show_default="those of the preset",
)  # fmt: skip
@click.option(
    "--modulus", type=int, help="Size m of the number vocabulary: sequences consist of 0 to m-1."
)
@click.option("--train-sequences", "train", type=int, help="Number of training sequences.")
@click.option("--train-length", type=int, help="Numbers in each training sequence.")
@click.option("--length", type=int, help="Numbers in each test sequence.")
@click.option(
    "--seed-policy", type=click.Choice(["random", "cycled"]),
    help="How sequences begin: at random, or cycled, so that test sequences begin like training "
    "sequences.",
)  # fmt: skip
@setting_options(Recipe)
@setting_options(Architecture)
@click.option(
    "--jobs", type=click.IntRange(1), default=1,
    help="Number of models trained at the same time; they share the cores or the GPU.",
)  # fmt: skip
@json_option
def train(
    preset: str,
    out: Path,
    subtasks: tuple[str, ...],
    encodings: tuple[str, ...],
    seeds: tuple[int, ...],
    jobs: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Train the models that have no result yet, and test them on longer sequences.

    Options without a default keep the value of the preset. The same command continues after an
    interruption. The preset quick takes about two minutes of one core per model.
    """
    recipe = _changed_recipe(settings.preset(Recipe, preset), options)
    runs = [
        PosGenRun(subtask, encoding, seed)
        for subtask in subtasks or recipe.subtasks
        for seed in seeds or recipe.seeds
        for encoding in encodings or trained_by_default(recipe.reading)
    ]
    # torch is imported only when the options are known to be right
    from leval_harness.training.posgen_models import cross
    from leval_harness.training.posgen_train import train_all

    tests = {run.encoding: tests_of(recipe.reading, run.encoding) for run in runs}
    trained = train_all(recipe, runs, out, jobs=jobs)
    # a generator: it begins to test when `trained` is exhausted and all models are there
    tested = cross(out, tests)
    _print_results(chain(trained, tested), as_json)


def _changed_recipe(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """Return a recipe with the options that were given in place of its own settings."""
    changes = given_options(options)
    data = {name: value for name, value in changes.items() if name in DATA_OPTIONS}
    shape = {name: value for name, value in changes.items() if name in Architecture.model_fields}
    others = {name: value for name, value in changes.items() if name in Recipe.model_fields}
    return recipe.with_changes(
        data={**recipe.data, **data},
        architecture=recipe.architecture.with_changes(**shape),
        **others,
    )


def _print_results(results: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Print each result when it is there; with JSON on standard error, and all as JSON at the end."""
    printed = []
    for result in results:
        printed.append(result)
        model = f"{result['subtask']} {result['encoding']} seed {result['seed']}"
        if "tested_with" in result:
            model += f", tested with {result['tested_with']}"
        test = result["test"]
        click.echo(
            f"{model}: ID {100 * test['id_accuracy']:.2f} %, OOD {100 * test['ood_accuracy']:.2f} %",
            err=as_json,
        )
    if as_json:
        click.echo(json.dumps(printed))


@posgen.command(
    short_help="Test trained models with further encodings.",
    epilog=examples("leval-harness posgen evaluate runs/posgen --encoding resonance_yarn"),
)
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--encoding", "encodings", multiple=True, required=True, metavar="[TRAINED:]TESTED",
    help=f"Encoding to test all models with, or only those trained with TRAINED: "
    f"{', '.join(ENCODINGS)}. Repeatable.",
)  # fmt: skip
@json_option
def evaluate(folder: Path, encodings: tuple[str, ...], as_json: bool) -> None:
    """Test the trained models in FOLDER with further position encodings.

    A model is trained once and can be tested with any encoding; tests that have a result are not
    repeated. --encoding rope:yarn_code tests only the models that were trained with rope.
    """
    tests = parse_tests(encodings)
    # torch is imported only when the options are known to be right
    from leval_harness.training.posgen_models import cross

    _print_results(cross(folder, tests), as_json)


@posgen.command(
    short_help="Show the paper's Table 1 from finished runs.",
    epilog=examples(
        "leval-harness posgen table runs/posgen",
        "leval-harness posgen table runs/posgen --figure runs/posgen/figure3.svg",
    ),
)
@click.argument("folders", nargs=-1, required=True, type=EXISTING_FOLDER)
@table_options
@click.option(
    "--figure", type=FILE,
    help="Also draw the paper's Figure 3 (one FOLDER only) to this svg, pdf or png file.",
)  # fmt: skip
def table(
    folders: tuple[Path, ...],
    output: str | None,
    as_json: bool,
    out: Path | None,
    figure: Path | None,
) -> None:
    """Show the paper's Table 1 from the finished runs in FOLDERS, beside the published one.

    Several FOLDERS become blocks of one table.
    """
    from leval_harness.report.drawing import write_figure
    from leval_harness.report.formats import html, latex, markdown, records
    from leval_harness.report.posgen import details, load_posgen, loss_figure, table_1

    if figure and len(folders) > 1:
        raise click.UsageError("--figure shows one folder; give one")
    results = load_posgen(*folders)
    if as_json or output == "json":
        text = records(details(results))
    elif output == "csv":
        text = details(results).to_csv(index=False)
    else:
        render = {"tex": latex, "html": html}.get(output or "", markdown)
        text = render(table_1(results))
    write_or_print(text, out)
    if figure:
        write_figure(partial(loss_figure, results), figure)
        click.echo(f"Written: {figure}", err=True)


@click.command(
    epilog=examples(
        'python -c "from pydoc_data.topics import topics; print(*topics.values())" > text.txt',
        "leval-harness finetune smollm2 --data text.txt --rope yarn:factor=2 --steps 1 "
        "--sequence-length 256 --held-out 0 --out tuned",
    )
)
@click.argument("model", callback=model_path)
@click.option(
    "--data", "sources", multiple=True, metavar="PATH",
    help="Training text: a .jsonl file with a text per line, a .txt file, or a folder of these. "
    "Repeatable.",
)  # fmt: skip
@click.option("--out", type=FOLDER, required=True, help="Folder of the fine-tuned checkpoint.")
@click.option(
    "--rope",
    help="RoPE method that the model gets, for example resonance_yarn:factor=2; none keeps the "
    "model's own settings.", show_default="that of the preset",
)  # fmt: skip
@click.option(
    "--preset", default="cpu", help="Settings in harness_configs/train that the options change."
)
@setting_options(FineTuneSettings)
@json_option
def finetune(
    model: str,
    sources: tuple[str, ...],
    out: Path,
    rope: str | None,
    preset: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Fine-tune MODEL on long text with a RoPE method.

    MODEL is a checkpoint folder, a name on the hub, or smollm2. Options without a default keep the
    value of the preset. The same command continues after an interruption.

    On several GPUs, start it by accelerate with a file of harness_configs/train/accelerate:
    accelerate launch --config_file FILE $(which leval-harness) finetune MODEL ...
    """
    from resonance_vllm.core.spec import RopeRequest

    changes = given_options(options)
    if rope == "none":
        changes["rope"] = None
    elif rope is not None:
        changes["rope"] = RopeRequest.parse(rope).to_dict()
    tuning = settings.preset(FineTuneSettings, preset).with_changes(**changes)
    # torch is imported only when the options are known to be right
    from leval_harness.training.finetune import finetune as tune

    with contextlib.redirect_stdout(sys.stderr):  # the Trainer prints each step
        result = tune(model, sources, out, tuning)
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(
        f"{result['steps']} steps, {result['tokens']:,} tokens, {result['epochs']:.2f} epochs, "
        f"mean loss {result['mean_loss']:.4f}, {result['seconds'] / 60:.0f} min: {out}"
    )
