"""The one comparison of what a rotary module turns by with what was asked, for both libraries."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.core.method import Tensor
from resonance_vllm.core.spec import RopeSpec

RELATIVE_TOLERANCE = 1e-4
"""Relative tolerance: far above float32's rounding, far below what tells two methods apart."""


class RotaryState(NamedTuple):
    """What a module turns by: radians a token `[features]`, and what cos and sin are scaled by."""

    inv_freq: Tensor
    attention_factor: float
    exact_phase: bool = False


@dataclass(frozen=True)
class RotaryReport:
    """The rotation of one module, of one layer type where it has several.

    Attributes:
        name: of the module in the model, `model.rotary_emb`.
        layer_type: as transformers names it; None where the module has one rotation.
        inv_freq: radians a token as the module holds them, one a feature; 0 where one stands still.
        attention_factor: what cos and sin are multiplied by.
        exact_phase: whether the angle is taken from `position mod period`.
    """

    name: str
    layer_type: str | None
    inv_freq: tuple[float, ...]
    attention_factor: float
    exact_phase: bool = False

    @classmethod
    def from_state(cls, name: str, layer_type: str | None, turns: RotaryState) -> "RotaryReport":
        """The report of what a module turns by."""
        return cls(name, layer_type, tuple(turns.inv_freq.tolist()), *turns[1:])

    @property
    def state(self) -> RotaryState:
        """The same with frequencies as float64."""
        import torch

        inv_freq = torch.tensor(self.inv_freq, dtype=torch.float64)
        return RotaryState(inv_freq, self.attention_factor, self.exact_phase)


def compare_states(
    held: RotaryState, asked: RotaryState, *, close: float = RELATIVE_TOLERANCE
) -> list[str]:
    """Clauses about how frequencies and attention factor differ, within a relative tolerance."""
    wrong = []
    found, expected = (each.inv_freq.detach().cpu().double() for each in (held, asked))
    if len(found) != len(expected):
        wrong.append(f"{len(found)} features turn, not {len(expected)}")
    elif apart := int((~((found - expected).abs() <= close * expected)).sum()):
        wrong.append(f"{apart} of {len(found)} frequencies differ")
    scale, wanted = held.attention_factor, asked.attention_factor
    if not math.isclose(scale, wanted, rel_tol=close):
        wrong.append(f"the attention factor is {scale:.6g}, not {wanted:.6g}")
    return wrong


def differing_constants(model: Any, other: Any) -> list[tuple[Any, str, float, str]]:
    """Numbers that the modules of two models hold and that differ, as DeepSeek's softmax scale.

    Module, attribute, value in the other model, and all of it in words; rotary modules aside.
    """
    found, others = [], dict(other.named_modules())
    for name, module in model.named_modules():
        for key, value in vars(module).items() if "Rotary" not in type(module).__name__ else ():
            there = getattr(others.get(name), key, value)
            if isinstance(value, float) and isinstance(there, float) and there != value:
                found.append((module, key, there, f"{name}.{key} is {value} and not {there}"))
    return found


def mismatch_error(spec: RopeSpec, where: str, wrong: list[str]) -> RopeConfigError:
    """The error for a module (`where`) that does not turn as requested."""
    clauses = "; ".join(wrong)
    return RopeConfigError(f"rope_type: {spec.rope_type!r} is not what {where} turns by: {clauses}")
