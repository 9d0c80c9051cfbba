"""`leval-harness export`: a checkpoint that stock libraries run with one of our methods."""

import json
from pathlib import Path

import click

from leval_harness.output import EXISTING_FOLDER, json_option


@click.command()
@click.argument("checkpoint", type=EXISTING_FOLDER)
@click.option("--rope", "rope_text", required=True, help="TYPE:key=value,... or a JSON dictionary.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder.")
@json_option
def command(checkpoint: Path, rope_text: str, out: Path, as_json: bool) -> None:
    """Write CHECKPOINT to another folder with a per-dimension longrope config.

    Stock transformers and stock vLLM run it without any plugin. Weights are linked or copied,
    never rewritten. Methods that follow the sequence's length (dynamic) are refused. The exact
    phase of Resonance is lost: see docs/rope.md.

    Example: leval-harness export ./smollm2 --rope resonance_yarn:factor=2 --out ./smollm2-16k
    """
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.export import export_checkpoint

    limit = export_checkpoint(checkpoint, RopeRequest.parse(rope_text), out)
    serve = f"vllm serve {out} --max-model-len {limit}"
    if as_json:
        click.echo(json.dumps({"out": str(out), "max_model_len": limit, "serve": serve}))
        return
    click.echo(f"wrote {out}: transformers and vLLM run it as it is, up to {limit:,} tokens")
    click.echo("exact phase is not portable: angles are the libraries' own float32 products")
    click.echo("vLLM otherwise serves the trained length only, so give it the limit:")
    click.echo(serve)
