"""cos and sin of settings in closed form, float64, attention factor included."""

from resonance_vllm.core.frequencies import closed_form_rotation
from resonance_vllm.core.phase import rotation_angles


def cos_sin(spec, dim, positions, seq_len=None):
    """Two tensors `[..., dim/2]` for positions `[...]`."""
    turned, scale = (
        rotation_angles(positions, closed_form_rotation(spec, dim, seq_len)),
        spec.method.compute_attention_factor(),
    )
    return turned.cos() * scale, turned.sin() * scale
