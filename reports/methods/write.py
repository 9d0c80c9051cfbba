"""How far a model reads under each method: the tables and figure of docs/reports/methods.md.

    python benchmarks/methods_report.py

They are made from the files of docs/reports/data/methods, which benchmarks/methods_data.py collects
from the results of sweeps.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from generated import fill
from leval_tasks.statistics.skewed_t import MARGIN, SkewedMean
from methods_data import DATA, TUNED, UNSCALED

from leval_tasks.statistics.effective_context import (
    Blocks,
    EffectiveContext,
    Length,
    bin_edges,
    break_position,
    effective_context,
    texts_that_agree,
)

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/reports/methods.md"
FIGURES = ROOT / "docs/figures"
NUMBERS = ("start", "tokens", "full", "gain", "trained_gain")
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


def read(name: str) -> dict[str, list[Text]]:
    """Texts of each method in a committed file."""
    by_text: dict[tuple[str, str, str], list[list[float]]] = {}
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["method"], row["corpus"], row["text"]
            numbers = [float(row[column] or "nan") for column in NUMBERS]
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
    """Loss minus that of another method between two positions, nats/token, with its interval.

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
    against = f"against {TITLES[base].split(' (')[0]}, "
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
            title(method),
            how_far(length),
            "–" if broken is None else f"{broken:,}",
            f"{agree} of {of}",
            *against_base(methods, method, base, spans),
        ])  # fmt: skip
    return lines(rows)


def lines(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def title(method: str) -> str:
    """What a row is called."""
    known = TITLES.get(method.removesuffix(TUNED), method)
    return f"{known}, fine-tuned" if method.endswith(TUNED) else known


def against_base(
    methods: Mapping[str, list[Text]], method: str, base: str, spans: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """A row's differences from the base method of the same checkpoint."""
    base += TUNED if method.endswith(TUNED) else ""
    for span in spans:
        yield "" if method == base else difference(methods[method], methods[base], *span)


def tuning_table() -> str:
    """What the fine-tuning changed, by method and position."""
    methods, spans = read("finetuned"), TABLES["finetuned"][1]
    rows = [["Method", *(f"{first // 1024}–{last // 1024}K" for first, last in spans)]]
    rows.append(["---"] * len(rows[0]))
    for method in methods:
        if tuned := methods.get(method + TUNED):
            changes = [difference(tuned, methods[method], *span) for span in spans]
            rows.append([title(method), *changes])
    return lines(rows)


def needles_table() -> str:
    """Needles found at each length, beside the effective context length of the same method."""
    found: dict[str, dict[int, list[float]]] = {}
    with (DATA / "needles.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            scores = found.setdefault(row["method"], {}).setdefault(int(row["length"]), [])
            scores.append(float(row["score"]))
    texts = read("finetuned") | read("16k")
    lengths = sorted({length for each in found.values() for length in each})
    rows = [["Method", *(f"needles, {n // 1024}K" for n in lengths), "No degradation up to"]]
    rows.append(["---"] * len(rows[0]))
    for method, by_length in sorted(found.items(), key=lambda item: -total_needles(item[1])):
        scores = [by_length.get(length, []) for length in lengths]
        counts = [f"{sum(each):g} of {len(each)}" if each else "–" for each in scores]
        rows.append([title(method), *counts, how_far(answer(texts[method])[0].no_degradation)])
    return lines(rows)


def total_needles(by_length: Mapping[int, Sequence[float]]) -> float:
    """Needles found at all lengths."""
    return sum(map(sum, by_length.values()))


def total_loss(texts: Sequence[Text]) -> float:
    """Mean nats/token of the full reads."""
    return float(sum(t.full.sum() for t in texts) / sum(t.tokens.sum() for t in texts))


TABLES = {"16k": ("yarn", ((2048, 8192), (8192, 12288), (12288, 16384)))}
TABLES |= {"32k": ("yarn", ((2048, 8192), (8192, 16384), (16384, 32768)))}
TABLES |= {"finetuned": (UNSCALED, TABLES["16k"][1])}
OTHER_TABLES = {"tuning": ("finetuned", tuning_table), "needles": ("needles", needles_table)}
"""Name of a table -> the committed set that it needs, and what makes it."""
WITH_FIGURE = ("16k", "32k")


def figure(name: str) -> Any:
    """Gain by position, frequency methods left and position remapping right, RoPE and YaRN in both."""
    from leval_harness.old_figures.style import RC, method_looks
    from matplotlib import rc_context
    from matplotlib.figure import Figure

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
        for axes, (heading, members) in zip(panels, groups.items(), strict=True):
            for method in members:
                bins = answer(methods[method])[0].bins
                axes.plot(
                    [(each.start + each.end) / 2 for each in bins],
                    [each.gain for each in bins],
                    **{**looks[method], "label": title(method)},
                    markersize=4,
                )
            axes.axhline(0, color="black", linewidth=1)
            axes.axhline(-MARGIN, color="black", linewidth=0.8, linestyle=":")
            axes.axvline(TRAINED, color="#555555", linewidth=0.9, linestyle="--")
            axes.set_ylim(-0.11, 0.06)  # linear interpolation lies below at all positions
            axes.set_title(heading, loc="left")
            axes.set_xlabel("Position in the text (tokens); dashed: native context length")
            axes.legend(fontsize=7, loc="lower left", ncols=2)
        panels[0].set_ylabel("NLL gain over the unscaled model's\nwindows of 2,048, nats/token")
    return picture


def tables() -> dict[str, str]:
    """Name of a table -> the table, for all whose data are committed."""
    made = {name: table(name, *TABLES[name]) for name in TABLES if committed(name)}
    return made | {name: make() for name, (data, make) in OTHER_TABLES.items() if committed(data)}


def committed(name: str) -> bool:
    """Whether a set is there."""
    return (DATA / f"{name}.csv").is_file()


def save_figure(name: str, folder: Path = FIGURES) -> None:
    """The same data give the same file."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": name}):
        figure(name).savefig(folder / f"methods_{name}.svg", metadata={"Date": None})


def write() -> None:
    """Put the tables between their markers in the report, and draw the figures."""
    fill(REPORT, tables())
    for name in filter(committed, WITH_FIGURE):
        save_figure(name)


if __name__ == "__main__":
    write()
