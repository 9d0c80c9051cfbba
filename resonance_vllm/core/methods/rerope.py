"""ReRoPE (Su 2023, github.com/bojone/rerope): one distance for all far keys."""

from resonance_vllm.core.method import Tensor
from resonance_vllm.core.methods.position_map import Part, WindowedMethod


class Rerope(WindowedMethod):
    """Keys nearer than a window stand at their positions, all others at its distance."""

    name = "rerope"
    formula = "`b^(-2j/d)`; keys from distance `W` on at `W`"

    def kept_at(self, positions: Tensor) -> Tensor:
        return positions * 0

    def parts(self) -> tuple[Part, ...]:
        window = self.window
        return (
            Part(first=lambda at: at - window + 1),
            Part(
                query=lambda at: at * 0 + window, key=self.kept_at, end=lambda at: at - window + 1
            ),
        )
