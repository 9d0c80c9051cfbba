"""`leval-harness diff`: does this setup still read like that one?"""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import EXISTING_FILE, FILE, FOLDER, json_option
from resonance_vllm.common.errors import SettingError


@click.command(
    epilog="Example: leval-harness diff hf:./smollm2 vllm:./smollm2,kv_cache_dtype=fp8_e4m3"
)
@click.argument("setups", nargs=-1, metavar="[A] B")
@click.option(
    "--documents", default="pydocs", help="pydocs, a JSONL or text file, a folder of them."
)
@click.option("--lengths", help="Tokens of a text; of several, the most. [default: up to 4096]")
@click.option(
    "--count", default=8, help="Documents. Twice as many give intervals of 0.7 the width."
)
@click.option("--margin", default=0.01, help="Nats a token; a smaller difference counts as none.")
@click.option("--rope-a", help="RoPE method of A: TYPE:key=value,... or JSON.")
@click.option("--rope-b", help="RoPE method of B.")
@click.option("--ignore", multiple=True, help="What may differ: bos, tokenizer, template.")
@click.option("--save", type=FILE, help="Keep what A alone reads in this .npz file.")
@click.option("--against", type=EXISTING_FILE, help="A file that --save wrote, in the place of A.")
@click.option("--out", type=FOLDER, help="Folder for diff.json.")
@json_option
def diff(
    setups: tuple[str, ...],
    lengths: str | None,
    rope_a: str | None,
    rope_b: str | None,
    save: Path | None,
    against: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Does setup B still read like setup A? Both score the same tokens of the same documents.

    A and B are checkpoints (hf:, hf-long:, vllm:, vllm-long: with any argument of the backend, and
    rope=TYPE:key=value), the address of a server that returns prompt log-probabilities, or (A) a
    saved reference (.npz). A reads all documents and is closed before B is loaded. Intervals of the
    difference of losses, by position, lie within the margin (same), on one side of zero (worse,
    better) or neither (not decided).

    Exit codes: 0 same or better, 4 worse or different input, 3 not decided, 1 could not be
    measured, 2 wrong usage.
    """
    from leval_harness.diff.compare import diff as compare
    from leval_harness.diff.compare import save_reference
    from leval_harness.diff.setups import Setup
    from resonance_vllm.common.files import write_json

    options["lengths"] = lengths.split(",") if lengths else ()
    sides = setups if against is None else (str(against), *setups)
    if len(sides) != (2 if save is None else 1):
        raise SettingError("give A and B; or B with --against FILE; or A with --save FILE")
    parsed = [Setup.parse(*each) for each in zip(sides, (rope_a, rope_b), strict=False)]
    with interrupted_by_signals():
        if save is not None:
            reference = save_reference(parsed[0], save, **options)
            facts = {
                "saved": str(save),
                "documents": len(reference.documents),
                "setup": reference.setup,
            }
            click.echo(
                json.dumps(facts) if as_json else f"Saved: {save}, {facts['documents']} documents"
            )
            return 0
        result = compare(*parsed, **options)
    content = result.as_json()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "diff.json", content)
    shown = json.dumps(content, allow_nan=False) if as_json else "\n".join(result_lines(content))
    click.echo(shown)
    return result.exit_code


def result_lines(content: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    losses = f"loss of A {content['loss_a']:.4f}, of B {content['loss_b']:.4f} nats/token"
    shown = [*content["sentences"], losses]
    if content["bins"]:
        shown.append(f"  {'positions':>17}  {'B - A':>8}  interval (negative is better for B)")
    for part in content["bins"]:
        ends = [f"{part[end]:+.4f}" for end in ("low", "high") if part[end] is not None]
        shown.append(
            f"  {part['start']:>7,} – {part['end']:>7,}  {part['difference']:+8.4f}  "
            f"{' to '.join(ends) or 'one block: none'}  {part['verdict']}"
        )
    return [*shown, f"  losses of a token are {content['apart']:.5f} nats apart on average"]
