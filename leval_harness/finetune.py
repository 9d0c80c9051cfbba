"""`leval-harness finetune`: adapt a model to a RoPE method on long text."""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.output import FOLDER, json_option


@click.command()
@click.argument("model")
@click.option("--data", "sources", multiple=True, help="Text: .jsonl, .txt, a folder, or pg19.")
@click.option("--out", type=FOLDER, required=True, help="Output folder.")
@click.option("--rope", help="RoPE method, e.g. resonance_yarn:factor=2; `none` keeps the model's.")
@click.option("--preset", default="cpu", help="Name in harness_configs/train.")
@click.option("--sequence-length", type=int, help="Tokens of a training sequence.")
@click.option("--steps", type=int, help="Optimiser steps.")
@click.option("--batch-size", type=int, help="Sequences a device reads at once.")
@click.option("--accumulation", type=int, help="Micro-batches an optimiser step.")
@click.option("--learning-rate", type=float, help="Peak learning rate.")
@click.option("--lora-rank", type=int, help="Rank of LoRA; 0 trains all weights.")
@click.option("--held-out", type=int, help="Documents kept out of training.")
@click.option("--seed", type=int, help="Of the split, the order and LoRA.")
@click.option("--bf16/--no-bf16", default=None, help="bfloat16 autocast.")
@json_option
def command(
    model: str,
    sources: tuple[str, ...],
    out: Path,
    rope: str | None,
    preset: str,
    as_json: bool,
    **changes: Any,
) -> None:
    """Fine-tune MODEL, a folder, a hub name or `smollm2`; a stopped command continues.

    On several GPUs: accelerate launch --config_file fsdp.yaml $(which leval-harness) finetune ...
    with a file of harness_configs/train/accelerate.

    Example: leval-harness finetune smollm2 --data books.jsonl --rope yarn:factor=2 --out tuned
    """
    from resonance_training.finetune_settings import preset as load
    from resonance_vllm.core.spec import RopeRequest

    if rope is not None:
        changes["rope"] = None if rope == "none" else RopeRequest.parse(rope).to_dict()
    given = {name: value for name, value in changes.items() if value is not None or name == "rope"}
    settings = load(preset).changed(**given)
    from resonance_training.finetune import finetune  # torch, once all is known to be meant

    if model == "smollm2":
        from leval_sweep.smollm2 import prepare

        model = str(prepare())
    result = finetune(model, sources, out, settings)
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(
            f"{result['steps']} steps, {result['tokens']:,} tokens, "
            f"{result['epochs']:.2f} epochs, mean loss {result['mean_loss']:.4f}, "
            f"{result['seconds'] / 60:.0f} min: {out}"
        )
