"""Closed forms of the test vectors, in Python floats, one feature at a time.

Written from the papers and reference implementations, and independent of `resonance_vllm.core`: no
line is shared, so an error in one of the two shows as a difference. Symbols: `b` the base, `d` the
rotated dimensions of a head, `j = 0..d/2-1` a feature, `s` the factor, `L` the native context length.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Rope = Mapping[str, Any]
Features = list[float]


def default(rope: Rope, d: int, length: int) -> Features:
    """`b^(-2j/d)` (RoFormer, arXiv 2104.09864, section 3.2.2)."""
    return _powers(rope["rope_theta"], d)


def linear(rope: Rope, d: int, length: int) -> Features:
    """Positions divided by `s` (position interpolation, arXiv 2306.15595, equation 4)."""
    return [theta / rope["factor"] for theta in default(rope, d, length)]


def dynamic(rope: Rope, d: int, length: int) -> Features:
    """Base `b*(s*n/L - (s-1))^(d/(d-2))` for `n > L` tokens (bloc97; transformers)."""
    s, original = rope["factor"], rope["original_max_position_embeddings"]
    if "alpha" in rope:  # HunYuan: a fixed base
        return _powers(rope["rope_theta"] * rope["alpha"] ** (d / (d - 2)), d)
    grown = s * max(length, original) / original - (s - 1)
    return _powers(rope["rope_theta"] * grown ** (d / (d - 2)), d)


def ntk_aware(rope: Rope, d: int, length: int) -> Features:
    """Base `b*s^(d/(d-2))` (bloc97), or `b*s` (arXiv 2403.00071, appendix C.2)."""
    if rope.get("base_scaling") == "paper":
        return _powers(rope["rope_theta"] * rope["factor"], d)
    return _powers(rope["rope_theta"] * rope["factor"] ** (d / (d - 2)), d)


def yarn(rope: Rope, d: int, length: int) -> Features:
    """Frequencies mixed over the feature's index (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding).

    The features that turn `beta_fast` and `beta_slow` times within `L` are the ends of the ramp;
    `truncate` rounds them outward.
    """
    base, s = rope["rope_theta"], rope["factor"]
    ends = []
    for turns in (rope.get("beta_fast", 32), rope.get("beta_slow", 1)):
        wavelength = rope["original_max_position_embeddings"] / turns
        ends.append(d / 2 * math.log(wavelength / (2 * math.pi), base))
    low, high = ends
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    mixed = []
    for j, theta in enumerate(_powers(base, d)):
        slow = min(max((j - low) / (high - low), 0.0), 1.0)
        mixed.append(theta * (1 - slow) + theta / s * slow)
    return mixed


def yarn_wavelength(rope: Rope, d: int, length: int) -> Features:
    """Wavelengths mixed by gamma (arXiv 2403.00071, equations 5 and 6)."""
    s, original = rope["factor"], rope["original_max_position_embeddings"]
    fast, slow = rope.get("beta_fast", 32), rope.get("beta_slow", 1)
    mixed = []
    for theta in _powers(rope["rope_theta"], d):
        wavelength = 2 * math.pi / theta
        gamma = min(max((original / wavelength - slow) / (fast - slow), 0.0), 1.0)
        mixed.append(2 * math.pi / ((1 - gamma) * s * wavelength + gamma * wavelength))
    return mixed


def llama3(rope: Rope, d: int, length: int) -> Features:
    """Short wavelengths kept, long ones times `s`, between them a ramp in turns (llama-models)."""
    s, original = rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    mixed = []
    for theta in _powers(rope["rope_theta"], d):
        wavelength = 2 * math.pi / theta
        if wavelength < original / high:
            mixed.append(theta)
        elif wavelength > original / low:
            mixed.append(theta / s)
        else:
            smooth = (original / wavelength - low) / (high - low)
            mixed.append((1 - smooth) * theta / s + smooth * theta)
    return mixed


def longrope(rope: Rope, d: int, length: int) -> Features:
    """A divisor a feature, another one beyond `L` tokens (arXiv 2402.13753; Phi-3's own code)."""
    beyond = length > rope["original_max_position_embeddings"]
    divisors = rope["long_factor" if beyond else "short_factor"]
    pairs = zip(default(rope, d, length), divisors, strict=True)
    return [theta / divisor for theta, divisor in pairs]


def proportional(rope: Rope, d: int, length: int) -> Features:
    """Plain RoPE of the whole head in which the fastest share of features turns (Gemma 4)."""
    turning = int(rope["partial_rotary_factor"] * d // 2)
    return [theta if j < turning else 0.0 for j, theta in enumerate(default(rope, d, length))]


FORMULAS: dict[str, Callable[[Rope, int, int], Features]] = {
    formula.__name__: formula
    for formula in (
        default, linear, dynamic, ntk_aware, yarn, yarn_wavelength, llama3, longrope, proportional,
    )
}  # fmt: skip


def rounded(frequencies: Features) -> list[int]:
    """Resonance: the integer nearest to each wavelength in tokens (arXiv 2403.00071, algorithm 1).

    0 where a feature is not rotated.
    """
    return [max(round(2 * math.pi / theta), 1) if theta else 0 for theta in frequencies]


def attention_factor(rope: Rope, length: int) -> float:
    """What cos and sin are multiplied by (YaRN: arXiv 2309.00071, equation 22)."""
    kind = rope["rope_type"].removeprefix("resonance_")
    explicit = rope.get("attention_factor")
    if explicit is not None and kind in ("yarn", "yarn_wavelength", "longrope"):
        return float(explicit)
    s = rope.get("factor", 1.0)
    if kind in ("yarn", "yarn_wavelength"):
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            return _mscale(s, rope["mscale"]) / _mscale(s, rope["mscale_all_dim"])
        return _mscale(s, 1.0)
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        if "long_mscale" in rope:
            return float(rope["long_mscale" if length > original else "short_mscale"])
        return math.sqrt(1 + math.log(s) / math.log(original)) if s > 1 else 1.0
    return 1.0


def rotation(rope: Rope, d: int, length: int) -> tuple[Features, list[int]]:
    """Frequencies in radians a token, and integer wavelengths where the type has Resonance.

    Args:
        rope: `rope_type` and its settings, complete.
        d: rotated dimensions of a head; of the whole head for `proportional`.
        length: of the sequence in tokens.
    """
    kind = "default" if rope["rope_type"] == "resonance" else rope["rope_type"]
    frequencies = FORMULAS[kind.removeprefix("resonance_")](rope, d, length)
    if not rope["rope_type"].startswith("resonance"):
        return frequencies, []
    wavelengths = rounded(frequencies)
    return [2 * math.pi / n if n else 0.0 for n in wavelengths], wavelengths


def angle(position: int, theta: float, wavelength: int = 0) -> float:
    """Radians at a position; with an integer wavelength of its position within one turn."""
    return 2 * math.pi * (position % wavelength) / wavelength if wavelength else position * theta


def _powers(base: float, d: int) -> Features:
    return [float(base) ** (-2 * j / d) for j in range(d // 2)]


def _mscale(s: float, weight: float) -> float:
    return 0.1 * weight * math.log(s) + 1.0 if s > 1 else 1.0
