"""Methods that give a model a shorter context than it has without them."""

import json
from collections.abc import Iterator

import pandas as pd

from leval_harness.report.number_text import tokens_text

ORIGINAL = "original_max_position_embeddings"

STATED_LENGTH = ("llama3", "dynamic")
"""RoPE types whose longest sequence is not the original length times the factor."""


def shortening_sentences(part: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each method whose factor ends below the native context length.

    YaRN ×4 from 32,768 tokens on a model of 262,144 is an example: its limit is 131,072.

    Args:
        part: the rows of one model in the compared frame.
    """
    if "rope" not in part or "claimed_length" not in part:
        return
    known = part.dropna(subset=["rope", "claimed_length"])
    for _, row in known.drop_duplicates(["label", "rope", "claimed_length"]).iterrows():
        limit = _limit(row["rope"])
        native_length = int(row["claimed_length"])
        if limit is not None and limit < native_length:
            yield (
                f"{row['label']} limits the model to {tokens_text(limit)} tokens, below its native "
                f"context length of {tokens_text(native_length)}."
            )


def _limit(rope: str) -> int | None:
    """Return the length that RoPE settings are made for: original length times factor."""
    settings = json.loads(rope)
    if not isinstance(settings, dict):
        return None
    rope_type = str(settings.get("rope_type", "")).removeprefix("resonance_")
    original = settings.get(ORIGINAL)
    factor = settings.get("factor")
    if rope_type in STATED_LENGTH or not original or not factor:
        return None
    return int(original * factor)
