"""What a model's config.json says of its positions. Standard library only at import."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.core.errors import RopeConfigError

GLOBAL_LAYERS = "full_attention"


def read_config(model_path: str) -> dict[str, Any]:
    """config.json of a local checkpoint, or of a hub model that transformers can find.

    Raises:
        OSError: there is none.
    """
    path = Path(model_path) / "config.json"
    if path.is_file():
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return loaded
    from transformers import AutoConfig

    converted: dict[str, Any] = AutoConfig.from_pretrained(model_path).to_dict()
    return converted


def own_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's own settings as one flat dictionary; of several layer types the global one.

    Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if GLOBAL_LAYERS in rope:
        rope = rope[GLOBAL_LAYERS] or {}
    result = dict(rope)
    result.setdefault("rope_type", result.pop("type", None) or "default")
    result.pop("type", None)
    for key in ("rope_theta", "partial_rotary_factor"):
        if result.get(key) is None and config.get(key) is not None:
            result[key] = config[key]
    return result


def check_family(config: Mapping[str, Any]) -> None:
    """Raise RopeConfigError for a model whose positions our settings cannot describe."""
    model = config.get("model_type", "unknown")
    if config.get("kv_lora_rank") is not None or config.get("qk_rope_head_dim") is not None:
        raise RopeConfigError(
            f"model_type: {model!r} uses multi-head latent attention (MLA), whose rotary part both "
            "libraries build in their own way; allowed: models with one RoPE over the whole head"
        )
    if "mrope_section" in own_rope(config):
        raise RopeConfigError(
            f"model_type: {model!r} uses multi-axis RoPE (mrope_section); allowed: models with one "
            "position a token"
        )
    if "text_config" in config and "rope_parameters" not in config:
        raise RopeConfigError(
            f"model_type: {model!r} nests its language model in text_config; allowed: text-only "
            "checkpoints"
        )


def max_positions(config: Mapping[str, Any]) -> int:
    """`max_position_embeddings` of a config, or RopeConfigError if it has none."""
    value = config.get("max_position_embeddings")
    if not isinstance(value, int):
        raise RopeConfigError(
            f"max_position_embeddings: {value!r} in the model's config; allowed: an integer"
        )
    return value


def original_length(config: Mapping[str, Any]) -> int:
    """Trained length `L` of a model in tokens, as its config tells."""
    for value in (
        own_rope(config).get("original_max_position_embeddings"),
        config.get("original_max_position_embeddings"),
    ):
        if value is not None:
            return int(value)
    return max_positions(config)


def rotary_dim(config: Mapping[str, Any], rope: Mapping[str, Any] | None = None) -> int:
    """Rotated dimensions of a head."""
    head_dim = config.get("head_dim")
    if head_dim is None:
        if not config.get("hidden_size") or not config.get("num_attention_heads"):
            raise RopeConfigError("head_dim: not in the model's config; allowed: an integer")
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    share = (rope or own_rope(config)).get("partial_rotary_factor") or 1.0
    return int(head_dim * share)
