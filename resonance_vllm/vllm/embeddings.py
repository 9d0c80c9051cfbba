"""Rotary embeddings that `get_rope` returns for a `TaggedBase`: vLLM's, with tables of this package."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from resonance_vllm.core.frequencies import base_inv_freq, closed_form_rotation, rotation_from_base
from resonance_vllm.core.phase import cos_sin_table
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, RopeSpec
from resonance_vllm.verify import RotaryState
from resonance_vllm.vllm.build_context import current_build
from resonance_vllm.vllm.requests import SHARE
from resonance_vllm.vllm.stock_view import TaggedBase
from resonance_vllm.vllm.tables import REQUESTED, STATE, held_state, table_of

_YARN_KEYS = (
    "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate",
)  # fmt: skip


def rotary_embedding(get_rope: Any, arguments: dict[str, Any]) -> Any:
    """Return a rotary embedding with the settings that a call of vLLM's `get_rope` carries.

    They are in the call's `rope_theta`, a `TaggedBase`. vLLM's function builds the embedding, and
    its table of cos and sin is replaced by one of the settings. Where vLLM sees YaRN, it is this
    package's subclass of vLLM's YaRN. Calls with equal arguments share an embedding, as in vLLM.

    Args:
        get_rope: vLLM's own function.
        arguments: Of the call, by name and complete.
    """
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT  # vLLM's embeddings by call

    rope = arguments["rope_parameters"]
    base: TaggedBase = rope["rope_theta"]
    rows = _table_rows(base, arguments["max_position"])
    # get_rope caches by its arguments, too. A float hides its tag from that cache: without this
    # entry, an unmodified layer with the same base would share the embedding.
    marked_rope = {**rope, STATE: f"{base.spec} {rows}"}
    arguments = {**arguments, "rope_parameters": marked_rope}
    key = ("resonance_vllm", str(arguments))
    if key not in _ROPE_DICT:
        is_resonance_yarn = base.spec.method.name == rope["rope_type"] == "yarn"
        if is_resonance_yarn:
            embedding = _resonance_yarn_embedding(arguments, base, rows)
        else:
            embedding = _with_table(get_rope(**arguments), base, rows)
        setattr(embedding, REQUESTED, base.spec)
        _ROPE_DICT[key] = embedding
    return _ROPE_DICT[key]


def _table_rows(base: TaggedBase, max_position: int) -> int:
    """Return how many positions a table of cos and sin holds.

    An engine's table needs a row for every position that may be served, because vLLM's kernels
    read past the end of a shorter one. A separate build states the most rows that anybody reads.

    Args:
        base: The base of the rotation, with the rows that its settings need.
        max_position: Rows that the model file requests.
    """
    build = current_build.get()
    if build is None:
        return max(base.rows, max_position)
    return min(base.rows, build.rows)


@functools.cache
def resonance_yarn_class() -> Any:
    """Return the class of Resonance YaRN, a subclass of vLLM's YaRN."""
    from vllm.model_executor.layers.rotary_embedding import YaRNScalingRotaryEmbedding

    class ResonanceYaRNScalingRotaryEmbedding(YaRNScalingRotaryEmbedding):
        """YaRN with wavelengths rounded to integers, and exact phase (arXiv 2403.00071)."""

        def __init__(self, spec: RopeSpec, rows: int, *args: Any, **kwargs: Any) -> None:
            self.spec = spec
            self.rows = rows
            super().__init__(*args, **kwargs)

        def _compute_cos_sin_cache(self) -> torch.Tensor:
            """Return the table, float32 `[rows, rotary_dim]`: cos of every feature, then sin."""
            rounded = closed_form_rotation(self.spec, self.rotary_dim)
            scale = self.spec.method.compute_attention_factor()
            self.resonance = RotaryState(rounded.inv_freq, scale, rounded.exact)
            return cos_sin_table(rounded, scale, self.rows, device=torch.get_default_device())

    return ResonanceYaRNScalingRotaryEmbedding


def _resonance_yarn_embedding(arguments: Mapping[str, Any], base: TaggedBase, rows: int) -> Any:
    """Return an embedding of Resonance YaRN for arguments of `get_rope`."""
    rope = arguments["rope_parameters"]
    head_size = arguments["head_size"]
    rotary_dim = rope.get("rope_dim") or int(head_size * rope.get(SHARE, 1.0))
    return resonance_yarn_class()(
        base.spec,
        rows,
        head_size,
        rotary_dim,
        rope[ORIGINAL_LENGTH_KEY],
        float(base),
        arguments["is_neox_style"],
        rope["factor"],
        arguments["dtype"],
        **{key: rope[key] for key in _YARN_KEYS if key in rope},
    )


def _with_table(module: Any, base: TaggedBase, rows: int) -> Any:
    """Return a module that vLLM built, with the table of requested settings."""
    inv_freq = base_inv_freq(base.spec.method, held_state(module).inv_freq)
    requested = rotation_from_base(base.spec, inv_freq)
    scale = base.spec.method.compute_attention_factor()
    name, old_table = table_of(module)
    table = cos_sin_table(
        requested,
        scale,
        max(rows, len(old_table)),
        dtype=old_table.dtype,
        device=old_table.device,
    )
    setattr(module, name, table)
    if getattr(module, f"{name}_bf16", None) is not None:
        setattr(module, f"{name}_bf16", table.to(torch.bfloat16))
    module.base = float(module.base)  # the tag has done its work
    setattr(module, STATE, RotaryState(requested.inv_freq, scale, requested.exact))
    return module
