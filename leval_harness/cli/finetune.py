"""`leval-harness finetune`: adapt a model to a RoPE method on long text."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import FOLDER, given, json_option, prepared_model, setting_options
from leval_harness.training import finetune_settings


@click.command()
@click.argument("model", callback=prepared_model)
@click.option("--data", "sources", multiple=True, help="Text: .jsonl, .txt, a folder, or pg19.")
@click.option("--out", type=FOLDER, required=True, help="Output folder.")
@click.option("--rope", help="RoPE method, e.g. resonance_yarn:factor=2; `none` keeps the model's.")
@click.option("--preset", default="cpu", help="Name in harness_configs/train; options change it.")
@setting_options(finetune_settings.FineTuneSettings)
@json_option
def command(
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
    settings = finetune_settings.preset(preset).changed(**changes)
    from leval_harness.training.finetune import (
        finetune,  # imports torch, after the settings were checked
    )

    with contextlib.redirect_stdout(sys.stderr):  # the Trainer prints each step
        result = finetune(model, sources, out, settings)
    summary = (
        f"{result['steps']} steps, {result['tokens']:,} tokens, {result['epochs']:.2f} epochs, "
        f"mean loss {result['mean_loss']:.4f}, {result['seconds'] / 60:.0f} min: {out}"
    )
    click.echo(json.dumps(result) if as_json else summary)
