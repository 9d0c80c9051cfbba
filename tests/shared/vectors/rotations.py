"""The rotations that a config.json describes, in one spelling."""

from typing import Any

Settings = dict[str, Any]


def rotations(config: Settings) -> dict[str | None, Settings]:
    """Layer type -> its settings in one spelling; None where all layers rotate alike."""
    shipped: Settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base: Any = shipped.get(
        "rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000))
    )
    sliding: Settings = {"rope_type": "default"}
    if "full_attention" in shipped:
        return {layers: _complete(rope, config, base) for layers, rope in shipped.items()}
    if config["model_type"].startswith("gemma3"):
        sliding["rope_theta"] = config["rope_local_base_freq"]
    elif config["model_type"] == "olmo3":
        sliding["rope_theta"] = base  # YaRN in full attention alone
    elif "swa_rope_theta" in config:
        sliding["rope_theta"] = config["swa_rope_theta"]
    elif "local_rope_theta" in config:
        base, sliding["rope_theta"] = config["global_rope_theta"], config["local_rope_theta"]
    full = _complete(shipped, config, base)
    return (
        {"full_attention": full, "sliding_attention": sliding} if len(sliding) > 1 else {None: full}
    )


def _complete(shipped: Settings, config: Settings, base: float) -> Settings:
    """Settings with the base, the type's new name, and the lengths that the config implies."""
    kind: Any = shipped.get("rope_type", shipped.get("type", "default"))
    rope: Settings = {**shipped, "rope_type": {"su": "longrope"}.get(kind, kind)}
    rope.pop("type", None)
    rope["rope_theta"] = float(shipped.get("rope_theta", base))
    positions = config["max_position_embeddings"]
    if rope["rope_type"] in ("yarn", "llama3", "longrope", "dynamic"):
        original = config.get("original_max_position_embeddings", positions)
        rope.setdefault("original_max_position_embeddings", original)
    if rope["rope_type"] == "longrope":
        rope.setdefault("factor", positions / rope["original_max_position_embeddings"])
    return rope


def rotated(config: Settings, rope: Settings) -> int:
    """Dimensions of a head that rotate; of the whole head for `proportional`."""
    head: Any = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if rope["rope_type"] == "proportional":
        return int(config.get("global_head_dim", head))
    for fixed in ("qk_rope_head_dim", "rotary_dim"):
        if fixed in config:
            return int(config[fixed])
    share: Any = config.get("partial_rotary_factor", config.get("rotary_pct", 1.0))
    return int(head * rope.get("partial_rotary_factor", share))
