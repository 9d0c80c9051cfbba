"""Inverse frequencies and attention factors, one pure function a method, in float64.

Symbols: `b` is `rope_theta`, `d` the rotated size of a head, `j = 0..d/2-1` a feature (a pair of
dimensions), `s` the factor, `L` the original length. A feature turns by `inv_freq[j]` radians a
token; its wavelength is `2*pi/inv_freq[j]` tokens.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.resonance import round_wavelengths
from resonance_vllm.core.spec import RopeSpec, dynamic_factor

Frequencies = Callable[[RopeSpec, int, int | None], Tensor]


def powers(base: float, dim: int) -> Tensor:
    """`b^(-2j/d)`, float64 `[dim/2]`: plain RoPE (Su et al. 2021)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return torch.pow(torch.tensor(base, dtype=torch.float64, device="cpu"), -exponents)


def default(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Plain RoPE: `b^(-2j/d)`."""
    return powers(spec.rope_theta, dim)


def linear(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Position interpolation (Chen et al. 2023): every frequency divided by `s`."""
    return powers(spec.rope_theta, dim) / _factor(spec)


def ntk_aware(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """NTK-aware scaling: a larger base.

    `base_scaling: exact` is bloc97's `b*s^(d/(d-2))`, which interpolates the slowest feature by
    exactly `s`; `paper` is `s*b`, as Appendix C.2 of the Resonance RoPE paper has it.
    """
    factor = _factor(spec)
    if spec.base_scaling == "paper":
        return powers(spec.rope_theta * factor, dim)
    return powers(ntk_base(spec.rope_theta, factor, dim), dim)


def ntk_base(base: float, factor: float, dim: int) -> float:
    """bloc97's base `b*s^(d/(d-2))`; `dim` must be at least 4."""
    if dim < 4:
        raise RopeConfigError(f"dim: {dim} is not allowed with NTK scaling; allowed: at least 4")
    return float(base * factor ** (dim / (dim - 2)))


def dynamic(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Dynamic NTK as in transformers: `ntk_aware` with the factor of the current length.

    Up to `L` tokens (and with `seq_len=None`) this is plain RoPE. The paper's dynamic NTK is
    `factor: 1.0`.
    """
    original = _original(spec)
    scale = dynamic_factor(_factor(spec), original if seq_len is None else seq_len, original)
    return powers(ntk_base(spec.rope_theta, scale, dim), dim)


def yarn(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """YaRN (Peng et al. 2023): fast features kept, slow ones divided by `s`, a ramp between.

    `ramp: dimension` mixes frequencies, linearly in `j` between two dimensions (YaRN's code,
    transformers, vLLM). `ramp: wavelength` mixes wavelengths by the paper's gamma.
    """
    plain = powers(spec.rope_theta, dim)
    factor = _factor(spec)
    if spec.ramp == "wavelength":
        wavelengths = 2 * math.pi / plain
        gamma = yarn_gamma(wavelengths, _original(spec), spec.beta_fast, spec.beta_slow)
        return 2 * math.pi / ((1 - gamma) * factor * wavelengths + gamma * wavelengths)
    low, high = yarn_correction_range(spec, dim)
    kept = 1 - linear_ramp(low, high, dim // 2)
    return plain / factor * (1 - kept) + plain * kept


def yarn_gamma(wavelengths: Tensor, original: int, beta_fast: float, beta_slow: float) -> Tensor:
    """The paper's gamma: `(L/lambda - alpha)/(beta - alpha)` within [0, 1].

    1 (kept) for wavelengths below `L/beta`, 0 (interpolated) above `L/alpha`.
    """
    return ((original / wavelengths - beta_slow) / (beta_fast - beta_slow)).clamp(0, 1)


def yarn_correction_range(spec: RopeSpec, dim: int) -> tuple[float, float]:
    """Dimension indices between which YaRN's code ramps, rounded outward if `truncate`."""
    original = _original(spec)

    def dimension_with(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    low, high = dimension_with(spec.beta_fast), dimension_with(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def linear_ramp(low: float, high: float, count: int) -> Tensor:
    """0 up to index `low`, 1 from `high`, linear between; float64 `[count]`."""
    if low == high:
        high += 0.001  # as the reference code does, instead of a division by zero
    indices = torch.arange(count, dtype=torch.float64, device="cpu")
    return ((indices - low) / (high - low)).clamp(0, 1)


def llama3(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Llama 3.1: wavelengths above `L/low_freq_factor` times `s`, below `L/high_freq_factor` kept.

    Between the two the frequencies are mixed, linearly in the turns within `L`.
    """
    low, high = spec.low_freq_factor, spec.high_freq_factor
    if low is None or high is None:
        raise RopeConfigError("low_freq_factor, high_freq_factor: missing; llama3 needs both")
    plain = powers(spec.rope_theta, dim)
    turns = _original(spec) * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / _factor(spec) * (1 - kept) + plain * kept


def longrope(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """LongRoPE (Ding et al. 2024): one divisor a feature, another set beyond `L` tokens.

    With `seq_len=None` the short factors are used, as transformers does when it builds a model.
    """
    beyond = seq_len is not None and seq_len > _original(spec)
    name = "long_factor" if beyond else "short_factor"
    divisors: tuple[float, ...] | None = getattr(spec, name)
    if divisors is None or len(divisors) != dim // 2:
        count = 0 if divisors is None else len(divisors)
        raise RopeConfigError(
            f"{name}: {count} numbers given; allowed: {dim // 2}, one for each feature of {dim} "
            "rotated dimensions"
        )
    return powers(spec.rope_theta, dim) / torch.tensor(divisors, dtype=torch.float64, device="cpu")


METHODS: dict[str, Frequencies] = {
    "default": default,
    "linear": linear,
    "ntk_aware": ntk_aware,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}


def inv_freq(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Inverse frequencies of a spec, Resonance included.

    Args:
        spec: the settings.
        dim: rotated dimensions of a head (`head_dim * partial_rotary_factor`), even.
        seq_len: current length in tokens, for `dynamic` and `longrope`; None is up to `L`.

    Returns:
        Radians a token, float64 `[dim/2]` on the CPU, non-increasing for every method but longrope.

    Raises:
        RopeConfigError: `dim` does not fit, or the method lacks a setting.
    """
    if dim < 2 or dim % 2:
        raise RopeConfigError(f"dim: {dim} is not allowed; allowed: an even number of at least 2")
    frequencies = METHODS[spec.method](spec, dim, seq_len)
    if not spec.resonance:
        return frequencies
    return 2 * math.pi / round_wavelengths(frequencies).to(torch.float64)


def wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Tokens a full turn takes, float64 `[dim/2]`; integers with Resonance."""
    if spec.resonance:
        return integer_wavelengths(spec, dim, seq_len).to(torch.float64)
    return 2 * math.pi / inv_freq(spec, dim, seq_len)


def integer_wavelengths(spec: RopeSpec, dim: int, seq_len: int | None = None) -> Tensor:
    """Resonance wavelengths, int64 `[dim/2]`.

    Raises:
        RopeConfigError: the spec has no Resonance, so its wavelengths are no integers.
    """
    if not spec.resonance:
        raise RopeConfigError(f"rope_type: {spec.rope_type!r} has no integer wavelengths")
    if dim < 2 or dim % 2:
        raise RopeConfigError(f"dim: {dim} is not allowed; allowed: an even number of at least 2")
    return round_wavelengths(METHODS[spec.method](spec, dim, seq_len))


def attention_factor(spec: RopeSpec) -> float:
    """What cos and sin are multiplied by: 1.0 for all methods but yarn and longrope.

    yarn: `attention_factor`, else from `mscale` and `mscale_all_dim`, else `0.1*ln(s)+1`.
    longrope: `attention_factor`, else `long_mscale`, else `sqrt(1 + ln(s)/ln(L))`.

    Raises:
        RopeConfigError: longrope with neither a factor nor an explicit attention factor.
    """
    if spec.method == "yarn":
        return _yarn_attention_factor(spec)
    if spec.method == "longrope":
        return _longrope_attention_factor(spec)
    return 1.0


def _yarn_attention_factor(spec: RopeSpec) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor

    def scaled(mscale: float) -> float:
        return 0.1 * mscale * math.log(_factor(spec)) + 1.0

    if spec.mscale and spec.mscale_all_dim:
        return scaled(spec.mscale) / scaled(spec.mscale_all_dim)
    return scaled(1.0)


def _longrope_attention_factor(spec: RopeSpec) -> float:
    explicit = spec.attention_factor or spec.long_mscale
    if explicit is not None:
        return explicit
    if spec.factor is None:
        raise RopeConfigError(
            "factor: missing; longrope needs factor, attention_factor or long_mscale to know what "
            "cos and sin are multiplied by"
        )
    if spec.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(spec.factor) / math.log(_original(spec)))


def critical_dimension(lengths: Tensor, original: int) -> int:
    """Index of the first feature whose wavelength is at least `L`.

    Args:
        lengths: wavelengths `[dim/2]` in tokens.
        original: trained length `L` in tokens.

    Returns:
        The index, or the number of features if every wavelength is shorter than `L`. Features
        before it are the paper's pre-critical ones: training has seen them turn once.
    """
    reached = (lengths >= original).nonzero()
    return int(reached[0]) if len(reached) else len(lengths)


def _factor(spec: RopeSpec) -> float:
    if spec.factor is None:
        raise RopeConfigError(f"factor: missing; {spec.method} needs a number of at least 1")
    return spec.factor


def _original(spec: RopeSpec) -> int:
    if spec.original_max_position_embeddings is None:
        raise RopeConfigError(
            f"original_max_position_embeddings: missing; {spec.method} needs the trained length"
        )
    return spec.original_max_position_embeddings
