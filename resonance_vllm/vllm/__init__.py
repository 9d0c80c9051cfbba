"""The vLLM plugin: rotary embeddings with this package's tables, and swapping them in an engine."""

from resonance_vllm.vllm.plugin import register
from resonance_vllm.vllm.worker import RopeWorker

__all__ = ["RopeWorker", "register"]
