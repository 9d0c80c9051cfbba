"""Rotation in float32: a family's own function, given float32 cos and sin."""

import functools
import sys
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from resonance_vllm.core.errors import RopeConfigError

# Families whose attention rotates through a module-level apply_rotary_pos_emb(q, k, cos, sin) and
# whose results were compared with a float32 rotation worked out by hand.
FLOAT32_FAMILIES = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
OURS = "_resonance_rope"
"""Attribute of our rotary classes: the family's class."""
_MARK = "_resonance_float32"


def patch_apply(module: nn.Module) -> None:
    """Let a family's rotation take float32 cos and sin and give back q and k in their own dtype.

    The family's function is replaced in its module by one that does the same where dtypes agree.
    """
    config: Any = module.config
    family = getattr(config, "model_type", None)
    if family not in FLOAT32_FAMILIES:
        raise no_float32(module, f"model_type {family!r} has not been checked")
    base = getattr(type(module), OURS, type(module))
    source: ModuleType = sys.modules[base.__module__]
    original = getattr(source, "apply_rotary_pos_emb", None)
    if original is None:
        raise no_float32(module, f"{base.__module__} has no apply_rotary_pos_emb")
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        if cos.dtype == q.dtype:
            return original(q, k, cos, sin, *args, **kwargs)
        turned_q, turned_k = original(q.to(cos.dtype), k.to(cos.dtype), cos, sin, *args, **kwargs)
        return turned_q.to(q.dtype), turned_k.to(k.dtype)

    setattr(rotate, _MARK, True)
    source.apply_rotary_pos_emb = rotate  # type: ignore[attr-defined]


def no_float32(model: nn.Module, reason: str) -> RopeConfigError:
    """The error for a model or module that cannot rotate in float32."""
    return RopeConfigError(
        f"rope_precision: 'float32' is not available with {type(model).__name__}: {reason}; "
        f"allowed: 'model', or one of the families {', '.join(FLOAT32_FAMILIES)}"
    )
