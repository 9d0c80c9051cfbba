"""transformers 4.46 and later: the rotary module of the config's own model file."""

import copy
import importlib
import inspect

import torch
import transformers
from transformers import AutoConfig


def version():
    """The library's version."""
    return transformers.__version__


def read(vector):
    """What the module holds after a forward pass over the positions, the last one included."""
    config = dict(vector["config"])
    config = AutoConfig.for_model(config.pop("model_type"), **config)
    layers = {"layer_type": vector["layer_type"]} if vector["layer_type"] else {}
    module_class = _module_class(config)
    if layers and "layer_type" not in inspect.signature(module_class.forward).parameters:
        config, layers = _local(config, vector["layer_type"]), {}
    module = module_class(config=config)
    positions = torch.tensor([vector["positions"]])
    values = module(torch.zeros(1, 1, 1), positions, **layers)
    cos, sin = (values.real, values.imag) if torch.is_tensor(values) else values
    prefix = f"{vector['layer_type']}_" if layers else ""
    inv_freq = getattr(module, f"{prefix}inv_freq").double()
    return {
        "inv_freq": inv_freq.tolist(),
        "attention_factor": float(getattr(module, f"{prefix}attention_scaling", 1.0)),
        "cos": _once(cos, len(inv_freq)),
        "sin": _once(sin, len(inv_freq)),
    }


def _module_class(config):
    """The class of the text model; a vision tower has one of its own."""
    name = type(config).__module__.replace("configuration_", "modeling_")
    for found in vars(importlib.import_module(name)).values():
        text = getattr(found, "__name__", "").endswith("RotaryEmbedding")
        if (
            text
            and "Vision" not in found.__name__
            and "config" in inspect.signature(found).parameters
        ):
            return found
    raise NotImplementedError(f"{name} has no rotary module that reads a config")


def _local(config, layer_type):
    """The config of which transformers 4 makes a second module for sliding layers."""
    if layer_type == "sliding_attention":
        config = copy.deepcopy(config)
        config.rope_theta = config.rope_local_base_freq
        config.rope_scaling = {"rope_type": "default"}
    return config


def _once(values, features):
    """`[positions, features]` of a table that has every feature once or twice, in either order."""
    rows = values.reshape(-1, values.shape[-1])
    if rows.shape[-1] == 2 * features:
        neighbours = bool((rows[:, 0::2] == rows[:, 1::2]).all())
        rows = rows[:, 0::2] if neighbours and features > 1 else rows[:, :features]
    return rows.tolist()
