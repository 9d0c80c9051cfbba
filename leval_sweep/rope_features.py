"""What a cell's RoPE settings do to every feature, written beside its results.

Figures are drawn where no torch is, so the cell's process, which has it, leaves the numbers.
"""

import logging
from pathlib import Path
from typing import Any

from leval_backends import libraries
from leval_border.files import write_json
from leval_leaderboard.cell_record import CellRecord
from leval_leaderboard.layout import FEATURES, SCHEMA_VERSION
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.positions import ModelPositions

log = logging.getLogger("leval_sweep.cell")

MULTIPLES = (2, 4, 8, 16, 32)
MOST_POSITIONS = 2**17
"""Beyond twice the trained length gaps are looked for up to so many positions: a second's work."""


def features(rope: RopeSpec, model: ModelPositions, context_length: int | None) -> dict[str, Any]:
    """Wavelengths and feature gaps of complete settings on a model.

    A method that follows the length is looked at with `context_length` tokens.

    Returns:
        `wavelengths` in tokens, `[head_dim/2]`; `feature_gap[s]`, for each multiple `s` of the
        trained length `L`, the gaps between positions below `L` and those up to `s*L`.
    """
    from resonance_vllm.core import frequencies
    from resonance_vllm.core.features import feature_gap

    dim = rope.method.rotary_dim(model.rotary_dim(1.0))
    original = rope.method.trained_length or model.original_length
    lengths = frequencies.wavelengths(rope, dim, context_length)
    return {
        "head_dim": dim,
        "original_max_position_embeddings": original,
        "context_length": context_length,
        "attention_factor": rope.method.scale(),
        "critical_dimension": frequencies.critical_dimension(lengths, original),
        "wavelengths": lengths.tolist(),
        "feature_gap": {
            str(s): feature_gap(rope, dim, original, s, context_length).tolist()
            for s in MULTIPLES
            if s == MULTIPLES[0] or s * original <= MOST_POSITIONS
        },
    }


def write_features(cell: CellRecord, folder: Path) -> None:
    """Write `FEATURES` into a folder, for a model whose RoPE settings are known."""
    if cell.model.backend not in libraries():
        return
    try:
        model = ModelPositions.of_checkpoint(cell.model.path)
        asked = cell.method.rope_parameters
        rope = model.shipped() if asked is None else RopeSpec.from_dict(asked)
        content = features(rope, model, cell.context_length)
    except (ValueError, OSError, TypeError, ArithmeticError) as error:
        # a picture costs no result, whatever a model's config holds
        log.warning("no picture of the RoPE features: %s", error)
        return
    write_json(folder / FEATURES, {"schema_version": SCHEMA_VERSION, **content})
