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
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, RopeRequest, is_own_type
from resonance_vllm.positions import ModelPositions
from resonance_vllm.settings import ROPE_PRECISIONS


@functools.cache
def register() -> None:
    """Add our rope types to transformers; a second call does nothing.

    `rope_precision` becomes a keyword of `from_pretrained` and a key of config.json: `float32` or
    `model` (the default: the activations' dtype, as transformers does).
    """
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RotaryEmbeddingConfigMixin

    for rope_type in OWN_TYPES:
        ROPE_INIT_FUNCTIONS[rope_type] = hf_rotary.rope_function
        # Looked up by name; without one transformers warns.
        setattr(RotaryEmbeddingConfigMixin, f"_validate_{rope_type}_rope_parameters", _checked)
    PreTrainedConfig.rope_precision = None
    _adapt_when_built(PreTrainedModel)
    _check_when_read(RotaryEmbeddingConfigMixin)


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


def _checked(self: Any, rope_parameters: object, ignore_keys: object = None) -> None:
    """Nothing: `_check_when_read` comes first, and strict dataclasses hide the kind of an error."""


def _adapt_when_built(model_class: Any) -> None:
    """Adapt rotary modules when a model has been built, by whatever way."""
    original = model_class.post_init

    @functools.wraps(original)
    def post_init(self: Any) -> Any:
        result = original(self)
        precision = getattr(self.config, "rope_precision", None)
        if precision is not None:
            one_of("rope_precision", precision, ROPE_PRECISIONS, RopeConfigError)
        hf_rotary.adapt(self)
        return result

    model_class.post_init = post_init


def _check_when_read(mixin: Any) -> None:
    """Check dictionaries of ours before transformers fills in a base of 10,000."""
    original = mixin.convert_rope_params_to_dict

    @functools.wraps(original)
    def convert_rope_params_to_dict(self: Any, **kwargs: Any) -> Any:
        params = kwargs.get("rope_scaling") or self.rope_parameters or {}
        nested = [value for value in params.values() if isinstance(value, Mapping)]
        # A base beside the dictionary is filled in by transformers.
        base = kwargs.get("rope_theta", getattr(self, "rope_theta", None))
        model = ModelPositions(
            model_type=self.model_type,
            rope_theta=base,
            max_position_embeddings=self.max_position_embeddings,
        )
        for settings in nested or [params]:
            rope_type = settings.get("rope_type", settings.get("type"))
            if is_own_type(rope_type):
                rope = {**settings, "rope_type": rope_type}
                rope.pop("type", None)
                model.complete(RopeRequest.from_dict(rope, aliases=False))
        return original(self, **kwargs)

    mixin.convert_rope_params_to_dict = convert_rope_params_to_dict
