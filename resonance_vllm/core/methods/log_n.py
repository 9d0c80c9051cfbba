"""Log-n temperature (Su 2021, kexue.fm/archives/8823): sharper scores for queries beyond `L`."""

from typing import Literal

from pydantic import Field

from resonance_vllm.core.method import Tensor
from resonance_vllm.core.methods.position_map import MappedMethod, Part


class LogN(MappedMethod):
    """Every key stands at its own position; the temperature is all that changes."""

    name = "log_n"
    formula = "`b^(-2j/d)`; scores of a query at `i` times `max(1, ln(i+1)/ln(L))`"

    log_n: Literal[True] = Field(
        default=True,
        description="Multiply scores of a query at i by max(1, ln(i+1)/ln(L)).",
    )

    def kept_at(self, positions: Tensor) -> Tensor:
        return positions

    def parts(self) -> tuple[Part, ...]:
        return (Part(),)
