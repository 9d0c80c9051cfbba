"""What transformers' rotary modules hold for a checkpoint, which is built without weights."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig

from resonance_vllm.config import read_config
from resonance_vllm.hf.model import rotary_report
from resonance_vllm.hf.registration import register
from resonance_vllm.verifier import NoRope, RotaryReport


def report_of_checkpoint(
    model: str, overrides: Mapping[str, Any] | None = None
) -> list[RotaryReport]:
    """The rotations that transformers builds for a checkpoint, one entry a module and layer type.

    Args:
        model: checkpoint folder (weights and tokenizer are not read) or hub name.
        overrides: keys of its config, as `overrides.hf_overrides` writes them.

    Raises:
        NoRope: the model has no RoPE, or none that follows its settings; or transformers does not
            know the model.
        RopeConfigError: the config cannot be read, or the settings are wrong.
    """
    register()
    read = read_config(model)
    if isinstance(read, Mapping):
        raise NoRope(
            f"transformers {transformers.__version__} does not know model type "
            f"{read.get('model_type')!r}"
        )
    config, unused = AutoConfig.from_pretrained(
        model, return_unused_kwargs=True, **dict(overrides or {})
    )
    if unused:
        raise NoRope(
            f"{', '.join(unused)}: would be ignored: {type(config).__name__} has no such setting: "
            "the model has no RoPE, or one that its code fixes"
        )
    built = on_meta(config)
    reports = rotary_report(built)
    if not reports:
        raise NoRope(f"{type(built).__name__} has no rotary module: it is a model without RoPE")
    return reports


def on_meta(config: PreTrainedConfig) -> Any:
    """The model of a config with its weights on the meta device."""
    with torch.device("meta"):
        return made(config, lambda cls, each: cls(each))


def made(config: PreTrainedConfig, make: Callable[[Any, PreTrainedConfig], Any]) -> Any:
    """What `make` makes of a model class and its config.

    Of the text model, where parts for images or audio need a package that is not installed.
    """
    try:
        return make(model_class(config), config)
    except ImportError:
        text = config.get_text_config(decoder=True)
        if text is config:
            raise
        return make(model_class(text), text)


def model_class(config: PreTrainedConfig) -> Any:
    """The class that a checkpoint names, else the one that transformers has for its config.

    Raises:
        NoRope: there is none.
    """
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(name), None)
        if found is not None:
            return found
    for mapping in (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.MODEL_MAPPING,
    ):
        found = mapping.get(type(config), None)
        # For images on text a list may name the class of the text model, which takes its config.
        if found is not None and isinstance(config, found.config_class or object):
            return found
    # Of a family whose text model alone has no place in transformers' lists.
    name = type(config).__module__.replace("configuration_", "modeling_")
    for found in vars(importlib.import_module(name)).values():
        if isinstance(found, type) and getattr(found, "config_class", None) is type(config):
            return found
    raise NoRope(f"transformers has no model class for {type(config).__name__}")
