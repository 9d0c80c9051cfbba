"""Dynamic NTK as in transformers: NTK-aware scaling by the current length."""

from resonance_vllm.core.method import ScaledMethod, Tensor, plain_frequencies
from resonance_vllm.core.methods.ntk_aware import NtkAware, ntk_base
from resonance_vllm.errors import RopeConfigError


class Dynamic(ScaledMethod):
    """Plain RoPE up to `L` tokens; the paper's dynamic NTK is `factor: 1.0`."""

    name = "dynamic"
    stock = True
    hf_warns_of = ("original_max_position_embeddings",)
    formula = "`ntk_aware` with `s*length/L - (s-1)`; the paper's dynamic NTK is `factor: 1.0`"
    follows_length = True
    vllm_lookalikes = {
        "dynamic": "fixed at start-up and, without max_trained_positions, not scaled at all; "
        "ntk_aware with the factor of the served length is what transformers' dynamic does there"
    }

    def frequencies(self, dim: int, seq_len: int | None = None) -> Tensor:
        factor = self._factor_at(seq_len)
        return plain_frequencies(ntk_base(self.rope_theta, factor, dim), dim)

    def _factor_at(self, length: int | None) -> float:
        """`s*length/L - (s-1)`, 1 up to `L` tokens."""
        original = self.original_max_position_embeddings
        if original is None:
            raise RopeConfigError(
                "original_max_position_embeddings: missing; dynamic needs the trained length"
            )
        longest = max(original if length is None else length, original)
        return self.factor * longest / original - (self.factor - 1)

    def at_length(self, length: int) -> NtkAware:
        """`ntk_aware` with the very base that `dynamic` has at this length."""
        factor = self._factor_at(length)
        return NtkAware(**{**dict(self), "factor": factor, "longest_sequence": length})
