"""A checkpoint in transformers with RoPE settings, as vLLM is compared with it."""

from pathlib import Path
from typing import Any


def load_hf(path: Path, rope: dict[str, Any], length: int) -> Any:
    import torch

    from resonance_vllm import hf
    from resonance_vllm.checkpoint.positions import PositionConfig

    spec = PositionConfig.from_checkpoint(str(path)).complete(rope)
    return hf.load(str(path), spec, precision="float32", limit=length, dtype=torch.float32).eval()
