"""Imported by vLLM's worker processes: the second one's tables are not what was asked for."""

import functools
from typing import Any

import torch

from resonance_vllm import vllm as plugin

_build = plugin._yarn


@functools.wraps(_build)
def _spoilt(*args: Any) -> Any:
    module = _build(*args)
    if torch.distributed.get_rank() == 1:
        module.cos_sin_cache += 0.5
    return module


plugin._yarn = _spoilt


class SpoiltWorker:
    """Given to the engine as `worker_extension_cls`; being imported is all that it does."""
