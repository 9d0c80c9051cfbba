"""mlx-vlm: the rotary module in the first attention layer of the text model that it builds."""

import importlib.metadata

import rope_vectors
from mlx_vlm.utils import get_model_and_args

_mlx = rope_vectors.adapter("_mlx")


def version():
    """The library's version."""
    return importlib.metadata.version("mlx-vlm")


def read(vector):
    """Frequencies from position 1, cos and sin from all positions."""
    package, *_ = get_model_and_args(vector["config"])
    model = package.Model(package.ModelConfig.from_dict(vector["config"]))
    model = getattr(model, "language_model", model)
    return _mlx.rotated(_mlx.find_rope(model, vector["layer_type"], vector["config"]), vector)
