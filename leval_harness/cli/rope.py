"""`leval-harness rope`: what a RoPE method does to every feature."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args, get_origin

import click

from leval_harness.cli.output import FILE, json_option
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import ALIASES, METHODS, RopeSpec, parse_value

# Keys with an option of their own below.
_COMMON = {*Method.model_fields, "factor", "original_max_position_embeddings"}


def _method_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each further key of methods, read as in a `--rope` text."""
    keys: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for key in method.model_fields.keys() - _COMMON:
            keys.setdefault(key, []).append(name)
    for key in sorted(keys, reverse=True):
        field = METHODS[keys[key][0]].model_fields[key]
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        names = ", ".join(keys[key])
        metavar = f"[{'|'.join(values)}]" if values else "VALUE"
        text = f"{names}: {field.description}"
        command = click.option(f"--{key.replace('_', '-')}", metavar=metavar, help=text)(command)
    return command


@click.command()
@click.option("--method", type=click.Choice([*METHODS, "ntk"]), required=True)
@click.option("--resonance", is_flag=True, help="Round the method's wavelengths to integers.")
@click.option("--factor", type=float, default=8.0, help="Context extension s.")
@click.option("--theta", type=float, default=10000.0, help="Base, rope_theta.")
@click.option("--head-dim", type=click.IntRange(2, 1024), default=128, help="Rotated dimensions.")
@click.option(
    "--original", type=click.IntRange(max=2**24), default=4096, help="Native context length L."
)
@click.option("--seq-len", type=int, help="Current length, for dynamic and longrope. [default: L]")
@_method_options
@json_option
@click.option("--plot", type=FILE, help="Draw Figure 1, wavelengths and gaps: png, pdf or svg.")
def rope(**options: Any) -> None:
    """Print frequencies, wavelengths, attention factor, critical dimension and gaps.

    The gap of a feature is its largest distance, over test positions L to s*L, to the nearest
    training position below L. Every flag is accepted with every method.

    Example: leval-harness rope --method yarn --resonance --factor 8 --original 4096
    """
    from resonance_vllm.core.features import rope_features

    head_dim, original, factor = options["head_dim"], options["original"], options["factor"]
    spec = _spec(options)
    facts = rope_features(spec, head_dim, original, factor, options["seq_len"]).to_dict()
    if options["plot"]:
        _plot(spec, options)
    if options["as_json"]:
        click.echo(json.dumps(facts))
        return
    default = RopeSpec.from_dict({"rope_type": "default", "rope_theta": options["theta"]})
    plain = rope_features(default, head_dim, 1, 1).to_dict()
    _print_table(facts, plain["wavelengths"], spec.rope_type, original)
    if options["plot"]:
        click.echo(f"wrote {options['plot']}")


def _spec(options: dict[str, Any]) -> RopeSpec:
    """The settings that the options mean; those without a meaning for the method are left out.

    A method's own examples stand in for required keys: Llama 3.1's published values for llama3's
    two frequency factors, lists of ones for longrope.
    """
    method = METHODS[ALIASES.get(options["method"], options["method"])]
    given = {
        "rope_theta": options["theta"],
        "factor": options["factor"],
        "original_max_position_embeddings": options["original"],
        **{key: parse_value(text) for key, text in options.items() if isinstance(text, str)},
    }
    kept = {key: value for key, value in given.items() if key in method.key_names()}
    examples = method.example_settings(options["head_dim"])
    plain = RopeSpec.from_dict({"rope_type": method.name, **examples, **kept})
    return RopeSpec(plain.method, options["resonance"])


def _print_table(facts: dict[str, Any], plain: list[float], title: str, original: int) -> None:
    """A line a feature: wavelength without and with the method, turns in training, gap."""
    from rich.console import Console
    from rich.table import Table

    table = Table("feature", "plain wavelength", "wavelength", "period seen", "gap", title=title)
    for column in table.columns:
        column.justify = "right"
    rows = zip(plain, facts["wavelengths"], facts["feature_gap"], strict=True)
    for feature, (before, after, gap) in enumerate(rows):
        seen = min(original / after, 1.0)
        runs = (str(feature), f"{before:,.3f}", f"{after:,.3f}", f"{seen:.0%}", f"{gap:.3g}")
        table.add_row(*runs, end_section=feature == facts["critical_dimension"] - 1)
    Console().print(table)
    click.echo(f"attention factor    {facts['attention_factor']:.6g}")
    click.echo(
        f"critical dimension  {facts['critical_dimension']} of {len(plain)} (first feature whose "
        f"wavelength is at least {original:,} tokens)"
    )


def _plot(spec: RopeSpec, options: dict[str, Any]) -> None:
    """The method with Resonance and without."""
    from leval_harness.report.drawing import write_figure
    from leval_harness.report.rope_figures import DrawnMethod, pair_figure
    from resonance_vllm.core.features import angles_near_native_length, rope_features

    head_dim, original, seq_len = options["head_dim"], options["original"], options["seq_len"]
    specs = [RopeSpec(spec.method, resonance) for resonance in (False, True)]
    feature, positions, angles = angles_near_native_length(specs, head_dim, original, seq_len)
    methods = []
    for each, shown in zip(specs, angles, strict=True):
        facts = rope_features(each, head_dim, original, options["factor"], seq_len).to_dict()
        name = each.rope_type.replace("_", " ")
        methods.append(DrawnMethod(name, facts["wavelengths"], facts["feature_gap"], shown))
    longest = int(original * options["factor"])
    draw = partial(pair_figure, methods, feature, positions, original, longest)
    write_figure(draw, options["plot"], dpi=150)
