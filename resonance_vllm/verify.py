"""What rotary modules hold, and how it is compared with what was requested, for both libraries."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.method import Tensor
from resonance_vllm.core.spec import RopeSpec

RELATIVE_TOLERANCE = 1e-4
"""Far above float32's rounding, far below what distinguishes two methods."""


class RotaryState(NamedTuple):
    """What a rotary module holds.

    Attributes:
        inv_freq: inverse frequency of each feature in radians per token, `[features]`; 0 where a
            feature is not rotated.
        attention_factor: what cos and sin are multiplied by.
        exact_phase: whether angles are computed from `position mod wavelength`.
    """

    inv_freq: Tensor
    attention_factor: float
    exact_phase: bool = False


@dataclass(frozen=True)
class RotaryReport:
    """What one rotary module holds, for one layer type where it has several.

    Attributes:
        name: of the module in the model, `model.rotary_emb`.
        layer_type: as transformers names it; None where the module has one rotation.
        inv_freq: as in `RotaryState`, plain numbers.
        attention_factor: as in `RotaryState`.
        exact_phase: as in `RotaryState`.
    """

    name: str
    layer_type: str | None
    inv_freq: tuple[float, ...]
    attention_factor: float
    exact_phase: bool = False

    @classmethod
    def from_state(cls, name: str, layer_type: str | None, state: RotaryState) -> "RotaryReport":
        """Return the report of a module's state.

        Args:
            name: as in this class.
            layer_type: as in this class.
            state: what the module holds.
        """
        inv_freq = tuple(state.inv_freq.tolist())
        return cls(name, layer_type, inv_freq, state.attention_factor, state.exact_phase)

    @property
    def state(self) -> RotaryState:
        """The state, its inverse frequencies as a float64 tensor on the CPU."""
        import torch

        inv_freq = torch.tensor(self.inv_freq, dtype=torch.float64)
        return RotaryState(inv_freq, self.attention_factor, self.exact_phase)


def compare_states(
    held: RotaryState, requested: RotaryState, *, close: float = RELATIVE_TOLERANCE
) -> list[str]:
    """Return how what a module holds differs from what was requested.

    Args:
        held: what the module holds.
        requested: what it was to hold.
        close: relative tolerance of frequencies and attention factor.

    Returns:
        A clause per difference, without the module's name; empty where they agree. A frequency that
        is not finite always differs.
    """
    clauses = []
    found = held.inv_freq.detach().cpu().double()
    expected = requested.inv_freq.detach().cpu().double()
    if len(found) != len(expected):
        clauses.append(f"it rotates {len(found)} features, not {len(expected)}")
    else:
        is_close = (found - expected).abs() <= close * expected
        number_different = int((~is_close).sum())
        if number_different:
            clauses.append(f"{number_different} of {len(found)} inverse frequencies differ")
    factor = held.attention_factor
    requested_factor = requested.attention_factor
    if not math.isclose(factor, requested_factor, rel_tol=close):
        clauses.append(f"the attention factor is {factor:.6g}, not {requested_factor:.6g}")
    return clauses


def frequency_problems(state: RotaryState, *, ordered: bool = True) -> list[str]:
    """Return why the inverse frequencies of a module cannot be those of any method.

    Holds for a checkpoint as it is, too: memory that nobody initialised passes as a tensor of the
    right shape (a non-persistent buffer of remote code, for example).

    Args:
        state: what the module holds.
        ordered: whether features come in the order of their frequencies. They do, except where a
            family sorts them by the axis of positions that rotates them (ERNIE 4.5 VL).

    Returns:
        A clause per problem, with the first feature that has it: not finite, negative, larger than
        the one before it; or all zero. Zeros at the end are features that are not rotated.
    """
    inv_freq = state.inv_freq.detach().cpu().double().flatten()
    is_finite = inv_freq.isfinite()
    is_rising = (inv_freq[1:] > inv_freq[:-1] * (1 + RELATIVE_TOLERANCE)) & ordered
    clauses = []
    for problem, has_problem, first in (
        ("is not finite", ~is_finite, 0),
        ("is negative", is_finite & (inv_freq < 0), 0),
        ("is larger than the one before it", is_rising, 1),
    ):
        features = has_problem.nonzero().flatten().tolist()
        if features:
            feature = features[0] + first
            value = float(inv_freq[feature])
            clauses.append(f"the inverse frequency of feature {feature}, {value:.6g}, {problem}")
    if len(inv_freq) > 0 and not bool((inv_freq != 0).any()):
        clauses.append("all inverse frequencies are zero")
    return clauses


class DifferingConstant(NamedTuple):
    """A number that a module computed from RoPE settings, and that another model has otherwise.

    Attributes:
        module: in the first model.
        attribute: its name.
        other_value: the number in the other model.
        description: all of it in words.
    """

    module: Any
    attribute: str
    other_value: float
    description: str


def differing_constants(model: Any, other: Any) -> list[DifferingConstant]:
    """Return the float attributes of modules that differ between two models of one architecture.

    An example is DeepSeek's softmax scale, which its attention computes from YaRN's `mscale`.
    Rotary modules are left to `compare_states`.
    """
    differing = []
    other_modules = dict(other.named_modules())
    for name, module in model.named_modules():
        if "Rotary" in type(module).__name__:
            continue
        for attribute, value in vars(module).items():
            other_value = getattr(other_modules.get(name), attribute, value)
            are_numbers = isinstance(value, float) and isinstance(other_value, float)
            if are_numbers and other_value != value:
                description = f"{name}.{attribute} is {value} and not {other_value}"
                differing.append(DifferingConstant(module, attribute, other_value, description))
    return differing


def mismatch_error(spec: RopeSpec, where: str, clauses: list[str]) -> RopeConfigError:
    """Return the error for a module that does not hold what was requested.

    Args:
        spec: the requested settings.
        where: the module, `model.rotary_emb (LlamaRotaryEmbedding)`.
        clauses: of `compare_states` or `frequency_problems`.
    """
    return RopeConfigError(
        f"rope_type: {where} does not hold the frequencies of {spec.rope_type!r}: "
        + "; ".join(clauses)
    )
