"""`leval-harness diff`: does setup B still read like setup A?"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import EXISTING_FILE, FILE, FOLDER, examples, json_option
from resonance_vllm.common.errors import SettingError


@click.command(
    epilog=examples(
        "leval-harness diff hf:smollm2,dtype=float32 hf:smollm2,dtype=bfloat16 --length 512 --count 2",
        "leval-harness diff hf:smollm2 hf:smollm2 --rope-b yarn:factor=2 --length 512 --count 2",
    )
)
@click.argument("setups", nargs=-1, metavar="[A] B")
@click.option(
    "--documents",
    default="pydocs",
    help="Documents that both setups read: pydocs (the language reference that comes with Python), "
    "a JSONL file with a text per line, a text file, or a folder of these.",
)
@click.option(
    "--length",
    type=click.IntRange(min=8),
    help="Document length in tokens; longer documents are truncated.  [default: 4096, or fewer if "
    "A cannot read as many]",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=8,
    help="Number of documents. Twice as many make intervals about 0.7 times as wide.",
)
@click.option(
    "--margin",
    type=click.FloatRange(min=0, min_open=True),
    default=0.01,
    help="Differences of the mean loss below this many nats/token are treated as zero.",
)
@click.option(
    "--rope-a", help="RoPE method that A is loaded with, as TYPE:key=value,... or as JSON."
)
@click.option("--rope-b", help="RoPE method that B is loaded with, in the same form.")
@click.option(
    "--ignore",
    multiple=True,
    metavar="[bos|tokenizer|template]",
    help="Compare the losses although this part of the input differs between A and B. Repeatable.",
)
@click.option(
    "--save",
    type=FILE,
    help="Measure A alone and write its losses to this .npz file, for a later --against.",
)
@click.option(
    "--against",
    type=EXISTING_FILE,
    help="Compare B with a file that --save wrote. Model A is not needed then.",
)
@click.option("--out", type=FOLDER, help="Also write the result to diff.json in this folder.")
@json_option
def diff(
    setups: tuple[str, ...],
    rope_a: str | None,
    rope_b: str | None,
    save: Path | None,
    against: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare the token losses of setup B with those of setup A on the same documents.

    A and B are each one of

    \b
      BACKEND:MODEL,key=value,...  a checkpoint; BACKEND is hf, hf-long, vllm or
                                   vllm-long, keys are arguments of that backend
      http://HOST:PORT/v1          a server that returns prompt log-probabilities
      FILE.npz                     a reference that --save wrote (A only)

    A is measured first and closed before B is loaded. The differences of the losses (B minus A) get
    an interval for each range of positions. B is "same" where the interval lies within the margin,
    "worse" or "better" where it excludes zero on one side, else undecided.

    \b
    Exit codes:
      0  same or better
      1  could not be measured
      2  wrong usage
      3  undecided
      4  worse, or the input differs
    """  # noqa: D301 - click's mark of a paragraph that is not wrapped
    from leval_harness.diff.compare import diff as compare
    from leval_harness.diff.setups import Setup
    from resonance_vllm.common.files import write_json

    sides = setups
    if against is not None:
        sides = (str(against), *setups)
    expected = 2 if save is None else 1
    if len(sides) != expected:
        raise SettingError("give A and B; or B with --against FILE; or A with --save FILE")
    parsed = [Setup.parse(side, rope) for side, rope in zip(sides, (rope_a, rope_b), strict=False)]
    with interrupted_by_signals():
        if save is not None:
            _save(parsed[0], save, options, as_json)
            return 0
        result = compare(*parsed, **options)
    content = result.as_json()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "diff.json", content)
    if as_json:
        click.echo(json.dumps(content, allow_nan=False))
    else:
        click.echo("\n".join(result_lines(content)))
    return result.exit_code


def _save(setup: Any, file: Path, options: Mapping[str, Any], as_json: bool) -> None:
    """Measure setup A and write its losses to a file."""
    from leval_harness.diff.compare import save_reference

    reference = save_reference(setup, file, **options)
    count = len(reference.documents)
    if as_json:
        record = {"saved": str(file), "documents": count, "setup": reference.setup}
        click.echo(json.dumps(record))
    else:
        click.echo(f"Saved: {file}, {count} documents")


def result_lines(content: dict[str, Any]) -> list[str]:
    """Return the lines of a result for a terminal."""
    lines = list(content["sentences"])
    lines.append(f"loss of A {content['loss_a']:.4f}, of B {content['loss_b']:.4f} nats/token")
    if content["bins"]:
        lines.append(f"  {'positions':>17}  {'B - A':>8}  interval (negative: B is better)")
    for part in content["bins"]:
        ends = [f"{part[end]:+.4f}" for end in ("low", "high") if part[end] is not None]
        interval = " to ".join(ends) or "none, one block only"
        positions = f"{part['start']:>7,} – {part['end']:>7,}"
        lines.append(f"  {positions}  {part['difference']:+8.4f}  {interval}  {part['verdict']}")
    lines.append(f"  mean absolute difference of a token's loss: {content['apart']:.5f} nats")
    return lines
