"""mlx-lm: the rotary module in the first attention layer of the model that it builds."""

import rope_vectors
from mlx_lm import __version__
from mlx_lm.utils import _get_classes

_mlx = rope_vectors.adapter("_mlx")


def version():
    """The library's version."""
    return __version__


def read(vector):
    """Frequencies from position 1, cos and sin from all positions."""
    model_class, args_class = _get_classes(vector["config"])
    model = model_class(args_class.from_dict(vector["config"]))
    return _mlx.rotated(_mlx.find_rope(model, vector["layer_type"], vector["config"]), vector)
