"""`leval-harness check`: the RoPE settings that a model will run with."""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from leval_border.errors import SettingError, UserError
from leval_harness.cli.output import json_option, prepared_model

TITLES = {"transformers": "transformers", "vllm": "vLLM"}


@click.command()
@click.argument("model", callback=prepared_model)
@click.option("--rope", "rope_text", help="TYPE:key=value,... or JSON. [default: as it is]")
@click.option(
    "--context-length",
    type=click.IntRange(min=1),
    help="Longest sequence in tokens.",
)
@click.option(
    "--library",
    "libraries",
    type=click.Choice(list(TITLES)),
    multiple=True,
    default=list(TITLES),
    help="Ask one library alone. [default: both, side by side]",
)
@click.option("--against", metavar="MODEL", help="Original of a GGUF file or MLX folder.")
@json_option
def command(
    model: str,
    rope_text: str | None,
    context_length: int | None,
    libraries: tuple[str, ...],
    against: str | None,
    as_json: bool,
) -> None:
    """Build MODEL's rotary modules on transformers and vLLM, and print their settings.

    A GGUF file or a folder of mlx-lm is read as its engine reads it; --against names the original
    checkpoint, and the command ends with 1 where the two differ.

    MODEL is a checkpoint folder, a hub name, or `smollm2`. No weights are loaded: each library
    builds the model without them. vLLM need not be installed. Ends with 2 where transformers
    refuses the method.

    Example: leval-harness check ./smollm2 --rope resonance_yarn:factor=2 --context-length 16384
    """
    from resonance_vllm.check import importing_vllm, report
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.model_config.model_positions import ModelPositions
    from resonance_vllm.shipped_files import engine_of

    engine = engine_of(model)
    if engine is not None or against is not None:
        _other_engine(engine, model, rope_text, context_length, against, as_json)
        return
    with importing_vllm(libraries) as process, _uncollected():
        request = RopeRequest.parse(rope_text) if rope_text else None
        positions = ModelPositions.of_checkpoint(model)
        rope = None if request is None else positions.complete(request)
        facts = report(model, positions, rope, context_length, libraries, process)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"Shipped\n  {_shipped(positions)}")
        for library, title in TITLES.items():
            click.echo("\n".join([title, *_lines(facts[library])]))
        if len(set(libraries)) == len(TITLES):
            click.echo("Disagreements")
            for line in facts["disagreements"] or ["none"]:
                click.echo(f"  {line}")
    refused = facts["transformers"].get("refused")
    if rope is not None and refused:
        raise SettingError(f"rope_type: transformers refuses {rope.rope_type!r}: {refused}")
    limit = facts["transformers"].get("limit")
    if context_length is not None and limit is not None and context_length > limit:
        raise UserError(f"context length {context_length} is above the limit of {limit} tokens")


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection, which takes a third of the time of large imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _other_engine(
    engine: str | None,
    model: str,
    rope_text: str | None,
    length: int | None,
    original: str | None,
    as_json: bool,
) -> None:
    """What llama.cpp or mlx-lm will run, and where that differs from the original checkpoint."""
    from resonance_vllm.shipped_files import against, held

    if engine is None:
        raise SettingError(f"--against: {model} is neither a GGUF file nor a folder of mlx-lm")
    if rope_text:
        raise SettingError(f"--rope: {engine} runs what stands in {model}; allowed: no --rope")
    modules = [
        {"module": engine, "layer_type": layer_type, "exact_phase": False, **rotation}
        for layer_type, rotation in held(model, length).items()
    ]
    lines = against(model, original, length) if original else []
    if as_json:
        click.echo(json.dumps({"engine": engine, "modules": modules, "differences": lines}))
    else:
        click.echo(engine)
        for module in modules:
            click.echo("\n".join(f"  {line}" for line in _description(module).splitlines()))
        if original:
            click.echo(f"Differences from {original}")
            click.echo("\n".join(f"  {line}" for line in lines or ["none"]))
    if lines:
        raise UserError(f"{model} does not rotate like {original}")


def _shipped(positions: Any) -> str:
    """What the checkpoint ships, with a remark where its length misleads."""
    from resonance_vllm.check import length_remark

    rope = {k: "[...]" if isinstance(v, list) else v for k, v in positions.rope.items()}
    length = positions.max_position_embeddings
    text = f"{json.dumps(rope, default=str)}, {length or 'an unknown number of'} positions"
    return "\n  ".join(filter(None, (text, length_remark(positions))))


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
        names_of.setdefault(_description(module), []).append(module["module"])
    for description, names in names_of.items():
        yield f"  {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        yield from (f"    {line}" for line in description.splitlines())


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
