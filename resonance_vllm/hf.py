"""Adapter for transformers: our rope types, exact phase, precision of rotation.

Call `register()` once in a process, before a model is built. Then the types work wherever
transformers reads `rope_parameters`: config.json, `from_pretrained(rope_parameters=...)`,
`AutoConfig`, save and reload. Stock types keep transformers' own functions.
"""

import functools
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from torch import nn

from leval_border.errors import one_of
from resonance_vllm import hf_float32, hf_request, hf_rotary
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, is_own_type
from resonance_vllm.settings import ROPE_PRECISIONS

logger = logging.getLogger(__name__)

_building: ContextVar[bool] = ContextVar("_building", default=False)


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
    _check_when_read(PreTrainedConfig)
    _adapt_when_built(PreTrainedModel)
    _refill_when_loaded(PreTrainedModel)


def set_rope_precision(model: nn.Module, rope_precision: str) -> None:
    """Choose the precision in which a built model rotates q and k.

    `float32` computes cos, sin and the rotation in float32 and casts q and k back before cache and
    attention; `model` is what transformers does. A model whose code cannot be given float32 keeps
    its own precision, with a warning: `rope_precision_used` of the model says which it is.

    Raises:
        RopeConfigError: another word.
    """
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    state: Any = model
    used = rope_precision
    if rope_precision == "float32":
        reason = hf_float32.patch(model)
        if reason is not None:
            used = "model"
            logger.warning(
                "rope_precision: %s rotates in its own precision, not in float32: %s",
                type(model).__name__,
                reason,
            )
    hf_rotary.set_precision(model, used)
    state.rope_precision_used = used
    state.config.rope_precision = rope_precision


def _checked(self: Any, rope_parameters: object, ignore_keys: object = None) -> None:
    """Nothing: `_check_when_read` comes first, and strict dataclasses hide the kind of an error."""


def _adapt_when_built(model_class: Any) -> None:
    """Show model code stock settings while it builds, then adapt what it built."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _guard(cls)
        return super(model_class, cls).__new__(cls)

    model_class.__new__ = new


@functools.cache
def _guard(cls: Any) -> None:
    """Put our part around a model class's constructor, for whoever calls it."""
    original = cls.__init__

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any = args[0] if args else kwargs.get("config")
        if _building.get() or not hasattr(config, "rope_precision"):
            return original(self, *args, **kwargs)
        token = _building.set(True)
        try:
            with hf_request.stock_settings(config):
                original(self, *args, **kwargs)
                hf_rotary.adapt(self)
        finally:
            _building.reset(token)
            # Model code makes copies of its config.
            if isinstance(self, nn.Module) and "_modules" in vars(self):
                for module in self.modules():
                    for each in hf_request.configs(getattr(module, "config", None)):
                        hf_request.restore(each)
        precision = config.rope_precision
        if precision is not None:
            set_rope_precision(self, precision)
        return None

    cls.__init__ = build


def _refill_when_loaded(model_class: Any) -> None:
    """Loading initialises rotary modules again, from the config; ours are filled after that."""
    original = model_class.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        hf_rotary.settle(result[0] if isinstance(result, tuple) else result)
        return result

    model_class.from_pretrained = classmethod(from_pretrained)


def _check_when_read(config_class: Any) -> None:
    """Check dictionaries of ours before transformers fills in a base of 10,000."""
    original = config_class.__post_init__

    @functools.wraps(original)
    def post_init(self: Any, **kwargs: Any) -> Any:
        params = kwargs.get("rope_scaling") or getattr(self, "rope_parameters", None) or {}
        # A base beside the dictionary is filled in by transformers.
        base = kwargs.get("rope_theta", getattr(self, "rope_theta", None))
        nested = [value for value in params.values() if isinstance(value, Mapping)]
        for settings in nested or [params]:
            if is_own_type(settings.get("rope_type", settings.get("type"))):
                given = {} if base is None else {"rope_theta": base}
                hf_request.spec_of(self, {**given, **settings})
        return original(self, **kwargs)

    config_class.__post_init__ = post_init
