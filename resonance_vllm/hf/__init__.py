"""RoPE settings in Hugging Face transformers: `load` a model with them, `apply_rope` to a loaded one."""

from resonance_vllm.hf.apply import apply_rope, load
from resonance_vllm.hf.registry import register

__all__ = ["apply_rope", "load", "register"]
