"""What vLLM's model files see in place of this package's settings.

Model files copy RoPE dictionaries, pick keys from them and decide by the names of types (DeepSeek's
softmax scale). So while a model is built its config has a type of vLLM's own. The base in it is a
`TaggedBase`, a float that carries the requested settings: whatever dictionary a model file makes
for `get_rope`, the base is in it.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from resonance_vllm.checkpoint.rope_dict import (
    model_specific_keys,
    rope_by_layer_type,
    unscaled_rope_type,
)
from resonance_vllm.core.spec import ORIGINAL_LENGTH_KEY, RopeSpec
from resonance_vllm.vllm.requests import SHARE, LayerRequest

AXES = "mrope_section"
"""Key of models whose positions have several axes."""
_PLAIN = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
"""With these a scaled type that a model file names by itself is plain RoPE."""


class TaggedBase(float):
    """A base of a rotation that carries the settings for which it is a placeholder.

    Attributes:
        spec: The settings.
        rows: Rows that the table needs. vLLM's kernels do not check: a position without a row
            reads foreign memory.
    """

    spec: RopeSpec
    rows: int


def stock_settings(
    rope: Mapping[str, Any], spec: RopeSpec, rows: int, unscaled: str
) -> dict[str, Any]:
    """Return the dictionary that model files see in place of requested settings.

    It is YaRN where the request is, because DeepSeek's code scales its softmax by it; not for
    positions of several axes, for which vLLM's YaRN takes another original context length. Every
    other method is plain RoPE, under the family's name for it. The dictionary is complete, because
    model files read keys without asking whether they are there.

    Args:
        rope: The requested dictionary, with the model's own keys.
        spec: The settings in it.
        rows: Positions that are served.
        unscaled: The family's type without scaling.
    """
    base = TaggedBase(spec.method.rope_theta)
    base.spec = spec
    base.rows = max(rows, spec.method.length_limit(rows))
    is_stock_yarn = spec.method.name == "yarn" and spec.method.is_stock_formula
    if is_stock_yarn and unscaled == "default" and AXES not in rope:
        settings = spec.method.to_vllm({**spec.method.to_settings(), "rope_type": "yarn"})
    else:
        original_length = spec.method.original_length or rows
        settings = {**_PLAIN, ORIGINAL_LENGTH_KEY: original_length, "rope_type": unscaled}
    settings |= model_specific_keys(rope)
    if SHARE in rope:
        settings[SHARE] = rope[SHARE]
    settings["rope_theta"] = base
    return settings


@contextlib.contextmanager
def stock_settings_in(
    config: Any, requests: Mapping[str | None, LayerRequest], served_length: int
) -> Iterator[None]:
    """Put `stock_settings` into a language model's config while a model is built.

    Args:
        config: The config, which has its own settings again afterwards.
        requests: What is requested by layer type.
        served_length: The engine's `max_model_len` in tokens.
    """
    rows = max(config.max_position_embeddings, served_length)
    settings: dict[str | None, Any] = copy.deepcopy(rope_by_layer_type(config))
    for layer_type, (spec, rope) in requests.items():
        settings[layer_type] = stock_settings(
            rope, spec, rows, unscaled_rope_type(config, layer_type)
        )
    written = settings.get(None, {**config.rope_parameters, **settings})
    # Layers that keep a rotation of their own get a table of as many rows.
    changes = {"rope_parameters": written, "max_position_embeddings": rows}
    before = {key: getattr(config, key) for key in changes}
    vars(config).update(changes)  # some config classes validate what is set
    try:
        yield
    finally:
        vars(config).update(before)
