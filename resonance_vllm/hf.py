"""Adapter for transformers: our rope types in its registry, exact phase, precision of rotation.

Call `register()` once in a process, before a model is built. Then the types work wherever
transformers reads `rope_parameters`: config.json, `from_pretrained(rope_parameters=...)`,
`AutoConfig`, save and reload. Stock types keep transformers' own functions.
"""

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

from leval_border.errors import one_of
from resonance_vllm import hf_rotary
from resonance_vllm.backend_args import ROPE_PRECISIONS
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, RopeRequest, is_own_type
from resonance_vllm.positions import ModelPositions

_MARK = "_resonance_registered"


def register() -> None:
    """Add our rope types to transformers; a second call does nothing.

    Every type is put into `ROPE_INIT_FUNCTIONS` and given a validator. `rope_precision` becomes a
    keyword of `from_pretrained` and a key of config.json: `float32` or `model` (the default: the
    activations' dtype, as transformers does).
    """
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

    for rope_type in OWN_TYPES:
        ROPE_INIT_FUNCTIONS[rope_type] = hf_rotary.rope_function
        setattr(RotaryEmbeddingConfigMixin, f"_validate_{rope_type}_rope_parameters", _validate)
    if not hasattr(PreTrainedConfig, "rope_precision"):
        PreTrainedConfig.rope_precision = None
    _wrap_post_init(PreTrainedModel)
    _wrap_convert(RotaryEmbeddingConfigMixin)


def set_rope_precision(model: nn.Module, rope_precision: str) -> None:
    """Choose the precision in which a built model rotates q and k.

    `float32` computes cos, sin and the rotation in float32 and casts q and k back before cache and
    attention; `model` is what transformers does.

    Raises:
        RopeConfigError: another word, or a family in which float32 has not been checked.
    """
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    hf_rotary.set_precision(model, rope_precision)
    config: Any = model.config
    config.rope_precision = rope_precision


def _validate(
    self: Any, rope_parameters: Mapping[str, Any], ignore_keys: set[str] | None = None
) -> None:
    """Checks a dictionary when a config is made; transformers looks this up by type name."""
    skipped = ignore_keys or set()
    kept = {key: value for key, value in rope_parameters.items() if key not in skipped}
    model = ModelPositions(max_position_embeddings=self.max_position_embeddings)
    model.complete(RopeRequest.from_dict(kept, aliases=False))


def _wrap_post_init(model_class: Any) -> None:
    """Adapt rotary modules when a model has been built, by whatever way."""
    original = model_class.post_init
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def post_init(self: Any) -> Any:
        result = original(self)
        precision = getattr(self.config, "rope_precision", None)
        if precision is not None:
            one_of("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
        hf_rotary.adapt(self)
        return result

    setattr(post_init, _MARK, True)
    model_class.post_init = post_init


def _wrap_convert(mixin: Any) -> None:
    """Check dictionaries of ours before transformers fills in a base of 10,000.

    The validators below run inside its strict dataclasses, which hide the kind of an error.
    """
    original = mixin.convert_rope_params_to_dict
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def convert_rope_params_to_dict(self: Any, **kwargs: Any) -> Any:
        params = kwargs.get("rope_scaling") or self.rope_parameters or {}
        nested = [value for value in params.values() if isinstance(value, Mapping)]
        known = "rope_theta" in kwargs or getattr(self, "rope_theta", None) is not None
        for settings in nested or [params]:
            rope_type = settings.get("rope_type", settings.get("type"))
            if not is_own_type(rope_type):
                continue
            if not known and settings.get("rope_theta") is None:
                raise RopeConfigError(
                    f"rope_theta: missing in rope_parameters of rope_type {rope_type!r}; "
                    "allowed: the base that the model was trained with"
                )
            _validate(self, {"rope_theta": 10000.0, **settings, "rope_type": rope_type}, {"type"})
        return original(self, **kwargs)

    setattr(convert_rope_params_to_dict, _MARK, True)
    mixin.convert_rope_params_to_dict = convert_rope_params_to_dict
