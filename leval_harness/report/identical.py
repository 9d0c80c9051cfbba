"""Methods whose frequencies equal the baseline's at every length that was measured."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from leval_harness.report.number_text import tokens_text

ORIGINAL = "original_max_position_embeddings"


def identity_reason(rows: pd.DataFrame, label: str, other: str) -> str:
    """Return why two methods compute the same at every length measured; empty where they may not.

    Args:
        rows: of the compared frame, of one block, the rows of runs among them.
        label: a method.
        other: the method that it is compared with.

    Returns:
        `it acts beyond 8,192 tokens`, or an empty text.
    """
    if "rope" not in rows:
        return ""
    own = rows[rows["label"].eq(label) & rows["rope"].notna()]
    if own.empty or not _is_unscaled(rows[rows["label"].eq(other)]["rope"].dropna()):
        return ""
    native_lengths = own["claimed_length"].dropna() if "claimed_length" in own else own["rope"][:0]
    native = None if native_lengths.empty else int(native_lengths.iloc[0])
    start = acts_beyond(json.loads(own["rope"].iloc[0]), native)
    lengths = [name for name in ("length", "end") if name in rows]
    longest = rows.loc[rows["label"].eq(label), lengths].max().max()
    if start is None or pd.isna(longest) or longest > start:
        return ""
    return f"it acts beyond {tokens_text(start)} tokens"


def acts_beyond(rope: Mapping[str, Any], native: int | None) -> int | None:
    """Return the length up to which RoPE settings equal plain RoPE; None where they never do.

    Dynamic NTK scales sequences that are longer than the native context length, and LongRoPE with
    `short_factor` of ones has divisors for those alone.

    Args:
        rope: complete settings of a run.
        native: the model's native context length in tokens, where the settings state none.
    """
    start = rope.get(ORIGINAL) or native
    if start is None:
        return None
    if rope.get("rope_type") == "dynamic":
        return int(start)
    is_longrope = rope.get("rope_type") == "longrope"
    if is_longrope and set(rope.get("short_factor") or [0]) == {1} and _has_no_temperature(rope):
        return int(start)
    return None


def _has_no_temperature(rope: Mapping[str, Any]) -> bool:
    """Return whether LongRoPE's settings multiply no cosine at any length."""
    return rope.get("attention_factor") == 1


def _is_unscaled(ropes: pd.Series) -> bool:
    """Return whether all RoPE settings are those of plain RoPE."""
    types = [json.loads(rope).get("rope_type", "default") for rope in ropes]
    return all(rope_type == "default" for rope_type in types)
