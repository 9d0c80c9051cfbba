"""`leval-harness rope`: what a RoPE method does to every feature."""

import json
from typing import Any

import click

METHODS = ("default", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope")


def rope_dict(method: str, resonance: bool, flags: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The `rope_parameters` of a set of flags; flags without a meaning for the method are left out.

    Llama 3.1's published values stand in for llama3's two frequency factors, and longrope divides
    by 1 where no list is given.
    """
    from resonance_vllm.core.spec import COMMON_KEYS, METHOD_KEYS
    from resonance_vllm.settings import long_name

    name = long_name(method)
    features = [1.0] * (head_dim // 2)
    values = {
        **flags,
        "short_factor": flags["short_factor"] or features,
        "long_factor": flags["long_factor"] or features,
    }
    required, optional = METHOD_KEYS[name]
    kept = {k: v for k, v in values.items() if k in required | optional | COMMON_KEYS}
    prefix = "resonance_" if resonance else ""
    return {"rope_type": f"{prefix}{name}" if name != "default" else prefix[:-1] or name, **kept}


def describe(
    rope: dict[str, Any], head_dim: int, original: int, factor: float, seq_len: int | None
) -> dict[str, Any]:
    """Frequencies and what follows from them, as the `--json` output has them."""
    from resonance_vllm.core import frequencies
    from resonance_vllm.core.feature_gap import feature_gap
    from resonance_vllm.core.spec import RopeSpec

    spec = RopeSpec.from_dict(rope)
    lengths = frequencies.wavelengths(spec, head_dim, seq_len)
    return {
        "inv_freq": frequencies.inv_freq(spec, head_dim, seq_len).tolist(),
        "wavelengths": lengths.tolist(),
        "attention_factor": frequencies.attention_factor(spec),
        "critical_dimension": frequencies.critical_dimension(lengths, original),
        "feature_gap": feature_gap(spec, head_dim, original, factor, seq_len).tolist(),
    }


def print_table(facts: dict[str, Any], plain: list[float], title: str, original: int) -> None:
    """A line a feature: wavelength without and with the method, turns in training, gap."""
    from rich.console import Console
    from rich.table import Table

    table = Table("feature", "plain wavelength", "wavelength", "period seen", "gap", title=title)
    for column in table.columns:
        column.justify = "right"
    rows = zip(plain, facts["wavelengths"], facts["feature_gap"], strict=True)
    for feature, (before, after, gap) in enumerate(rows):
        seen = min(original / after, 1.0)
        cells = (str(feature), f"{before:,.3f}", f"{after:,.3f}", f"{seen:.0%}", f"{gap:.3g}")
        table.add_row(*cells, end_section=feature == facts["critical_dimension"] - 1)
    Console().print(table)
    click.echo(f"attention factor    {facts['attention_factor']:.6g}")
    click.echo(
        f"critical dimension  {facts['critical_dimension']} of {len(plain)} (first feature whose "
        f"wavelength is at least {original:,} tokens)"
    )


@click.command()
@click.option("--method", type=click.Choice(METHODS), required=True, help="RoPE scaling method.")
@click.option("--resonance", is_flag=True, help="Round the method's wavelengths to integers.")
@click.option("--factor", type=float, default=8.0, show_default=True, help="Context extension s.")
@click.option("--theta", type=float, default=10000.0, show_default=True, help="Base, rope_theta.")
@click.option("--head-dim", type=int, default=128, show_default=True, help="Rotated dimensions.")
@click.option("--original", type=int, default=4096, show_default=True, help="Trained length L.")
@click.option(
    "--ramp",
    type=click.Choice(["dimension", "wavelength"]),
    default="dimension",
    show_default=True,
    help="YaRN: over the dimension index, as code and checkpoints have it, or the paper's gamma.",
)
@click.option(
    "--base-scaling",
    type=click.Choice(["exact", "paper"]),
    default="exact",
    show_default=True,
    help="NTK: base b*s^(d/(d-2)), or s*b as in the paper.",
)
@click.option("--seq-len", type=int, help="Current length, for dynamic and longrope. [default: L]")
@click.option("--low-freq-factor", type=float, default=1.0, show_default=True, help="llama3.")
@click.option("--high-freq-factor", type=float, default=4.0, show_default=True, help="llama3.")
@click.option("--short-factor", help="longrope: JSON list, one divisor a feature. [default: ones]")
@click.option("--long-factor", help="longrope: the same beyond L.  [default: ones]")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on standard output.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True),
    help="Write Figure 1 and the wavelength/gap picture to this file (png, pdf or svg).",
)
@click.option(
    "--against",
    help="Second method in the picture, as a --rope text. [default: the same method with Resonance "
    "added or taken away]",
)
def command(**options: Any) -> None:
    """Print frequencies, wavelengths, attention factor, critical dimension and feature gap.

    The gap of a feature is its largest distance, over test positions L to s*L, to the nearest
    training position below L. Every flag is accepted with every method.

    Example: leval-harness rope --method yarn --resonance --factor 8 --original 4096
    """
    from resonance_vllm.core.errors import RopeConfigError

    try:
        _run(options)
    except RopeConfigError as error:
        raise click.UsageError(str(error)) from error


def _run(options: dict[str, Any]) -> None:
    head_dim, original, factor = options["head_dim"], options["original"], options["factor"]
    flags = {
        "rope_theta": options["theta"],
        "factor": factor,
        "original_max_position_embeddings": original,
        "ramp": options["ramp"],
        "base_scaling": options["base_scaling"],
        "low_freq_factor": options["low_freq_factor"],
        "high_freq_factor": options["high_freq_factor"],
        "short_factor": _list("short_factor", options["short_factor"]),
        "long_factor": _list("long_factor", options["long_factor"]),
    }
    rope = rope_dict(options["method"], options["resonance"], flags, head_dim)
    facts = describe(rope, head_dim, original, factor, options["seq_len"])
    if options["plot"]:
        _plot(rope, flags, options)
    if options["as_json"]:
        click.echo(json.dumps(facts))
        return
    plain = describe({"rope_type": "default", "rope_theta": options["theta"]}, head_dim, 1, 1, None)
    print_table(facts, plain["wavelengths"], rope["rope_type"], original)
    if options["plot"]:
        click.echo(f"wrote {options['plot']}")


def _plot(rope: dict[str, Any], flags: dict[str, Any], options: dict[str, Any]) -> None:
    from leval_harness.rope_figures import draw
    from resonance_vllm.core.spec import RopeSpec
    from resonance_vllm.settings import complete, parse_rope

    if options["against"]:
        model = {
            "rope_theta": flags["rope_theta"],
            "max_position_embeddings": flags["original_max_position_embeddings"],
        }
        second = complete(parse_rope(options["against"]), model)
    else:
        turned = not options["resonance"]
        second = rope_dict(options["method"], turned, flags, options["head_dim"])
    specs = (RopeSpec.from_dict(rope), RopeSpec.from_dict(second))
    plain_first = sorted(specs, key=lambda spec: spec.resonance)
    draw(
        plain_first,
        head_dim=options["head_dim"],
        original=options["original"],
        factor=options["factor"],
        seq_len=options["seq_len"],
        path=options["plot"],
    )


def _list(name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"{name}: {text!r} is not a JSON list") from error
