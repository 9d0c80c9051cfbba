"""The worker extension by which a running vLLM engine gets other RoPE settings."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from resonance_vllm.common.errors import RopeConfigError
from resonance_vllm.vllm.plugin import log_settings, register
from resonance_vllm.vllm.requests import complete_settings
from resonance_vllm.vllm.swap import swap


class RopeWorker:
    """Swap RoPE settings while an engine runs, given to it as `worker_extension_cls`.

    `collective_rpc("set_rope", args=(rope,))` replaces the tables of cos and sin in each worker and
    empties the engine's prefix cache. Its numbers are then those of a newly started engine.

    Example:
        llm = LLM(model, worker_extension_cls="resonance_vllm.vllm.RopeWorker")
        llm.collective_rpc("set_rope", args=("yarn:factor=2",))
    """

    get_model: Callable[[], nn.Module]
    """Of vLLM's worker: its model."""
    vllm_config: Any
    """Of vLLM's worker: the engine's config."""

    def set_rope(self, rope: dict[str, Any] | str | None) -> list[dict[str, Any]]:
        """Give every rotary module of this worker other settings.

        Args:
            rope: `"yarn:factor=2"`, or what `--hf-overrides` takes as `rope_parameters`. What is
                missing is taken from the model's config.json, as on the command line. None is the
                unmodified config.json.

        Returns:
            The fields of `RotaryReport` for each rotary module and layer type: `inv_freq` in
            radians per token, `attention_factor`, `exact_phase`.

        Raises:
            RopeConfigError: The settings are wrong, only a new engine can have them, or vLLM has
                not loaded the plugin. The settings are then unchanged.
        """
        if not register.cache_info().currsize:
            raise RopeConfigError(
                "set_rope: vLLM did not load the plugin resonance_rope; name it in VLLM_PLUGINS or "
                "install leval-harness again"
            )
        complete = complete_settings(rope, self.vllm_config.model_config)
        reports = swap(self.get_model(), self.vllm_config, complete)
        log_settings(complete)
        return [dataclasses.asdict(report) for report in reports]
