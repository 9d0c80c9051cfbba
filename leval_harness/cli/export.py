"""`leval-harness export`: a checkpoint that stock libraries run with one of our methods."""

import importlib.util
import json
import shlex
from pathlib import Path

import click

from leval_border.errors import printable
from leval_harness.cli.output import CHECKPOINT, NEW, json_option


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--rope", "rope_text", required=True, help="TYPE:key=value,... or a JSON dictionary.")
@click.option(
    "--format", "target", type=click.Choice(["longrope", "gguf"]), default="longrope",
    help="A checkpoint for transformers and vLLM, or a file for llama.cpp.", show_default=True,
)  # fmt: skip
@click.option("--out", type=NEW, required=True, help="New folder; of gguf new file.")
@json_option
def command(checkpoint: Path, rope_text: str, target: str, out: Path, as_json: bool) -> None:
    """Write CHECKPOINT so that stock libraries run it with a method, without any plugin.

    longrope: another folder with per-dimension factors in config.json, for transformers and vLLM.
    Weights are linked or copied, never rewritten. gguf: one file with tokenizer and
    rope_freqs.weight, for llama.cpp and what is built on it; models of Llama's architecture.
    Methods that follow the sequence's length (dynamic) are refused. The exact phase of Resonance
    is lost: see docs/reference/export.md.

    Example: leval-harness export ./smollm2 --rope resonance_yarn:factor=2 --out ./smollm2-16k
    """
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.export.checkpoint import export_checkpoint
    from resonance_vllm.export.gguf import export_gguf

    request = RopeRequest.parse(rope_text)
    if target == "gguf":
        limit = export_gguf(checkpoint, request, out)
    else:
        installed = importlib.util.find_spec("vllm") is not None
        limit = export_checkpoint(checkpoint, request, out, ask_vllm=installed)
    path = shlex.quote(str(out))
    serve = f"vllm serve {path} --max-model-len {limit}"
    libraries = "transformers and vLLM run"
    if target == "gguf":
        serve, libraries = f"llama-server -m {path} -c {limit}", "llama.cpp runs"
    if as_json:
        click.echo(json.dumps({"out": str(out), "max_model_len": limit, "serve": serve}))
        return
    click.echo(f"wrote {printable(str(out))}: {libraries} it as it is, up to {limit:,} tokens")
    click.echo("exact phase is not portable: angles are the libraries' own float32 products")
    if target == "longrope":
        click.echo("vLLM otherwise serves the trained length only, so give it the limit:")
    click.echo(printable(serve))
