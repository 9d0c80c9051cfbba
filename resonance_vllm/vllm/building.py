"""Building a model of vLLM without weights, separately from one that may run."""

import contextlib
import copy
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from resonance_vllm.vllm.build_context import SeparateBuild, current_build

BUILD_ERRORS = (NotImplementedError, RuntimeError)
"""What model code raises on the meta device where it reads its weights."""


def build_separately(engine: Any, build: SeparateBuild, weights: str = "meta") -> nn.Module:
    """Build the model of a vLLM config without weights.

    Args:
        engine: A `VllmConfig`; it is not changed.
        build: Where and how long the tables are.
        weights: Device of everything else.
    """
    from vllm.model_executor.model_loader import utils
    from vllm.utils.torch_utils import set_default_torch_dtype

    # A model notes its layers in these; those of a running engine are not to be replaced.
    separate = copy.copy(engine)
    separate.compilation_config = copy.copy(engine.compilation_config)
    separate.compilation_config.static_forward_context = {}
    separate.compilation_config.static_all_moe_layers = []
    token = current_build.set(build)
    try:
        with (
            _empty_rope_cache(),
            set_default_torch_dtype(engine.model_config.dtype),
            torch.device(weights),
        ):
            return utils.initialize_model(vllm_config=separate)
    finally:
        current_build.reset(token)


@contextlib.contextmanager
def _empty_rope_cache() -> Iterator[None]:
    """Empty vLLM's cache of rotary modules for a while: it has modules whose tables were swapped."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    cached = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    try:
        yield
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(cached)


def start_process_groups() -> None:
    """Set up the process groups that vLLM's layers need, with this process alone in them.

    They stay for the life of the process.
    """
    from vllm.distributed import (
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    if torch.distributed.is_initialized():
        destroy_model_parallel()  # which groups there are depends on the model
    else:
        with tempfile.NamedTemporaryFile() as file:
            name = file.name
        init_distributed_environment(1, 0, f"file://{name}", 0, "gloo")
    initialize_model_parallel()
