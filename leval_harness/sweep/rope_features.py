"""Wavelengths and feature gaps of a cell's RoPE settings, written beside its results.

Figures are drawn where no torch is installed, so the cell's process leaves the numbers.
"""

import logging
from pathlib import Path
from typing import Any

from leval_border.files import write_json
from leval_harness.backends import libraries
from leval_harness.cell_record import CellRecord
from leval_harness.layout import FEATURES, SCHEMA_VERSION
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.model_config.family import windowed
from resonance_vllm.model_config.model_positions import ModelPositions
from resonance_vllm.model_config.overrides import hf_overrides

log = logging.getLogger("leval_harness.sweep.cell")

MULTIPLES = (2, 4, 8, 16, 32)
MOST_POSITIONS = 2**17
"""Beyond twice the trained length, gaps are computed up to this many positions (one second)."""


def write_features(cell: CellRecord, folder: Path) -> None:
    """Write `FEATURES` into a folder, for a model whose RoPE settings are known."""
    if cell.model.backend not in libraries():
        return
    try:
        model = ModelPositions.of_checkpoint(cell.model.path)
        parameters = cell.method.rope_parameters
        rope = model.shipped() if parameters is None else RopeSpec.from_dict(parameters)
        overrides = {} if parameters is None else hf_overrides(rope, model)
        dim = _rotated_dimensions(rope, cell.model.path, overrides)
        original = rope.trained_length or model.original_length
        content = features(rope, dim, original, cell.context_length)
        write_json(folder / FEATURES, {"schema_version": SCHEMA_VERSION, **content})
    except Exception as error:  # noqa: BLE001 - a picture must cost no result
        log.warning("no picture of the RoPE features: %s", error)


def features(rope: RopeSpec, dim: int, original: int, context_length: int | None) -> dict[str, Any]:
    """Wavelengths and feature gaps of complete settings on a model.

    Args:
        rope: the settings.
        dim: rotated dimensions of a head.
        original: trained length `L` in tokens.
        context_length: length in tokens for which a method that follows the length is described.

    Returns:
        `wavelengths` in tokens of the features that turn, at most `dim/2`; `feature_gap[s]`, for
        each multiple `s` of the trained length `L`, their gaps between positions below `L` and
        those up to `s*L`.
    """
    from resonance_vllm.core import frequencies
    from resonance_vllm.core.features import feature_gap

    lengths = frequencies.wavelengths(rope, dim, context_length)
    turning = lengths.isfinite()  # CoPE and `proportional` have features that stand still
    return {
        "head_dim": dim,
        "original_max_position_embeddings": original,
        "context_length": context_length,
        "attention_factor": rope.method.scale(),
        "critical_dimension": frequencies.critical_dimension(lengths, original),
        "wavelengths": lengths[turning].tolist(),
        "feature_gap": {
            str(s): feature_gap(rope, dim, original, s, context_length)[turning].tolist()
            for s in MULTIPLES
            if s == MULTIPLES[0] or s * original <= MOST_POSITIONS
        },
    }


def _rotated_dimensions(rope: RopeSpec, path: str, overrides: dict[str, Any]) -> int:
    """Rotated dimensions of a head, as transformers builds the model.

    Raises:
        RopeConfigError: the model has no RoPE, or other frequencies than the settings describe.
    """
    from resonance_vllm.core import frequencies
    from resonance_vllm.core.errors import RopeConfigError
    from resonance_vllm.hf.build import report_of_checkpoint

    modules = report_of_checkpoint(path, overrides)
    module = next((each for each in modules if not windowed(each.layer_type)), modules[0])
    dim = 2 * len(module.inv_freq)
    expected = frequencies.inv_freq(rope, dim).tolist()
    if any(abs(a - b) > 1e-5 * b for a, b in zip(module.inv_freq, expected, strict=True)):
        raise RopeConfigError(f"{module.module} has frequencies of its own")
    return dim
