"""The table of learned positions of models without RoPE: its rows are the longest sequence."""

from typing import Any

from torch import nn

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.hf.rotary import rotary_modules


def refuse_beyond_position_table(model: Any, length: int | None) -> None:
    """Refuse sequences that are longer than a model's table of learned positions.

    Args:
        model: A model of transformers; its parameters may be on the meta device.
        length: The longest sequence in tokens; None refuses nothing.

    Raises:
        RopeConfigError: The table has fewer positions; module, value and limit are named.
    """
    if length is None:
        return
    for name, positions in position_tables(model):
        if length > positions:
            raise RopeConfigError(
                f"context_length: {length} is above the {positions} positions of the table "
                f"{name}, which {type(model).__name__} has learned; give at most {positions}"
            )


def position_tables(model: Any) -> list[tuple[str, int]]:
    """Return names and usable positions of a model's tables of learned positions.

    A model with rotary modules has none that limits its text.
    """
    if rotary_modules(model):
        return []
    tables = []
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and ("pos" in last or last == "wpe"):
            tables.append((name, _usable_rows(module)))
    return tables


def _usable_rows(table: nn.Embedding) -> int:
    """Return the rows of a table that are for tokens.

    OPT's and BART's positions begin at an `offset`, RoBERTa's after the row for padding.
    """
    offset = getattr(table, "offset", None)
    if isinstance(offset, int):
        return table.num_embeddings - offset
    if table.padding_idx is not None:
        return table.num_embeddings - table.padding_idx - 1
    return table.num_embeddings
