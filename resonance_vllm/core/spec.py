"""What a user may write as `rope_parameters`, and its validated form.

Standard library only: command lines and configuration readers import this without torch.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from resonance_vllm.core.errors import RopeConfigError

PREFIX = "resonance_"

_YARN_OPTIONS = frozenset(
    {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "ramp"}
)
_LONGROPE_OPTIONS = frozenset({"factor", "attention_factor", "short_mscale", "long_mscale"})

# method -> (keys that must be given, keys that may be given) beside rope_type and rope_theta
METHOD_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "ntk_aware": (
        frozenset({"factor"}),
        frozenset({"original_max_position_embeddings", "base_scaling"}),
    ),
    "dynamic": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "yarn": (frozenset({"factor", "original_max_position_embeddings"}), _YARN_OPTIONS),
    "llama3": (
        frozenset(
            {
                "factor",
                "original_max_position_embeddings",
                "low_freq_factor",
                "high_freq_factor",
            }
        ),
        frozenset(),
    ),
    "longrope": (
        frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
        _LONGROPE_OPTIONS,
    ),
}
# Keys that any method may carry: the share of a head that rotates belongs to the model.
COMMON_KEYS = frozenset({"rope_type", "rope_theta", "partial_rotary_factor"})

RAMPS = ("dimension", "wavelength")
BASE_SCALINGS = ("exact", "paper")
YARN_WAVELENGTH = "yarn_wavelength"

# Names under which both libraries know a method without us.
STOCK_TYPES = frozenset({"default", "linear", "dynamic", "yarn", "llama3", "longrope"})
# Names that we add to both libraries; none of them may ever run as something else without us.
OWN_TYPES = (
    "ntk_aware",
    YARN_WAVELENGTH,
    "resonance",
    *(PREFIX + method for method in METHOD_KEYS if method != "default"),
    PREFIX + YARN_WAVELENGTH,
)
ROPE_TYPES = (*METHOD_KEYS, *OWN_TYPES[1:])


def split_rope_type(rope_type: object) -> tuple[str, bool, str | None]:
    """Take a type name apart.

    Args:
        rope_type: what stands in `rope_type`.

    Returns:
        The base method, whether Resonance modifies it, and the YaRN ramp that the name implies.

    Raises:
        RopeConfigError: the name is none of `ROPE_TYPES`.
    """
    if not isinstance(rope_type, str):
        raise RopeConfigError(f"rope_type: {rope_type!r} is not a string; {_allowed(ROPE_TYPES)}")
    if rope_type == "resonance":
        return "default", True, None
    resonance = rope_type.startswith(PREFIX)
    method = rope_type.removeprefix(PREFIX)
    if method == YARN_WAVELENGTH:
        return "yarn", resonance, "wavelength"
    if method not in METHOD_KEYS:
        near = difflib.get_close_matches(rope_type, [*ROPE_TYPES, "resonance_default"], n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        if method == "ntk":
            hint = (
                "; did you mean ntk_aware? (vLLM has a type of the name ntk with another formula)"
            )
        raise RopeConfigError(
            f"rope_type: unknown type {rope_type!r}; {_allowed(ROPE_TYPES)}{hint}"
        )
    return method, resonance, None


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Validated RoPE settings.

    Attributes:
        method: base method, a key of `METHOD_KEYS`.
        resonance: whether its wavelengths are rounded to integers.
        rope_theta: base `b` of the frequencies `b^(-2j/d)`, above 1.
        factor: context extension `s >= 1`; None where the method has none.
        original_max_position_embeddings: trained length `L` in tokens.
        base_scaling: ntk_aware: base `b*s^(d/(d-2))` (`exact`) or `s*b` (`paper`).
        ramp: yarn: linear in the dimension index (`dimension`) or the paper's gamma (`wavelength`).
        beta_fast: yarn: turns within `L` above which a feature is left alone.
        beta_slow: yarn: turns within `L` below which a feature is fully interpolated.
        truncate: yarn: round the ramp's two dimensions outward (`ramp: dimension` only).
        attention_factor: yarn, longrope: what cos and sin are multiplied by; None to derive it.
        mscale: yarn: with `mscale_all_dim`, numerator of the derived attention factor.
        mscale_all_dim: yarn: its denominator.
        low_freq_factor: llama3: `L / low_freq_factor` is where full interpolation starts.
        high_freq_factor: llama3: `L / high_freq_factor` is where interpolation ends.
        short_factor: longrope: divisor of each frequency up to `L`, one a feature.
        long_factor: longrope: divisor of each frequency beyond `L`.
        short_mscale: longrope: vLLM's name of the attention factor up to `L`.
        long_mscale: longrope: vLLM's name of the attention factor beyond `L`.
        partial_rotary_factor: share of the head that rotates; the caller's `dim` already has it.
    """

    method: str
    rope_theta: float
    resonance: bool = False
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    base_scaling: str = "exact"
    ramp: str = "dimension"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHOD_KEYS:
            raise RopeConfigError(
                f"method: unknown method {self.method!r}; {_allowed(METHOD_KEYS)}"
            )
        _check_values(self)

    @classmethod
    def from_dict(cls, rope_parameters: Mapping[str, Any]) -> "RopeSpec":
        """Validate a `rope_parameters` dictionary.

        Args:
            rope_parameters: the whole dictionary, `rope_type` and `rope_theta` included. Integers
                are accepted where a float is meant; a value of None counts as not given.

        Returns:
            The settings.

        Raises:
            RopeConfigError: a key is unknown or missing, or a value is not allowed.
        """
        if not isinstance(rope_parameters, Mapping):
            raise RopeConfigError(
                f"rope_parameters: {rope_parameters!r} is not a dictionary with rope_type, "
                "rope_theta and the keys of that type"
            )
        if "rope_type" not in rope_parameters:
            old = " (`type` is the old name of this key)" if "type" in rope_parameters else ""
            raise RopeConfigError(f"rope_type: missing{old}; {_allowed(ROPE_TYPES)}")
        rope_type = rope_parameters["rope_type"]
        method, resonance, ramp = split_rope_type(rope_type)
        given = {k: v for k, v in rope_parameters.items() if v is not None and k != "rope_type"}
        _check_keys(str(rope_type), method, given)
        if ramp is not None and given.setdefault("ramp", ramp) != ramp:
            raise RopeConfigError(
                f"ramp: {given['ramp']!r} contradicts rope_type {rope_type!r}; allowed: {ramp}"
            )
        return cls(method=method, resonance=resonance, **_converted(given))

    @property
    def rope_type(self) -> str:
        """The name under which both libraries are given these settings."""
        own_yarn = self.method == "yarn" and self.ramp == "wavelength"
        name = YARN_WAVELENGTH if own_yarn else self.method
        if not self.resonance:
            return name
        return "resonance" if name == "default" else PREFIX + name

    @property
    def is_stock(self) -> bool:
        """Whether both libraries run these settings without us."""
        return self.rope_type in STOCK_TYPES

    @property
    def is_dynamic(self) -> bool:
        """Whether the frequencies follow the length of the sequence as it grows."""
        return self.method == "dynamic"

    def length_limit(self, max_position_embeddings: int) -> int:
        """Longest sequence in tokens that these settings are meant for.

        `original_max_position_embeddings * factor`, whether the config's `max_position_embeddings`
        is written scaled or not; without a factor `max_position_embeddings`. The factor of `llama3`
        shapes its frequencies and is no extension ratio (Llama 3.1: 8,192 * 8, trained to 131,072),
        so a config written above the original length stands there.
        """
        original = self.original_max_position_embeddings or max_position_embeddings
        written_scaled = self.method == "llama3" and max_position_embeddings > original
        if self.factor is None or written_scaled:
            return max_position_embeddings
        return int(original * self.factor)

    def to_dict(self) -> dict[str, Any]:
        """The complete dictionary: `RopeSpec.from_dict(spec.to_dict()) == spec`.

        Only keys that the method knows and whose value differs from the default are written.
        """
        required, optional = METHOD_KEYS[self.method]
        result: dict[str, Any] = {"rope_type": self.rope_type, "rope_theta": self.rope_theta}
        for field in fields(self):
            value = getattr(self, field.name)
            known = field.name in required | optional or field.name == "partial_rotary_factor"
            if known and field.name != "ramp" and value is not None and value != field.default:
                result[field.name] = list(value) if isinstance(value, tuple) else value
        return result


def dynamic_factor(factor: float, length: int, original: int) -> float:
    """NTK factor of a sequence of `length` tokens: `s*length/L - (s-1)`, 1 up to `L` tokens."""
    return factor * max(length, original) / original - (factor - 1)


def _allowed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return "allowed: " + ", ".join(names)


def _check_keys(rope_type: str, method: str, given: Mapping[str, Any]) -> None:
    required, optional = METHOD_KEYS[method]
    allowed = sorted(required | optional | COMMON_KEYS)
    for key in given:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RopeConfigError(
                f"{key}: {given[key]!r} is not a setting of rope_type {rope_type!r}; "
                f"{_allowed(allowed)}{hint}"
            )
    for key in ("rope_theta", *sorted(required)):
        if key not in given:
            raise RopeConfigError(
                f"{key}: missing in rope_parameters of rope_type {rope_type!r}; "
                f"required: {', '.join(['rope_theta', *sorted(required)])}"
            )


def _converted(given: Mapping[str, Any]) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for key, value in given.items():
        if key in ("short_factor", "long_factor"):
            converted[key] = _numbers(key, value)
        elif key == "original_max_position_embeddings":
            converted[key] = _integer(key, value)
        elif key in ("base_scaling", "ramp", "truncate"):
            converted[key] = value
        else:
            converted[key] = _number(key, value)
    return converted


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RopeConfigError(f"{key}: {value!r} is not allowed; allowed: a finite number")
    return float(value)


def _integer(key: str, value: object) -> int:
    number = _number(key, value)
    if number != int(number):
        raise RopeConfigError(f"{key}: {value!r} is not allowed; allowed: an integer")
    return int(number)


def _numbers(key: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise RopeConfigError(
            f"{key}: {value!r} is not allowed; allowed: a list of numbers, one for each feature"
        )
    return tuple(_number(key, item) for item in value)


def _check_values(spec: RopeSpec) -> None:
    """Raise RopeConfigError for the first value outside its range."""
    longest = min(spec.short_factor or (1.0,)), min(spec.long_factor or (1.0,))
    original = spec.original_max_position_embeddings
    checks: tuple[tuple[str, bool, str], ...] = (
        ("rope_theta", spec.rope_theta > 1, "a number above 1"),
        ("factor", spec.factor is None or spec.factor >= 1, "a number of at least 1"),
        ("original_max_position_embeddings", original is None or original >= 1, "at least 1"),
        ("base_scaling", spec.base_scaling in BASE_SCALINGS, " or ".join(BASE_SCALINGS)),
        ("ramp", spec.ramp in RAMPS, " or ".join(RAMPS)),
        ("truncate", isinstance(spec.truncate, bool), "true or false"),
        ("beta_slow", spec.beta_slow > 0, "a number above 0"),
        ("beta_fast", spec.beta_fast > spec.beta_slow, f"above beta_slow={spec.beta_slow:g}"),
        *(
            (name, getattr(spec, name) is None or getattr(spec, name) > 0, "a number above 0")
            for name in (
                "attention_factor",
                "mscale",
                "mscale_all_dim",
                "short_mscale",
                "long_mscale",
                "low_freq_factor",
            )
        ),
        (
            "high_freq_factor",
            spec.high_freq_factor is None or spec.high_freq_factor > (spec.low_freq_factor or 0),
            f"above low_freq_factor={spec.low_freq_factor}",
        ),
        ("short_factor", longest[0] > 0, "numbers above 0"),
        ("long_factor", longest[1] > 0, "numbers above 0"),
        ("partial_rotary_factor", 0 < spec.partial_rotary_factor <= 1, "above 0 and at most 1"),
    )
    for name, fine, allowed in checks:
        if not fine:
            raise RopeConfigError(
                f"{name}: {getattr(spec, name)!r} is not allowed; allowed: {allowed}"
            )
