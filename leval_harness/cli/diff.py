"""`leval-harness diff`: does this setup still read like that one?"""

import json
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.console import interrupted_by_signals
from leval_harness.cli.output import EXISTING_FILE, FILE, FOLDER, json_option
from resonance_vllm.errors import SettingError, not_allowed
from resonance_vllm.settings import read

FIGURE = "difference"


def parse_lengths(text: str | None) -> tuple[int, ...]:
    """Of `1024,4096`."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise SettingError(not_allowed("--lengths", text, "numbers of tokens, e.g. 1024,4096"))
    return tuple(map(int, parts))


@click.command(
    epilog="Example: leval-harness diff hf:./smollm2 vllm:./smollm2,kv_cache_dtype=fp8_e4m3"
)
@click.argument("setups", nargs=-1, metavar="[A] B")
@click.option("--texts", default="pydocs", help="pydocs, a JSONL or text file, a folder of them.")
@click.option("--lengths", help="Tokens of a text, e.g. 1024,4096. [default: up to 4096]")
@click.option("--count", default=8, help="Texts. Twice as many give intervals of 0.7 the width.")
@click.option("--margin", default=0.01, help="Nats a token; a smaller difference counts as none.")
@click.option("--rope-a", help="RoPE method of A: TYPE:key=value,... or JSON.")
@click.option("--rope-b", help="RoPE method of B.")
@click.option("--ignore", multiple=True, help="What may differ: bos, tokenizer, template.")
@click.option("--save", type=FILE, help="Keep what A reads in this .npz file; B may be left out.")
@click.option("--against", type=EXISTING_FILE, help="A file that --save wrote, in the place of A.")
@click.option("--out", type=FOLDER, help="Folder for diff.json and a figure.")
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
    """Does setup B still read like setup A? Both score the same tokens of the same texts.

    A and B are checkpoints (hf:, hf-long:, vllm:, vllm-long: with any argument of the backend), the
    address of a server that returns prompt log-probabilities, or a saved reference (.npz). A reads
    all texts and is closed before B is loaded. Intervals of the difference of losses, by position,
    lie within the margin (same), on one side of zero (worse, better) or neither (not decided).

    Exit codes: 0 same or better, 4 worse or different input, 3 not decided, 1 could not be
    measured, 2 wrong usage.
    """
    from leval_harness.parity.compare import Options, save_reference
    from leval_harness.parity.compare import diff as compare
    from leval_harness.parity.setups import Setup

    wanted = read(Options, {"lengths": parse_lengths(lengths), **options})
    a, b = setup_texts(setups, rope_a, rope_b, against, alone=save is not None)
    setup_a = Setup.parse(a, rope_a)
    with interrupted_by_signals():
        if b is None:
            assert save is not None
            reference = save_reference(setup_a, save, wanted)
            facts = {"saved": str(save), "texts": len(reference.texts), "setup": reference.setup}
            click.echo(json.dumps(facts) if as_json else f"Saved: {save}, {facts['texts']} texts")
            return 0
        result = compare(setup_a, Setup.parse(b, rope_b), wanted, save=save)
    content = result.as_json()
    if out is not None:
        write_files(content, out)
    if as_json:
        click.echo(json.dumps(content, allow_nan=False))
    else:
        for line in result_lines(content):
            click.echo(line)
    return result.exit_code


def setup_texts(
    setups: tuple[str, ...],
    rope_a: str | None,
    rope_b: str | None,
    against: Path | None,
    *,
    alone: bool,
) -> tuple[str, str | None]:
    """A, and B or None where A alone is saved.

    Raises:
        SettingError: the number of setups does not fit the options.
    """
    if against is not None:
        if len(setups) != 1 or rope_a is not None:
            raise SettingError("--against stands for A: give B alone, and no --rope-a")
        return f"saved:{against}", setups[0]
    if len(setups) == 2:
        return setups[0], setups[1]
    if len(setups) == 1 and alone and rope_b is None:
        return setups[0], None
    raise SettingError("give A and B; or B with --against FILE; or A with --save FILE")


def write_files(content: dict[str, Any], out: Path) -> None:
    """`diff.json` and the figure."""
    from leval_harness.drawing import write_figure
    from leval_harness.parity_figure import parity_figure
    from resonance_vllm.files import write_json

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "diff.json", content)
    files = [out / f"{FIGURE}.svg", out / f"{FIGURE}.png"]
    write_figure(lambda: parity_figure(content), *files)


def result_lines(content: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    shown = [*content["sentences"]]
    for each in content["lengths"]:
        shown.append(f"{each['texts']} texts of {each['length']:,} tokens: loss of A "
                     f"{each['loss_a']:.4f}, of B {each['loss_b']:.4f} nats a token")  # fmt: skip
        if each["bins"]:
            shown.append(f"  {'positions':>17}  {'B - A':>8}  interval (negative is better for B)")
        for part in each["bins"]:
            ends = [f"{part[end]:+.4f}" for end in ("low", "high") if part[end] is not None]
            shown.append(
                f"  {part['start']:>7,} – {part['end']:>7,}  {part['difference']:+8.4f}  "
                f"{' to '.join(ends) or 'one block: none'}  {part['verdict']}"
            )
        shown.append(f"  same token first: {100 * each['agreement']:.2f} % of positions")
        shown.append(f"  KL(A || B): at least {each['divergence']:.5f} nats")
    return shown
