"""lmdeploy, its PyTorch engine: `build_rotary_embedding_from_config` on its default backend."""

import importlib.metadata
import logging

import torch
from lmdeploy.pytorch.backends.default.op_backend import DefaultOpsBackend
from lmdeploy.pytorch.nn import rotary_embedding
from transformers import AutoConfig

logging.getLogger("transformers").setLevel(logging.ERROR)
rotary_embedding.get_backend = lambda: DefaultOpsBackend


def version():
    """The library's version."""
    return importlib.metadata.version("lmdeploy")


def read(vector):
    """Cos and sin of a forward pass over the positions, the last one included."""
    if vector["layer_type"] or "qk_rope_head_dim" in vector["config"]:
        raise NotImplementedError("settings that a model file takes apart by itself")
    if "alpha" in vector["rope"]:
        raise NotImplementedError("lmdeploy has no HunYuan")
    given = dict(vector["config"])
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    module = rotary_embedding.build_rotary_embedding_from_config(config)
    positions = torch.tensor([vector["positions"]])
    cos, sin = (values[0].double() for values in module(torch.zeros(1, 1, 1), positions))
    half, at_1 = cos.shape[-1] // 2, vector["positions"].index(1)
    cos, sin = cos[:, :half], sin[:, :half]
    return {
        "inv_freq": torch.atan2(sin[at_1], cos[at_1]).tolist(),
        "attention_factor": float(torch.hypot(cos[at_1, 0], sin[at_1, 0])),
        "cos": cos.tolist(),
        "sin": sin.tolist(),
    }
