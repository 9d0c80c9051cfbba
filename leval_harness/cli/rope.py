"""`leval-harness rope`: what a RoPE method does to each feature."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from leval_harness.cli.output import FILE, examples, json_option
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import ALIASES, METHODS, RopeSpec, parse_value

if TYPE_CHECKING:
    from resonance_vllm.core.features import RopeFeatures

COMMON_KEYS = {*Method.model_fields, "factor", "original_max_position_embeddings"}
"""Keys of methods that have an option of their own below."""


def method_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each further key of the methods; values are read as in a `--rope` text."""
    methods_of: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for key in method.model_fields.keys() - COMMON_KEYS:
            methods_of.setdefault(key, []).append(name)
    # click lists the option that was added last first
    for key in sorted(methods_of, reverse=True):
        names = methods_of[key]
        option = _method_option(key, METHODS[names[0]].model_fields[key], names)
        command = option(command)
    return command


def _method_option(key: str, field: FieldInfo, methods: list[str]) -> Callable[..., Any]:
    """Return the click option for one key of some methods."""
    metavar = "VALUE"
    if get_origin(field.annotation) is Literal:
        metavar = f"[{'|'.join(get_args(field.annotation))}]"
    default = None
    if not field.is_required() and field.default is not None:
        default = str(field.default)
    return click.option(
        f"--{key.replace('_', '-')}",
        metavar=metavar,
        help=f"{', '.join(methods)}: {field.description}",
        show_default=default,
    )


@click.command(
    epilog=examples(
        "leval-harness rope --method yarn --factor 8 --original 4096",
        "leval-harness rope --method yarn --resonance --json",
    )
)
@click.option(
    "--method",
    type=click.Choice([*METHODS, "ntk"]),
    required=True,
    help="RoPE method, by its rope_type; ntk is short for ntk_aware.",
)
@click.option(
    "--resonance",
    is_flag=True,
    help="Round each wavelength of the method to a whole number of tokens.",
)
@click.option(
    "--factor", type=float, default=8.0, help="Factor s by which the context is extended."
)
@click.option("--theta", type=float, default=10000.0, help="Base of the frequencies, rope_theta.")
@click.option(
    "--head-dim",
    type=click.IntRange(2, 1024),
    default=128,
    help="Number of rotated dimensions of a head; two make a feature.",
)
@click.option(
    "--original",
    type=click.IntRange(max=2**24),
    default=4096,
    help="Original context length L, in tokens.",
)
@click.option(
    "--seq-len",
    type=int,
    help="Current sequence length in tokens, for dynamic and longrope.",
    show_default="L",
)
@method_options
@json_option
@click.option(
    "--plot",
    type=FILE,
    help="Draw wavelengths and gaps, as in the paper's Figure 1, to this png, pdf or svg file.",
)
def rope(**options: Any) -> None:
    """Print each feature's frequency, wavelength and gap, and a method's attention factor.

    The gap of a feature is the distance on the unit circle from a test position (L up to s*L) to
    its nearest training position (below L), for the test position where it is largest. It is zero
    where training has seen every angle. Options that a method does not have are ignored.
    """
    from resonance_vllm.core.features import rope_features

    head_dim = options["head_dim"]
    original = options["original"]
    spec = _spec(options)
    features = rope_features(spec, head_dim, original, options["factor"], options["seq_len"])
    if options["plot"]:
        _plot(spec, options)
    if options["as_json"]:
        click.echo(json.dumps(features.to_dict()))
        return
    unscaled = RopeSpec.from_dict({"rope_type": "default", "rope_theta": options["theta"]})
    # with L = s = 1 no gaps are computed, which would take long and are not printed
    plain = rope_features(unscaled, head_dim, 1, 1)
    _print_table(features, plain, spec.rope_type, original)
    if options["plot"]:
        click.echo(f"Written: {options['plot']}")


def _spec(options: Mapping[str, Any]) -> RopeSpec:
    """Return the settings that the options mean, without those that the method does not have.

    A method's own examples stand in for required keys that are not given: Llama 3.1's published
    values for llama3's two frequency factors, lists of ones for longrope.
    """
    method = METHODS[ALIASES.get(options["method"], options["method"])]
    values: dict[str, Any] = {
        "rope_theta": options["theta"],
        "factor": options["factor"],
        "original_max_position_embeddings": options["original"],
    }
    for key, text in options.items():
        if isinstance(text, str):
            values[key] = parse_value(text)
    own_keys = method.key_names()
    settings = method.example_settings(options["head_dim"])
    settings |= {key: value for key, value in values.items() if key in own_keys}
    plain = RopeSpec.from_dict({"rope_type": method.name, **settings})
    return RopeSpec(plain.method, options["resonance"])


def _print_table(
    features: "RopeFeatures", unscaled: "RopeFeatures", title: str, original: int
) -> None:
    """Print one row per feature: wavelengths without and with the method, share seen, gap.

    Args:
        features: those of the method.
        unscaled: those of plain RoPE.
        title: the method.
        original: original context length in tokens.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "feature", "plain wavelength", "wavelength", "period in training", "gap", title=title
    )
    for column in table.columns:
        column.justify = "right"
    rows = zip(unscaled.wavelengths, features.wavelengths, features.feature_gap, strict=True)
    for feature, (plain, wavelength, gap) in enumerate(rows):
        share = min(original / wavelength, 1.0)
        table.add_row(
            str(feature),
            f"{plain:,.3f}",
            f"{wavelength:,.3f}",
            f"{share:.0%}",
            f"{gap:.3g}",
            end_section=feature == features.critical_dimension - 1,
        )
    Console().print(table)
    click.echo(f"attention factor    {features.attention_factor:.6g}")
    click.echo(
        f"critical dimension  {features.critical_dimension} of {len(unscaled.inv_freq)} (the first feature "
        f"whose wavelength is at least {original:,} tokens)"
    )


def _plot(spec: RopeSpec, options: Mapping[str, Any]) -> None:
    """Draw the method with Resonance and without."""
    from leval_harness.report.drawing import write_figure
    from leval_harness.report.rope_figures import DrawnMethod, pair_figure
    from resonance_vllm.core.features import angles_near_original_length, rope_features

    head_dim = options["head_dim"]
    original = options["original"]
    seq_len = options["seq_len"]
    specs = [RopeSpec(spec.method, resonance) for resonance in (False, True)]
    feature, positions, angles = angles_near_original_length(specs, head_dim, original, seq_len)
    methods = []
    for variant, variant_angles in zip(specs, angles, strict=True):
        features = rope_features(variant, head_dim, original, options["factor"], seq_len)
        name = variant.rope_type.replace("_", " ")
        methods.append(
            DrawnMethod(name, features.wavelengths, features.feature_gap, variant_angles)
        )
    longest = int(original * options["factor"])
    draw = partial(pair_figure, methods, feature, positions, original, longest)
    write_figure(draw, options["plot"], dpi=150)
