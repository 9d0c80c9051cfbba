"""A method for vLLM's worker process: other RoPE settings on an engine that runs already."""

import os
from typing import Any


class RopeWorker:
    """Given to the engine as `worker_extension_cls`; one engine start then serves all types."""

    model_runner: Any

    def held(self) -> tuple[int, list[tuple[list[float], bool]]]:
        """This process, and frequencies and exact phase of each rotary module in it."""
        from resonance_vllm.vllm.model import rotary_report

        config = self.model_runner.vllm_config.model_config.hf_text_config
        found = rotary_report(self.model_runner.model, config)
        return os.getpid(), [(list(each.inv_freq), each.exact_phase) for each in found]

    def use_rope(self, rope_parameters: dict[str, Any], length: int) -> tuple[str, int]:
        """Rebuild every layer's embedding through the `get_rope` of the worker's model files.

        Returns:
            The class and the number of rows of the new table.
        """
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.models import llama

        layers = self.model_runner.model.model.layers
        with set_current_vllm_config(self.model_runner.vllm_config):
            made = llama.get_rope(
                layers[0].self_attn.head_dim,
                max_position=length,
                rope_parameters=rope_parameters,
                dtype=torch.float32,
            )
        for layer in layers:
            layer.self_attn.rotary_emb = made
        return type(made).__name__, len(getattr(made, "cos_sin_cache", range(length)))
