"""What other engines will rotate by: llama.cpp for a GGUF file, mlx-lm for a folder.

`against` compares that with what transformers builds for the original checkpoint, by the comparison
of the test vectors.
"""

import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.core.method import Method
from resonance_vllm.core.methods import NtkAware
from resonance_vllm.core.spec import METHODS
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.files import parse_json
from resonance_vllm.settings import read
from resonance_vllm.vectors import rope_vectors
from resonance_vllm.verify import NoRope

GGUF, MLX = "llama.cpp", "mlx-lm"
MLX_RULES = "0.32.2"
"""The release of mlx-lm whose rules are used where it is not installed."""

Settings = dict[str, Any]
Held = dict[str | None, dict[str, Any]]
"""Layer type, None for all, -> `inv_freq` and `attention_factor`."""


def engine_of(path: str) -> str | None:
    """The engine that a file or folder is for; None for a checkpoint of transformers."""
    place = Path(path)
    if place.suffix == ".gguf":
        return GGUF
    config = place / "config.json"
    if not config.is_file():
        return None
    content = parse_json(config.read_bytes(), str(config), RopeConfigError)
    return MLX if isinstance(content, dict) and "quantization" in content else None


def held(path: str, length: int | None = None) -> Held:
    """What the engine will run, by layer type.

    Args:
        path: a GGUF file, or a folder that mlx-lm converted.
        length: of the context in tokens, which decides between LongRoPE's factors; None is the
            trained length.

    Raises:
        RopeConfigError: the file cannot be read, or the engine's rule is not known.
    """
    return _of_gguf(Path(path), length) if engine_of(path) == GGUF else _of_mlx(Path(path), length)


def against(path: str, original: str, length: int | None = None) -> list[str]:
    """Where this differs from the original checkpoint, as sentences.

    Args:
        path: as in `held`.
        original: checkpoint folder or hub name, as transformers reads it.
        length: as in `held`.
    """
    from resonance_vllm.hf import report_of_checkpoint

    ours: Held = {}
    for report in report_of_checkpoint(original):
        ours[report.layer_type] = {
            "inv_freq": [theta for theta in report.inv_freq if theta] or list(report.inv_freq),
            "attention_factor": report.attention_factor,
        }
    theirs, lines = held(path, length), []
    for layer_type, expected in ours.items():
        where = "" if layer_type is None else f" of {layer_type}"
        found = theirs.get(layer_type, theirs.get(None))
        if found is None:
            lines.append(f"layers: {original} has a rotation{where}, {path} has none")
            continue
        turning = {**found, "inv_freq": [theta for theta in found["inv_freq"] if theta]}
        outcome = rope_vectors.compare(expected, turning)
        if outcome.status != rope_vectors.RIGHT:
            lines.append(f"rotation{where}: {outcome.text}, from position {outcome.position}")
    return lines


def _of_gguf(file: Path, length: int | None) -> Held:
    """Keys and tensors as `llama-model.cpp` and `ggml_rope_ext` use them."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError(f"{error}: reading a GGUF file needs: pip install gguf") from error
    try:
        reader = GGUFReader(file)
    except (OSError, ValueError) as error:
        raise RopeConfigError(f"model: {file} cannot be read as GGUF: {error}") from error
    keys = {name: field.contents() for name, field in reader.fields.items()}
    prefix = f"{keys['general.architecture']}."
    own = {name.removeprefix(prefix): v for name, v in keys.items() if name.startswith(prefix)}
    if own.get("rope.scaling.yarn_log_multiplier"):
        raise NoRope(f"{prefix[:-1]}: its attention factor follows from yarn_log_multiplier")
    if "embedding_length" not in own:
        raise RopeConfigError(f"model: {file} has no keys of a language model")
    tensors = {t.name: t.data.tolist() for t in reader.tensors if "rope" in t.name}
    full = _llama_cpp(own, tensors, own.get("rope.freq_base", 10000.0), length)
    local = own.get("rope.freq_base_swa")
    if local is None:
        return {None: full}
    plain = {"rope.dimension_count": own.get("rope.dimension_count"), **_sizes(own)}
    return {"full_attention": full, "sliding_attention": _llama_cpp(plain, {}, local, length)}


def _sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    names = ("attention.key_length", "embedding_length", "attention.head_count", "context_length")
    return {name: own[name] for name in names if name in own}


def _llama_cpp(
    own: Mapping[str, Any], tensors: Mapping[str, list[float]], base: float, length: int | None
) -> dict[str, Any]:
    """One rotation; YaRN's ramp is always rounded outward, and its betas are 32 and 1."""
    head = own.get("attention.key_length")
    dim = int(own.get("rope.dimension_count") or head or _head(own))
    kind = own.get("rope.scaling.type", "linear")
    trained = own.get("rope.scaling.original_context_length") or own["context_length"]
    factor = own.get("rope.scaling.factor") or own.get("rope.scale_linear") or 1.0
    rope = {"rope_theta": base, "factor": factor, "original_max_position_embeddings": trained}
    scale = own.get("rope.scaling.attn_factor", 1.0)
    method = _method({**rope, "rope_type": kind if kind in ("linear", "yarn") else "default"})
    frequencies = method.frequencies(dim).tolist()
    if kind == "yarn":
        scale *= 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    # Tensors count under any scaling type; Phi-3's converter writes them without one.
    side = "long" if (length or own["context_length"]) > trained else "short"
    names = ("rope_freqs.weight", f"rope_factors_{side}.weight")
    divisors = [v for name in names for key, v in tensors.items() if key.endswith(name)]
    divisors.append([1.0] * (dim // 2))
    turned = [theta / d for theta, d in zip(frequencies, divisors[0], strict=True)]
    return {"inv_freq": turned, "attention_factor": scale}


def _head(own: Mapping[str, Any]) -> int:
    return int(own["embedding_length"]) // int(own["attention.head_count"])


def _of_mlx(folder: Path, length: int | None) -> Held:
    """What mlx-lm builds, where it is installed; else by the rules of `MLX_RULES`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {**config, **config.get("text_config", {})}
    found: Held = {}
    for layer_type, rope in rotations(config).items():
        dim, tokens = rotated(config, rope), length or config["max_position_embeddings"]
        if importlib.util.find_spec("mlx_lm") is not None:
            vector = {
                "config": config, "layer_type": layer_type, "rotary_dim": dim, "positions": [1],
                "length": tokens,
            }  # fmt: skip
            found[layer_type] = rope_vectors.adapter("mlx_lm").read(vector)
            continue
        if "rope_parameters" in config:
            raise NoRope(
                f"whether mlx-lm reads rope_parameters depends on the model type "
                f"{config['model_type']!r}: pip install mlx-lm to see"
            )
        left_out = ("truncate", "attention_factor")
        rope = {key: value for key, value in rope.items() if key not in left_out}
        if rope["rope_type"] == "longrope":
            rope["short_factor"] = rope["long_factor"]
        method = _method(rope)
        frequencies = method.frequencies(dim, tokens).tolist()
        found[layer_type] = {"inv_freq": frequencies, "attention_factor": method.scale()}
    return found


def _method(rope: Mapping[str, Any]) -> Method:
    """The method of a dictionary that may hold keys of other methods, or 0 for none."""
    if "alpha" in rope:  # HunYuan's dynamic, with a fixed base
        return NtkAware(rope_theta=rope["rope_theta"], factor=rope["alpha"])
    kind = METHODS[rope["rope_type"]]
    return read(kind, {k: rope[k] for k in kind.key_names() if rope.get(k)}, error=RopeConfigError)


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
