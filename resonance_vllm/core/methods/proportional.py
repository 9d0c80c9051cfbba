"""Proportional RoPE (Gemma 4): only the fastest features turn."""

from resonance_vllm.core.method import Method, Tensor, plain_frequencies


class Proportional(Method):
    """Plain RoPE over the whole head, in which a share of the features turns.

    `dim` is the size of the head here: features that stand still have the frequency 0.
    """

    name = "proportional"
    stock = True
    formula = "`b^(-2j/d)` over the whole head, 0 beyond the share `partial_rotary_factor`"

    def rotary_dim(self, head_dim: int) -> int:
        return head_dim

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        result = plain_frequencies(self.rope_theta, dim)
        result[int(self.partial_rotary_factor * dim // 2) :] = 0
        return result
