"""The vLLM plugin: rotary embeddings with this package's tables, and swapping them in an engine."""

from resonance_vllm.vllm.plugin import RopeWorker, register

__all__ = ["RopeWorker", "register"]
