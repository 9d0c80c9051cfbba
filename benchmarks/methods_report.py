"""How far a model reads under each method: the tables and figure of docs/reports/methods.md.

    leval-harness sweep methods_smollm2 --set metadata.data_dir=DATA
    python benchmarks/methods_report.py collect results/methods_smollm2 16k
    python benchmarks/methods_report.py write

`collect` keeps sums over blocks of 512 tokens of each text in docs/reports/data/methods/<set>.csv:
nats of the full read, and gains over the windows of the unscaled model, clipped token by token.
`write` makes the tables and the figures from these files.
"""

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from leval_harness.layout import CELL, DONE, SHORT_WINDOWS
from leval_tasks.statistics.effective_context import (
    Blocks,
    EffectiveContext,
    Length,
    bin_edges,
    block_sums,
    break_position,
    clipped_gain,
    effective_context,
    texts_that_agree,
)
from leval_tasks.statistics.skewed_t import MARGIN, SkewedMean

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/reports/methods.md"
DATA = ROOT / "docs/reports/data/methods"
FIGURES = ROOT / "docs/figures"
BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->\n"
COLUMNS = ("method", "corpus", "text", "start", "tokens", "full", "gain", "trained_gain")
TRAINED = 8192
LEVEL = 0.05
TITLES = {
    "rope": "RoPE (no scaling)",
    "yarn": "YaRN",
    "resonance_yarn": "Resonance YaRN",
    "resonance": "Resonance RoPE",
    "ntk_aware": "NTK-aware",
    "dynamic_ntk": "dynamic NTK",
    "linear": "linear (PI)",
    "self_extend": "SelfExtend",
    "dual_chunk": "Dual Chunk Attention",
    "rerope": "ReRoPE, log-n",
    "log_n_yarn": "YaRN, log-n",
    "cope": "CoPE",
}


@dataclass(frozen=True)
class Text:
    """Blocks of one text under one method, `[B]` each; `trained_gain` is NaN up to 8,192."""

    corpus: str
    name: str
    start: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]
    full: np.ndarray[Any, Any]
    gain: np.ndarray[Any, Any]
    trained_gain: np.ndarray[Any, Any]


def cells(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Finished cells of a sweep with their requests."""
    for done in sorted(folder.glob(f"*/{DONE}")):
        yield done.parent, json.loads((done.parent / CELL).read_text(encoding="utf-8"))


def losses(folder: Path, read: str) -> dict[str, np.ndarray[Any, Any]]:
    """Nats of each token past the first window, by text."""
    found = {}
    for file in folder.glob(f"losses_*_{read}.npy"):
        text = file.stem.removeprefix("losses_").removesuffix(f"_{read}")
        found[text] = np.load(file, allow_pickle=False).astype(np.float64)
    return found


def first_position(folder: Path) -> int:
    """Where scoring begins: the start of the first block in the samples."""
    samples = next(folder.glob("samples_*.jsonl"))
    row = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
    return int(float(row["filtered_resps"][0][0][0]))


def collect(folder: Path, target: Path) -> None:
    """Write the block sums of all methods of a sweep."""
    found = list(cells(folder))
    windows: dict[str, dict[str, Any]] = {"short": {}, "trained": {}}
    for place, cell in found:
        if cell["method"]["name"] == SHORT_WINDOWS:
            for read in windows:
                windows[read] |= losses(place, read)
    rows = []
    for place, cell in found:
        if cell["method"]["name"] == SHORT_WINDOWS:
            continue
        begin = first_position(place)
        for text, full in sorted(losses(place, "full").items()):
            rows += block_rows(cell["method"]["name"], text, begin, full, windows)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def block_rows(
    method: str, text: str, begin: int, full: np.ndarray[Any, Any], windows: Mapping[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """Rows of the CSV of one text."""
    short = windows["short"].get(text)
    if short is None or short.shape != full.shape:
        sys.exit(f"Error: {text}: no short windows of the same tokens")
    sums, tokens = block_sums(full)
    gain, _ = block_sums(clipped_gain(short, full))
    trained = windows["trained"].get(text)
    over = clipped_gain(trained, full) if trained is not None else np.full(full.shape, np.nan)
    trained_gain, _ = block_sums(over)
    corpus = text.removeprefix("effective_context_").split("_")[0]
    start = begin + np.cumsum(tokens) - tokens
    for values in zip(start, tokens, sums, gain, trained_gain, strict=True):
        at, size, *nats = values
        shown = ("" if np.isnan(each) else f"{each:.3f}" for each in nats)
        yield (method, corpus, text.rsplit("_", 1)[-1], int(at), int(size), *shown)


def read(name: str) -> dict[str, list[Text]]:
    """Texts of each method in a committed file."""
    by_text: dict[tuple[str, str, str], list[list[float]]] = {}
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["method"], row["corpus"], row["text"]
            numbers = [float(row[column] or "nan") for column in COLUMNS[3:]]
            by_text.setdefault(key, []).append(numbers)
    methods: dict[str, list[Text]] = {}
    for (method, corpus, text), rows in by_text.items():
        methods.setdefault(method, []).append(Text(corpus, text, *np.array(rows).T))
    return methods


def blocks_of(texts: Sequence[Text], column: str) -> Blocks:
    """All blocks that have a value in a column."""
    values = [getattr(each, column) for each in texts]
    known = [~np.isnan(each) for each in values]
    return Blocks(
        np.concatenate([np.full(int(k.sum()), i) for i, k in enumerate(known)]),
        np.concatenate([(t.start + t.tokens)[k] for t, k in zip(texts, known, strict=True)]),
        np.concatenate([v[k] for v, k in zip(values, known, strict=True)]),
        np.concatenate([t.tokens[k] for t, k in zip(texts, known, strict=True)]),
    )


def difference(texts: Sequence[Text], base: Sequence[Text], first: int, last: int) -> str:
    """Loss minus that of another method between two positions, nats a token, with its interval.

    Bold where one-sided tests with 5 % over both sides tell the two apart, blocks as units.
    """
    other = {each.name: each for each in base}
    pairs = [replace(each, gain=each.full - other[each.name].full) for each in texts]
    part = blocks_of(pairs, "gain").within(first, last)
    if not part.tokens.size:
        return "–"
    mean = part.gain.sum() / part.tokens.sum()
    low, high = (
        side * SkewedMean.of(side * part.gain, part.tokens).lower_bound(LEVEL / 2)
        for side in (1.0, -1.0)
    )
    text = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def answer(texts: Sequence[Text]) -> tuple[EffectiveContext, Blocks]:
    """The estimator's answer on some texts, and their blocks."""
    blocks = blocks_of(texts, "gain")
    edges = bin_edges(int(min(each.start[0] for each in texts)), int(blocks.end.max()))
    later = blocks_of(texts, "trained_gain")
    longer = (TRAINED, later) if later.tokens.size else None
    return effective_context(blocks, edges, longer=longer), blocks


def how_far(length: Length) -> str:
    """Up to where no degradation is shown, and what is refused, in words."""
    words = f"{length.shown:,}" if length.shown > length.start else "not shown"
    if length.refused is not None:
        return f"{words}; degradation by {length.refused:,}"
    return words if length.shown == length.measured else f"{words}; not decided beyond"


def table(name: str, base: str, spans: Sequence[tuple[int, int]]) -> str:
    """A row for each method."""
    methods = read(name)
    heads = [f"{first // 1024}–{last // 1024}K" for first, last in spans]
    against = f"against {TITLES[base]}, "
    head = [
        "Method",
        "No degradation up to",
        "breaks near",
        "texts agree",
        *(against + h for h in heads),
    ]
    rows = [head, ["---"] * 4 + ["---"] * len(heads)]
    for method, texts in sorted(methods.items(), key=lambda item: total_loss(item[1])):
        found, blocks = answer(texts)
        length = found.no_degradation
        looked_at = length if length.shown > length.start else replace(length, shown=TRAINED)
        agree, of = texts_that_agree(blocks, looked_at)
        broken = break_position(blocks) if length.refused is not None else None
        rows.append([
            TITLES.get(method, method),
            how_far(length),
            "–" if broken is None else f"{broken:,}",
            f"{agree} of {of}",
            *("" if method == base else difference(texts, methods[base], *s) for s in spans),
        ])  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def total_loss(texts: Sequence[Text]) -> float:
    """Mean nats a token of the full reads."""
    return float(sum(t.full.sum() for t in texts) / sum(t.tokens.sum() for t in texts))


TABLES = {"16k": ("yarn", ((2048, 8192), (8192, 12288), (12288, 16384)))}
TABLES |= {"32k": ("yarn", ((2048, 8192), (8192, 16384), (16384, 32768)))}


def figure(name: str) -> Any:
    """Gain by position, frequency methods left and position maps right, RoPE and YaRN in both."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from leval_harness.figures.style import RC, method_looks

    maps = ("self_extend", "dual_chunk", "rerope", "log_n_yarn")
    methods = read(name)
    looks = method_looks(methods)
    groups = {
        "Methods that change frequencies": [m for m in methods if m not in maps],
        "Methods that change positions": [m for m in methods if m in ("rope", "yarn", *maps)],
    }
    with rc_context(RC):
        picture = Figure(figsize=(10, 4.2), layout="constrained")
        panels = picture.subplots(1, 2, sharex=True, sharey=True)
        for axes, (title, members) in zip(panels, groups.items(), strict=True):
            for method in members:
                bins = answer(methods[method])[0].bins
                axes.plot(
                    [(each.start + each.end) / 2 for each in bins],
                    [each.gain for each in bins],
                    **{**looks[method], "label": TITLES.get(method, method)},
                    markersize=4,
                )
            axes.axhline(0, color="black", linewidth=1)
            axes.axhline(-MARGIN, color="black", linewidth=0.8, linestyle=":")
            axes.axvline(TRAINED, color="#555555", linewidth=0.9, linestyle="--")
            axes.set_ylim(-0.11, 0.06)  # linear interpolation lies below at all positions
            axes.set_title(title, loc="left")
            axes.set_xlabel("Position in the text (tokens); dashed: trained length")
            axes.legend(fontsize=7, loc="lower left", ncols=2)
        panels[0].set_ylabel("NLL gain over the unscaled model's\nwindows of 2,048, nats/token")
    return picture


def tables() -> dict[str, str]:
    """Name of a committed set -> its table."""
    return {
        name: table(name, *spans)
        for name, spans in TABLES.items()
        if (DATA / f"{name}.csv").is_file()
    }


def write() -> None:
    """Put the tables between their markers in the report, and draw the figures."""
    text = REPORT.read_text(encoding="utf-8")
    for name, made in tables().items():
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = text.split(begin)
        text = before + begin + made + end + rest.split(end)[1]
        target = FIGURES / f"methods_{name}.svg"
        figure(name).savefig(target, metadata={"Date": None})
    REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["collect", folder, name] if name in TABLES:
            collect(Path(folder), DATA / f"{name}.csv")
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)
