"""The configs of the test vectors: published ones, and edge values of each method."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).with_name("published.json")
Config = dict[str, Any]

SOURCES = {
    "default": "arXiv 2104.09864, section 3.2.2",
    "linear": "arXiv 2306.15595, equation 4; transformers, _compute_linear_scaling_rope_parameters",
    "dynamic": "transformers, _compute_dynamic_ntk_parameters",
    "yarn": "arXiv 2309.00071, section 3.2; jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding; "
    "transformers, _compute_yarn_parameters",
    "llama3": "meta-llama/llama-models, apply_scaling; transformers, _compute_llama3_parameters",
    "longrope": "arXiv 2402.13753; transformers, _compute_longrope_parameters",
    "proportional": "transformers, _compute_proportional_rope_parameters",
    "ntk_aware": "bloc97's post of June 2023; arXiv 2403.00071, appendix C.2 (base_scaling: paper)",
    "yarn_wavelength": "arXiv 2403.00071, equations 5 and 6",
    "resonance": "arXiv 2403.00071, algorithm 1, on the base method",
}
"""Method -> where its formula stands."""
ALPHA = "tencent/HunYuan, modeling_hunyuan.py; transformers, HunYuanDenseV1RotaryEmbedding"
MSCALE_ALONE = (
    "mscale without mscale_all_dim: transformers and vLLM leave it out (0.1*ln(s)+1); the code of "
    "DeepSeek-V2 reads it as 0.1*mscale*ln(s)+1"
)


@dataclass(frozen=True)
class Case:
    """One rotation of one config.

    Attributes:
        id: unique name.
        group: `published`, `edge`, or `own` for types that this project adds.
        config: as an engine reads it, with small sizes where RoPE does not depend on them.
        rope: the settings in one spelling: `rope_type` and every value the formula takes.
        dim: rotated dimensions; of the whole head for `proportional`.
        length: of the sequence in tokens.
        served: the longest sequence that the engine is set up for.
        layer_type: which layers rotate so, where the config has several rotations.
        source: where the config comes from.
        also_valid: another attention factor that a reference has, and which.
    """

    id: str
    group: str
    config: Config
    rope: Config
    dim: int
    length: int
    served: int
    layer_type: str | None
    source: str
    also_valid: tuple[float, str] | None = None

    @property
    def method(self) -> str:
        """The rope type."""
        return str(self.rope["rope_type"])

    @property
    def topic(self) -> str:
        """The row of the matrix: the method, or what an engine may miss although it knows it."""
        shares = {self.config.get("partial_rotary_factor", 1.0), self.config.get("rotary_pct", 1.0)}
        if self.group == "own":
            return self.method
        if self.layer_type:
            return "rotations by layer type"
        if "rope_parameters" in self.config:
            return "`rope_parameters`, the spelling of transformers 5"
        if self.length < self.served:
            return f"{self.method}, a short text in a long window"
        if self.rope.get("truncate") is False:
            return f"{self.method}, `truncate: false`"
        if self.method == "yarn" and {"attention_factor", "mscale"} & set(self.rope):
            return "yarn, `attention_factor` and `mscale`"
        if shares != {1.0}:
            return "partial rotation"
        return self.method


def cases() -> list[Case]:
    """Every case, in the order of the file."""
    return [*_published(), *_edges(), *_own()]


def _published() -> Iterator[Case]:
    for name, entry in json.loads(PUBLISHED.read_text(encoding="utf-8")).items():
        config = entry["config"]
        for layer_type, rope in rotations(config).items():
            positions = config["max_position_embeddings"]
            identity = name if layer_type is None else f"{name}:{layer_type}"
            dim = rotated(config, rope)
            source = f"hf.co/{entry['source']}"
            for suffix, length, served in _lengths(rope, positions):
                yield Case(
                    f"{identity}{suffix}", "published", config, rope, dim, length, served,
                    layer_type, source,
                )  # fmt: skip


def _lengths(rope: Config, positions: int) -> list[tuple[str, int, int]]:
    """Suffix of the id, length and served length; more than one where frequencies depend on it."""
    original = rope.get("original_max_position_embeddings", positions)
    if rope["rope_type"] == "longrope":
        return [
            ("@short", original, original),
            ("@long", positions, positions),
            ("@short-text", original, positions),
        ]
    if rope["rope_type"] == "dynamic" and "alpha" not in rope:
        return [("@short", original, original), ("@2x", 2 * original, 2 * original)]
    return [("", positions, positions)]


def _small(rope: Config, dim: int, positions: int, spelling: str = "rope_type") -> Config:
    """A small Llama; a StableLM where a share of a head rotates, which Llama does not have.

    Args:
        rope: settings in one spelling.
        dim: of a head.
        positions: `max_position_embeddings`.
        spelling: `rope_parameters` as transformers 5 writes them, or `rope_scaling` with the type
            under `rope_type` or, before 2024, under `type`.
    """
    partial = "partial_rotary_factor" in rope
    config: Config = {
        "model_type": "stablelm" if partial else "llama",
        "architectures": ["StableLmForCausalLM" if partial else "LlamaForCausalLM"],
        "hidden_size": 2 * dim, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": dim, "max_position_embeddings": positions, "num_hidden_layers": 2,
        "vocab_size": 512, "intermediate_size": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
        "layer_norm_eps": 1e-05, "use_qkv_bias": False, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    if spelling == "rope_parameters":
        return {**config, "rope_parameters": rope}
    above = ("rope_theta", "partial_rotary_factor")
    config.update({key: rope[key] for key in above if key in rope})
    written = {key: value for key, value in rope.items() if key not in above}
    if spelling == "type":
        written["type"] = written.pop("rope_type")
    return {**config, "rope_scaling": None if rope["rope_type"] == "default" else written}


def _edges() -> Iterator[Case]:
    """Each method with edge values, on a small Llama."""
    for dim, base in (
        (16, 1e4),
        (64, 1e5),
        (80, 1e4),
        (96, 1e4),
        (128, 5e5),
        (256, 1e6),
        (64, 1e11),
    ):
        yield _edge(
            f"default-{dim}-{base:g}", {"rope_type": "default", "rope_theta": base}, dim, 4096
        )
    plain = {"rope_type": "default", "rope_theta": 5e5}
    for rope in (plain, _linear(2.0), _yarn(8.0), _dynamic(2.0), _llama3(8.0), _longrope(64)):
        kind = rope["rope_type"]
        yield _edge(f"{kind}-in-rope_parameters", rope, 64, 32768, spelling="rope_parameters")
        if kind not in ("default", "llama3"):  # llama3 came after `type` had been renamed
            yield _edge(f"{kind}-by-type", rope, 64, 32768, spelling="type")
    for factor in (1.0, 2, 8.0, 16.0):
        yield _edge(f"linear-{factor}", _linear(factor), 128, 4096)
    for factor in (1.0, 2.0, 4.0):
        for length in (2048, 4096, 4097, 8192, 16384):
            yield _edge(f"dynamic-{factor:g}@{length}", _dynamic(factor), 128, 4096, length)
    yield from _yarn_edges()
    for factor, low, high in ((1.0, 1.0, 4.0), (8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (16.0, 1.0, 1.0)):
        rope = {**_llama3(factor), "low_freq_factor": low, "high_freq_factor": high}
        for dim in (64, 128):
            yield _edge(f"llama3-{factor:g}-{low:g}-{high:g}-{dim}", rope, dim, 131072)
    yield from _longrope_edges()


def _yarn_edges() -> Iterator[Case]:
    for factor in (1.0, 2, 4.0, 32.0, 40.0):
        for truncate in (True, False):
            rope = {**_yarn(factor), "truncate": truncate}
            yield _edge(
                f"yarn-{factor:g}-truncate-{truncate}".lower(), rope, 128, 4096 * int(factor)
            )
    for fast, slow in ((64.0, 2.0), (16.0, 0.5), (1.0, 1.0), (2.0, 1.0)):
        rope = {**_yarn(8.0), "beta_fast": fast, "beta_slow": slow}
        yield _edge(f"yarn-beta-{fast:g}-{slow:g}", rope, 128, 32768)
    for base, original, dim in (
        (1.5e5, 4096, 64),
        (1e6, 32768, 128),
        (1e4, 131072, 64),
        (1e4, 256, 32),
    ):
        rope = {**_yarn(4.0), "rope_theta": base, "original_max_position_embeddings": original}
        yield _edge(f"yarn-base-{base:g}-{original}-{dim}", rope, dim, 4 * original)
    for name, keys in (
        ("attention-1", {"attention_factor": 1.0}),
        ("attention-1.5", {"attention_factor": 1.5}),
        ("mscale-equal", {"mscale": 1.0, "mscale_all_dim": 1.0}),
        ("mscale-unequal", {"mscale": 1.0, "mscale_all_dim": 0.707}),
        ("mscale-all-dim-zero", {"mscale": 1.0, "mscale_all_dim": 0.0}),
        (
            "mscale-and-attention",
            {"mscale": 0.707, "mscale_all_dim": 1.0, "attention_factor": 1.25},
        ),
    ):
        yield _edge(f"yarn-{name}", {**_yarn(4.0), **keys}, 128, 16384)
    alone = {**_yarn(4.0), "mscale": 0.707}
    other = (1 + 0.0707 * 1.3862943611198906, MSCALE_ALONE)
    yield _edge("yarn-mscale-alone", alone, 128, 16384, also_valid=other)
    for share in (0.25, 0.5, 0.75):
        rope = {**_yarn(4.0), "partial_rotary_factor": share}
        yield _edge(f"yarn-partial-{share}", rope, 128, 16384)
        plain = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
        yield _edge(f"default-partial-{share}", plain, 128, 4096)


def _longrope_edges() -> Iterator[Case]:
    for name, keys in (
        ("plain", {}),
        ("attention-1.25", {"attention_factor": 1.25}),
    ):
        rope = {**_longrope(64), **keys}
        for length, served in ((4096, 4096), (4097, 4097), (32768, 32768), (4096, 32768)):
            suffix = f"@{length}" if length == served else f"@{length}-of-{served}"
            yield _edge(f"longrope-{name}{suffix}", rope, 64, 32768, length, served)


def _own() -> Iterator[Case]:
    """The types that this project adds to transformers and vLLM."""
    exact = {"rope_type": "ntk_aware", "rope_theta": 1e4, "factor": 8.0}
    exact["original_max_position_embeddings"] = 4096
    wavelength = {**_yarn(8.0), "rope_type": "yarn_wavelength"}
    own = [
        ("ntk_aware", exact),
        ("ntk_aware-paper", {**exact, "base_scaling": "paper"}),
        ("yarn_wavelength", wavelength),
        ("resonance", {"rope_type": "resonance", "rope_theta": 1e4}),
    ]
    for rope in (_linear(8.0), _yarn(8.0), _llama3(8.0), exact, wavelength, _longrope(128)):
        kind = f"resonance_{rope['rope_type']}"
        own.append((kind, {**rope, "rope_type": kind}))
    for name, rope in own:
        yield _edge(name, rope, 128, 32768, group="own")


def _linear(factor: float) -> Config:
    return {"rope_type": "linear", "rope_theta": 1e4, "factor": factor}


def _dynamic(factor: float) -> Config:
    return {"rope_type": "dynamic", "rope_theta": 1e4, "factor": factor}


def _yarn(factor: float) -> Config:
    scaled: Config = {"rope_type": "yarn", "rope_theta": 1e4, "factor": factor}
    return {**scaled, "original_max_position_embeddings": 4096}


def _llama3(factor: float) -> Config:
    rope: Config = {"rope_type": "llama3", "rope_theta": 5e5, "factor": factor}
    rope.update(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    return rope


def _longrope(dim: int) -> Config:
    half = range(dim // 2)
    return {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + 0.03125 * j for j in half],
        "long_factor": [1.0 + 0.25 * j for j in half],
    }  # fmt: skip


def _edge(
    name: str,
    rope: Config,
    head: int,
    positions: int,
    length: int | None = None,
    served: int | None = None,
    *,
    spelling: str = "rope_type",
    group: str = "edge",
    also_valid: tuple[float, str] | None = None,
) -> Case:
    config = _small(rope, head, positions, spelling)
    complete = dict(rope)
    if rope["rope_type"] == "dynamic":
        complete["original_max_position_embeddings"] = positions
    length = positions if length is None else length
    return Case(
        name, group, config, complete, rotated(config, rope), length, served or length, None,
        "made for this file", also_valid,
    )  # fmt: skip


def rotations(config: Config) -> dict[str | None, Config]:
    """Layer type -> its settings in one spelling; None where all layers rotate alike."""
    shipped: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base: Any = shipped.get(
        "rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000))
    )
    sliding: Config = {"rope_type": "default"}
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


def _complete(shipped: Config, config: Config, base: float) -> Config:
    """Config with the base, the type's new name, and the lengths that the config implies."""
    kind: Any = shipped.get("rope_type", shipped.get("type", "default"))
    rope: Config = {**shipped, "rope_type": {"su": "longrope"}.get(kind, kind)}
    rope.pop("type", None)
    rope["rope_theta"] = float(shipped.get("rope_theta", base))
    positions = config["max_position_embeddings"]
    if rope["rope_type"] in ("yarn", "llama3", "longrope", "dynamic"):
        original = config.get("original_max_position_embeddings", positions)
        rope.setdefault("original_max_position_embeddings", original)
    if rope["rope_type"] == "longrope":
        rope.setdefault("factor", positions / rope["original_max_position_embeddings"])
    return rope


def rotated(config: Config, rope: Config) -> int:
    """Dimensions of a head that rotate; of the whole head for `proportional`."""
    head: Any = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if rope["rope_type"] == "proportional":
        return int(config.get("global_head_dim", head))
    for fixed in ("qk_rope_head_dim", "rotary_dim"):
        if fixed in config:
            return int(config[fixed])
    share: Any = config.get("partial_rotary_factor", config.get("rotary_pct", 1.0))
    return int(head * rope.get("partial_rotary_factor", share))
