"""Commands that train: `posgen`, the paper's own benchmark, and `finetune`."""

import contextlib
import json
import sys
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import (
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    given,
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

_DATA = ("modulus", "train", "train_length", "length", "seed_policy")


@click.group()
def posgen() -> None:
    """PosGen: train small models short, test them long, and compare RoPE encodings.

    Example: leval-harness posgen train --preset quick --out runs/posgen
    """


@posgen.command()
@click.option(
    "--preset", default="quick", help="Name in harness_configs/posgen; options change it."
)
@click.option("--out", type=FOLDER, required=True, help="Output folder.")
@click.option(
    "--subtask", "subtasks", type=click.Choice(SUBTASKS), multiple=True,
    help="Repeatable; default: the preset's.",
)  # fmt: skip
@click.option(
    "--encoding", "encodings", type=click.Choice(list(ENCODINGS)), multiple=True,
    help="Repeatable; default: the reading's.",
)  # fmt: skip
@click.option("--seed", "seeds", type=int, multiple=True, help="Repeatable; default: the preset's.")
@click.option("--modulus", type=int, help="Size of the number vocabulary.")
@click.option("--train-sequences", "train", type=int, help="Number of training sequences.")
@click.option("--train-length", type=int, help="Numbers in a training sequence.")
@click.option("--length", type=int, help="Numbers in a test sequence.")
@click.option("--seed-policy", help="random, or cycled: tests begin like training sequences.")
@setting_options(Recipe)
@setting_options(Architecture)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, help="Processes that share the cores or the GPU."
)
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
    """Train what has no result yet; a stopped command continues.

    Example: leval-harness posgen train --preset paper --jobs 4 --out runs/paper
    """
    recipe = settings.preset(Recipe, preset)
    data, shape, changes = (
        {name: options[name] for name in names if options.get(name) is not None}
        for names in (_DATA, Architecture.model_fields, Recipe.model_fields)
    )
    recipe = recipe.with_changes(
        data={**recipe.data, **data},
        architecture=recipe.architecture.with_changes(**shape),
        **changes,
    )
    runs = [
        PosGenRun(subtask, encoding, seed)
        for subtask in subtasks or recipe.subtasks
        for seed in seeds or recipe.seeds  # more seeds are more models of the same recipe
        for encoding in encodings or trained_by_default(recipe.reading)
    ]
    from leval_harness.training.posgen_models import cross  # torch, once all is known to be meant
    from leval_harness.training.posgen_train import train_all

    tests = {run.encoding: tests_of(recipe.reading, run.encoding) for run in runs}
    tested = cross(out, tests)  # once the models are there
    _show(chain(train_all(recipe, runs, out, jobs=jobs), tested), as_json)


def _show(results: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Print each result when it is there, and as JSON all at the end."""
    shown = []
    for result in results:
        shown.append(result)
        test, other = result["test"], result.get("tested_with")
        click.echo(
            f"{result['subtask']} {result['encoding']} seed {result['seed']}"
            f"{f', tested with {other}' if other else ''}: "
            f"ID {100 * test['id_accuracy']:.2f} %, OOD {100 * test['ood_accuracy']:.2f} %",
            err=as_json,
        )
    if as_json:
        click.echo(json.dumps(shown))


@posgen.command()
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--encoding", "encodings", multiple=True, required=True,
    help="To test all models under, or NATIVE:TESTED; repeatable.",
)  # fmt: skip
@json_option
def evaluate(folder: Path, encodings: tuple[str, ...], as_json: bool) -> None:
    """Test trained models under further encodings.

    A model is trained once and tested under any encoding; what is tested already is not repeated.
    `--encoding rope:yarn_code` tests the models that were trained with rope alone.

    Example: leval-harness posgen evaluate runs/posgen --encoding yarn --encoding yarn_code
    """
    tests = parse_tests(encodings)
    from leval_harness.training.posgen_models import cross  # torch, after all was checked

    _show(cross(folder, tests), as_json)


@posgen.command()
@click.argument("folders", nargs=-1, required=True, type=EXISTING_FOLDER)
@table_options
@click.option("--figure", type=FILE, help="Also draw Figure 3 of the (one) folder: svg, pdf, png.")
def table(
    folders: tuple[Path, ...],
    output: str | None,
    as_json: bool,
    out: Path | None,
    figure: Path | None,
) -> None:
    """The paper's Table 1, from finished runs and as published.

    Several FOLDERS are blocks of one table.

    Example: leval-harness posgen table runs/posgen --figure runs/posgen/figure3.svg
    """
    from leval_harness.report.drawing import write_figure
    from leval_harness.report.formats import html, latex, markdown, records
    from leval_harness.report.posgen import details, load_posgen, loss_figure, table_1

    if figure and len(folders) > 1:
        raise click.UsageError("a figure shows one folder; give one")
    read = load_posgen(*folders)
    if as_json or output == "json":
        text = records(details(read))
    elif output == "csv":
        text = details(read).to_csv(index=False)
    else:
        text = {"tex": latex, "html": html}.get(output or "", markdown)(table_1(read))
    write_or_print(text, out)
    if figure:
        write_figure(partial(loss_figure, read), figure)
        click.echo(f"Written: {figure}", err=True)


@click.command()
@click.argument("model", callback=model_path)
@click.option("--data", "sources", multiple=True, help="Text: .jsonl, .txt, or a folder.")
@click.option("--out", type=FOLDER, required=True, help="Output folder.")
@click.option("--rope", help="RoPE method, e.g. resonance_yarn:factor=2; `none` keeps the model's.")
@click.option("--preset", default="cpu", help="Name in harness_configs/train; options change it.")
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
    """Fine-tune MODEL, a folder, a hub name or `smollm2`; a stopped command continues.

    On several GPUs: accelerate launch --config_file fsdp.yaml $(which leval-harness) finetune ...
    with a file of harness_configs/train/accelerate.

    Example: leval-harness finetune smollm2 --data books.jsonl --rope yarn:factor=2 --out tuned
    """
    from resonance_vllm.core.spec import RopeRequest

    changes = given(options)
    if rope is not None:
        changes["rope"] = None if rope == "none" else RopeRequest.parse(rope).to_dict()
    wanted = settings.preset(FineTuneSettings, preset).with_changes(**changes)
    from leval_harness.training.finetune import finetune as tune  # torch, after all was checked

    with contextlib.redirect_stdout(sys.stderr):  # the Trainer prints each step
        result = tune(model, sources, out, wanted)
    summary = (
        f"{result['steps']} steps, {result['tokens']:,} tokens, {result['epochs']:.2f} epochs, "
        f"mean loss {result['mean_loss']:.4f}, {result['seconds'] / 60:.0f} min: {out}"
    )
    click.echo(json.dumps(result) if as_json else summary)
