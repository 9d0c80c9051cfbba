"""RoPE settings in Hugging Face transformers: `apply_rope(model)` and loading with it."""

from resonance_vllm.hf.apply import apply_rope, load, register

__all__ = ["apply_rope", "load", "register"]
