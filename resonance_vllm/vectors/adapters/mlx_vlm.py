"""mlx-vlm: the rotary module in the first attention layer of the text model that it builds."""

import importlib.metadata
import importlib.util
from pathlib import Path

from mlx_vlm.utils import get_model_and_args

_spec = importlib.util.spec_from_file_location("_mlx", Path(__file__).with_name("_mlx.py"))
_mlx = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_mlx)


def version():
    """The library's version."""
    return importlib.metadata.version("mlx-vlm")


def read(vector):
    """Frequencies from position 1, cos and sin from all positions."""
    package, *_ = get_model_and_args(vector["config"])
    model = package.Model(package.ModelConfig.from_dict(vector["config"]))
    model = getattr(model, "language_model", model)
    return _mlx.rotated(_mlx.find_rope(model, vector["layer_type"], vector["config"]), vector)
