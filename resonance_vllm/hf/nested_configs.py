"""Keywords of transformers' `from_pretrained` in configs that are nested in a model's.

transformers changes a config one level down key by key, and replaces one two levels down by the
keys that are asked for: a model's sizes become defaults (Qwen-Omni's text model is in
`thinker_config.text_config`).
"""

import copy
import functools
import logging
from collections.abc import Mapping
from typing import Any

from resonance_vllm.hf import stock as hf_asked
from resonance_vllm.model_config import shipped_scaling as replaced

logger = logging.getLogger("resonance_vllm.hf.registration")

_ROPE = "rope_parameters"


def read_with_overrides(config_class: Any) -> None:
    """Take them key by key at every depth, and say which shipped scaling they give up."""
    original: Any = config_class.from_dict.__func__

    @functools.wraps(original)
    def from_dict(cls: Any, config_dict: Any, *args: Any, **kwargs: Any) -> Any:
        nested = "text_config"
        for shipped, asked in (
            (config_dict, kwargs),
            (config_dict.get(nested), kwargs.get(nested)),
        ):
            if isinstance(shipped, Mapping) and isinstance(asked, Mapping):
                there = shipped.get("rope_parameters") or shipped.get("rope_scaling")
                replaced.remark(there, asked.get(_ROPE), logger)
        before = original(cls, copy.deepcopy(config_dict)) if _asks(kwargs) else None
        deep = {key for key, value in kwargs.items() if _is_deep(cls, key, value)}
        overrides = {key: kwargs.pop(key) for key in deep}
        result = original(cls, config_dict, *args, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        update(config, overrides)
        if before is not None:
            _mark(config, before, {**kwargs, **overrides})
        return result

    config_class.from_dict = classmethod(from_dict)


def _asks(overrides: Mapping[str, Any]) -> bool:
    """Whether overrides have RoPE settings, at any depth."""
    below = (value for value in overrides.values() if isinstance(value, Mapping))
    return isinstance(overrides.get(_ROPE), Mapping) or any(map(_asks, below))


def _mark(config: Any, before: Any, overrides: Mapping[str, Any]) -> None:
    """Note in a config, and those nested in it, which RoPE settings overrides asked for."""
    if isinstance(overrides.get(_ROPE), Mapping):
        hf_asked.mark(config, before)
    for name in getattr(config, "sub_configs", {}):
        if isinstance(below := overrides.get(name), Mapping):
            _mark(getattr(config, name), getattr(before, name), below)


def _is_deep(config_class: Any, key: str, override: Any) -> bool:
    """Whether an override of a config changes one that is nested two levels down or deeper."""
    below = getattr(config_class, "sub_configs", {}).get(key)
    inner = getattr(below, "sub_configs", {})
    return isinstance(override, Mapping) and any(name in inner for name in override)


def update(config: Any, overrides: Mapping[str, Any]) -> None:
    """Change the configs nested in a config by the keys that are given, at every depth."""
    from transformers import PreTrainedConfig

    for name, asked in overrides.items():
        below = getattr(config, name, None)
        if not isinstance(below, PreTrainedConfig) or not isinstance(asked, Mapping):
            continue
        inner = {key: value for key, value in asked.items() if key in below.sub_configs}
        update(below, inner)
        own = {key: value for key, value in asked.items() if key not in inner}
        if own:
            setattr(config, name, type(below)(**{**below.to_dict(), **own}))
