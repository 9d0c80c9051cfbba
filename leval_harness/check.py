"""`leval-harness check`: what a model will really run with."""

import json
from typing import Any

import click

from leval_harness.output import json_option


@click.command()
@click.argument("model")
@click.option("--rope", "rope_text", help="TYPE:key=value,... or JSON. [default: as it is]")
@click.option("--context-length", type=int, help="Longest sequence that will be asked for.")
@json_option
def command(model: str, rope_text: str | None, context_length: int | None, as_json: bool) -> None:
    """Say what MODEL (a checkpoint folder) runs with on HF and on vLLM, before it runs.

    Settings, frequencies, limit, cached positions, whether vLLM will load the plugin, and every
    disagreement. Nothing is loaded but config.json; vLLM need not be installed.

    Example: leval-harness check ./smollm2 --rope resonance_yarn:factor=2 --context-length 16384
    """
    from resonance_vllm.check import report
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.positions import ModelPositions

    positions = ModelPositions.of_checkpoint(model)
    rope = positions.complete(RopeRequest.parse(rope_text)) if rope_text else None
    facts = report(rope, positions, context_length)
    if as_json:
        click.echo(json.dumps(facts))
        return
    _print_side("transformers", facts["hf"])
    _print_side("vLLM", facts["vllm"])
    click.echo(f"vLLM plugin\n  {facts['plugin']}")
    click.echo("Disagreements")
    for line in facts["disagreements"] or ["none"]:
        click.echo(f"  {line}")
    limit = facts["hf"]["limit"]
    if context_length is not None and context_length > limit:
        raise click.ClickException(
            f"context length {context_length} is above the limit of {limit} tokens"
        )


def _print_side(title: str, side: dict[str, Any]) -> None:
    fastest, slowest = side["inv_freq"][0], side["inv_freq"][-1]
    click.echo(title)
    click.echo(f"  rope_parameters          {json.dumps(side['rope_parameters'])}")
    click.echo(f"  max_position_embeddings  {side['max_position_embeddings']}")
    click.echo(f"  limit                    {side['limit']} tokens")
    click.echo(f"  attention factor         {side['attention_factor']:.6g}")
    click.echo(f"  inv_freq                 {fastest:.9g} … {slowest:.9g}")
    if "cache_rows" in side:
        click.echo(f"  cached positions         {side['cache_rows']}")
