"""What transformers builds for a checkpoint, seen without reading its weights."""

from collections.abc import Mapping

import transformers

from resonance_vllm.checkpoint.overrides import with_rope
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.spec import RopeSpec
from resonance_vllm.hf.apply import install_rotations, settings_to_write
from resonance_vllm.hf.building import build_on_meta, code_errors_of
from resonance_vllm.hf.position_table import refuse_beyond_position_table
from resonance_vllm.hf.registry import register
from resonance_vllm.verify import RotaryReport


def report_of_checkpoint(
    path: str, rope: RopeSpec | None = None, limit: int | None = None
) -> list[RotaryReport]:
    """Return what the rotary modules rotate by that transformers builds for a checkpoint.

    Args:
        path: Checkpoint folder or hub name.
        rope: Complete settings; None inspects the unmodified checkpoint.
        limit: Longest sequence in tokens that will be used.

    Returns:
        One report per rotary module and layer type.

    Raises:
        RopeConfigError: transformers does not know the model, its modules do not rotate as
            requested, it has none, or it has learned fewer positions than `limit`.
    """
    register()
    config = read_config(path)
    if isinstance(config, Mapping):
        raise RopeConfigError(
            f"transformers {transformers.__version__} does not know model type "
            f"{config.get('model_type')!r}"
        )
    spec = settings_to_write(rope, config)
    if spec is not None:
        with_rope(config, spec, limit)
    with code_errors_of(type(config)):
        model = build_on_meta(config)
    refuse_beyond_position_table(model, limit)
    reports = install_rotations(model, spec, "model")
    if not reports:
        raise RopeConfigError(f"{type(config).__name__} builds no rotary module")
    return reports
