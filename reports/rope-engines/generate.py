"""Write `rope_vectors.json`: `python reports/rope-engines/generate.py`.

The numbers are those of `closed_forms.py`, which shares no line with the product.
"""

import json
import math
from pathlib import Path
from typing import Any

from cases import ALPHA, SOURCES, Case, cases
from closed_forms import angle, attention_factor, rotation

FILE = Path(__file__).with_name("rope_vectors.json")
VERSION = 1
DIGITS = 10
"""Significant digits of cos and sin; frequencies have all of float64's."""


def vector(case: Case) -> dict[str, Any]:
    """A case with what its formula gives, as the schema describes it."""
    frequencies, wavelengths = rotation(case.rope, case.dim, case.length)
    scale = attention_factor(case.rope, case.length)
    positions = positions_of(case)
    turns = wavelengths or [0] * len(frequencies)
    angles = [[angle(p, *each) for each in zip(frequencies, turns, strict=True)] for p in positions]
    base = case.method.removeprefix("resonance_")
    sources = [ALPHA if "alpha" in case.rope else SOURCES[base]]
    if case.method.startswith("resonance_"):
        sources.append(SOURCES["resonance"])
    result = {
        "id": case.id, "group": case.group, "method": case.method, "topic": case.topic,
        "config": case.config,
        "config_source": case.source, "layer_type": case.layer_type, "length": case.length,
        "served_length": case.served, "rope": case.rope, "rotary_dim": case.dim,
        "formula": "; ".join(sources), "inv_freq": frequencies, "attention_factor": scale,
        "positions": positions,
        "cos": [[_short(scale * math.cos(a)) for a in row] for row in angles],
        "sin": [[_short(scale * math.sin(a)) for a in row] for row in angles],
    }  # fmt: skip
    if wavelengths:
        result["wavelengths"] = wavelengths
    if case.also_valid:
        result["also_valid"] = dict(
            zip(("attention_factor", "source"), case.also_valid, strict=True)
        )
    return result


def positions_of(case: Case) -> list[int]:
    """Up to four positions: the second, both sides of the native context length, the last."""
    trained = case.rope.get("original_max_position_embeddings", case.length)
    return sorted({p for p in (1, trained - 1, trained, case.length - 1) if p < case.length})


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def text() -> str:
    """The file's content, a vector a line."""
    head = {"format": "rope-vectors", "version": VERSION, "schema": "rope_vectors.schema.json"}
    lines = ",\n".join(json.dumps(vector(case)) for case in cases())
    return f'{json.dumps(head)[:-1]}, "vectors": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
