"""Tiny random models of the families, everything that positions depend on as published."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from resonance_vllm.core.spec import LENGTH, METHODS
from resonance_vllm.hf.model import layer_types, rotary_modules
from resonance_vllm.hf.request import configs
from resonance_vllm.hf.tiny import tiny_config
from resonance_vllm.positions import by_layer, global_layers, windowed, without_window


def config_of(folder: Path) -> Any:
    """The folder's config with small sizes, its layers cut to one pattern of layer types."""
    return copy.deepcopy(_small(folder))


@functools.cache
def _small(folder: Path) -> Any:
    published = AutoConfig.from_pretrained(folder)
    try:
        config = tiny_config(published)
    except AttributeError:  # transformers 5.24.0: Llama 4's class for images fails on text alone
        config = tiny_config(published.get_text_config())
    for each in configs(config):
        if hasattr(each, "initializer_range"):
            each.initializer_range = 0.2  # positions shall count for the logits
    return config


def output(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits, or the hidden states of a model that has none."""
    with torch.no_grad():
        found = model(ids)
    result: torch.Tensor = found.logits if hasattr(found, "logits") else found[0]
    return result


def shipped_of(config: Any) -> dict[str, Any]:
    """The text model's own settings, on the global layers."""
    rope = by_layer(config.get_text_config())
    return dict(rope[None] if None in rope else rope[without_window(rope)[0]] if rope else {})


def asked(config: Any, rope: dict[str, Any], length: int | None = None) -> Any:
    """The config with `rope` in place of the text model's own scaling, on the global layers.

    `length` is the trained one, wherever a config has a place for it.
    """
    changed = copy.deepcopy(config)
    text = changed.get_text_config()
    if length is not None:
        text.max_position_embeddings = length
        if getattr(text, LENGTH, None) is not None:
            setattr(text, LENGTH, length)
    new = {key: value for key, value in shipped_of(config).items() if key not in SCALING}
    new |= rope
    there = by_layer(text)
    if len(there) > 1 and len(wide := without_window(there)) > 1:
        # DeepSeek-V4: Resonance alone is for each of several rotations.
        kinds = {kind: there[kind]["rope_type"] for kind in wide}
        types = {k: "resonance" if t == "default" else f"resonance_{t}" for k, t in kinds.items()}
        own = rope["rope_type"].startswith("resonance")
        there |= {k: {**there[k], "rope_type": types[k] if own else t} for k, t in kinds.items()}
        text.rope_parameters = there
        return changed
    if there and None not in there:
        text.rope_parameters = {**text.rope_parameters, global_layers(there): new}
    else:
        text.rope_parameters = new
    return changed


def global_rotations(model: Any) -> list[tuple[Any, str, str | None]]:
    """Rotary modules of the text model, prefix of their attributes and layer type.

    The sliding layers of a model with several rotations aside: they turn as shipped.
    """
    return [
        (module, "" if kind is None else f"{kind}_", kind)
        for _, module in rotary_modules(model)
        for kind in layer_types(module)
        if not windowed(kind)
    ]


def answers(module: Any, kind: str | None, positions: list[int]) -> list[torch.Tensor]:
    """cos and sin of a rotary module, real and imaginary part where it is complex."""
    keywords = {} if kind is None else {"layer_type": kind}
    answer = module(torch.zeros(1), torch.tensor([positions]), **keywords)
    if isinstance(answer, torch.Tensor):
        return [answer.real, answer.imag]
    return list(answer)


SCALING = {key for method in METHODS.values() for key in method.key_names()} - {
    "rope_theta",
    "partial_rotary_factor",
    LENGTH,  # some model code reads it for itself
} | {"rope_type", "type"}
"""Keys that say how a model's positions are scaled; others are the model's own."""
