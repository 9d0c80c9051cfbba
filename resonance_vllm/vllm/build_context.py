"""How vLLM's models are being built right now: for the engine, or separately from it.

The plugin's wrappers read this, and the builder sets it, so that neither needs the other.
"""

from contextvars import ContextVar
from typing import NamedTuple

import torch


class SeparateBuild(NamedTuple):
    """A model that is built without weights, to read its rotary tables.

    Attributes:
        device: Where tables are built, in float32; the rest of the model is on the meta device.
        rows: Most rows of a table.
        for_running_engine: Whether its tables go into an engine that runs.
    """

    device: torch.device
    rows: int
    for_running_engine: bool = False


current_build: ContextVar[SeparateBuild | None] = ContextVar("current_build", default=None)
"""The separate build that is running; None while vLLM builds the engine's model."""
