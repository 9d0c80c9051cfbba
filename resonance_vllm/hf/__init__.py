"""The adapter for transformers: gives a model what was requested and reports what it holds."""

from resonance_vllm.hf.registration import register, set_rope_precision

__all__ = ["register", "set_rope_precision"]
