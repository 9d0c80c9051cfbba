"""cos and sin of settings in closed form, float64, attention factor included."""

from resonance_vllm.core.frequencies import formula
from resonance_vllm.core.phase import angles


def cos_sin(spec, dim, positions, seq_len=None):
    """Two tensors `[..., dim/2]` for positions `[...]`."""
    turned, scale = angles(positions, formula(spec, dim, seq_len)), spec.method.scale()
    return turned.cos() * scale, turned.sin() * scale
