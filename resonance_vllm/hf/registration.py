"""Adapter for transformers: our rope types, exact phase, precision of rotation.

Call `register()` once in a process, before a model is built. Then the types work wherever
transformers reads `rope_parameters`: config.json, `from_pretrained(rope_parameters=...)`,
`AutoConfig`, save and reload. Stock types keep transformers' own functions.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from leval_border.errors import one_of
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import OWN_TYPES, is_own_type
from resonance_vllm.hf import carried as hf_carried
from resonance_vllm.hf import float32 as hf_float32
from resonance_vllm.hf import model as hf_model
from resonance_vllm.hf import nested_configs as hf_nested
from resonance_vllm.hf import request as hf_request
from resonance_vllm.hf import stock as hf_asked
from resonance_vllm.model_config.overrides import ROPE_PRECISIONS

logger = logging.getLogger(__name__)

# What model code raises on settings that it does not know.
_CODE_ERRORS = (AttributeError, KeyError, TypeError, ValueError)

_building: ContextVar[bool] = ContextVar("_building", default=False)


@functools.cache
def register() -> None:
    """Add our rope types to transformers; a second call does nothing.

    `rope_precision` becomes a keyword of `from_pretrained` and a key of config.json: `float32` or
    `model` (the default: the activations' dtype, as transformers does).
    """
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for rope_type in OWN_TYPES:
        ROPE_INIT_FUNCTIONS[rope_type] = hf_carried.rope_function
        # Where there is none, transformers warns of a type that it cannot check.
        setattr(PreTrainedConfig, f"_validate_{rope_type}_rope_parameters", _checked_when_read)
    PreTrainedConfig.rope_precision = None
    _check_when_read(PreTrainedConfig)
    hf_nested.read_with_overrides(PreTrainedConfig)
    _when_first_made(PreTrainedConfig, _check_plain)
    _when_first_made(PreTrainedModel, _adapt_built)
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
        rotary = any(hf_model.text_rotary(model))
        reason = hf_float32.patch(model) if rotary else "it has no rotary module"
        if reason is not None:
            used = "model"
            logger.warning(
                "rope_precision: %s rotates in its own precision, not in float32: %s",
                type(model).__name__,
                reason,
            )
    hf_model.set_precision(model, used)
    state.rope_precision_used = used
    state.config.rope_precision = rope_precision


def _when_first_made(base: Any, change: Callable[[Any], None]) -> None:
    """Change every class of a kind when its first object is made: most are imported much later."""
    once = functools.cache(change)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        once(cls)
        return super(base, cls).__new__(cls)

    base.__new__ = new


def _adapt_built(cls: Any) -> None:
    """Put our part around a model class's constructor."""
    cls.__init__ = _built_model(cls.__init__)


def _built_model(original: Any) -> Any:
    """A model's constructor: model code sees stock settings, then what it built is adapted."""

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any = args[0] if args else kwargs.get("config")
        if _building.get() or not hasattr(config, "rope_precision"):
            return original(self, *args, **kwargs)
        token = _building.set(True)
        for each in hf_request.configs(config):
            hf_request.complete_head_dim(each)
        try:
            with hf_request.stock_settings(config) as changed:
                random = torch.get_rng_state()
                try:
                    original(self, *args, **kwargs)
                except _CODE_ERRORS as error:
                    if not changed:
                        raise
                    torch.set_rng_state(random)  # the weights of a seed, not the next ones
                    _build_plain(original, changed, error, self, *args, **kwargs)
                hf_model.adapt(self)
                hf_asked.verify(self)
        finally:
            _building.reset(token)
            if "_modules" in vars(self):
                # Model code makes copies of its config.
                for module in self.modules():
                    for each in hf_request.configs(getattr(module, "config", None)):
                        hf_request.restore(each)
        if config.rope_precision is not None:
            set_rope_precision(self, config.rope_precision)
        return None

    return build


def _build_plain(
    original: Any, changed: list[Any], reason: Exception, self: Any, *args: Any, **kwargs: Any
) -> None:
    """Build a model whose code refuses a method's stock type; plain RoPE is what ours changes.

    Ernie 4.5 VL takes no type but `default`, and DeepSeek's code reads a factor of every other.

    Raises:
        RopeConfigError: it does not build so either.
    """
    hf_request.show_plain(changed)
    try:
        original(self, *args, **kwargs)
    except _CODE_ERRORS as error:
        asked = next(iter(hf_request.requests_of(changed[0]).values()))
        raise RopeConfigError(
            f"rope_type: {asked['rope_type']!r}: the code of {type(self).__name__} does not build "
            f"with it: {type(reason).__name__}: {reason}; allowed: what this model's code reads"
        ) from error


def _check_plain(cls: Any) -> None:
    """Let a config class's checks see plain settings in place of ours.

    Classes check what they know; some refuse every type but theirs (Phi 3). They do it when a
    config is read and when it is saved; vLLM calls the check of RoPE alone once more. That one is
    left as it is where all classes have it from: vLLM puts its own in its place there.
    """
    from transformers import PreTrainedConfig

    for each in cls.__mro__:
        for name in ("validate", "validate_rope"):
            original = vars(each).get(name)
            common = name == "validate_rope" and each in PreTrainedConfig.__mro__
            if original is not None and not common and not hasattr(original, "_resonance"):
                setattr(each, name, _with_plain(original))


def _with_plain(original: Any) -> Any:
    @functools.wraps(original)
    def validate(self: Any, *args: Any, **kwargs: Any) -> None:
        with hf_request.plain_settings(self):
            original(self, *args, **kwargs)

    validate._resonance = True  # type: ignore[attr-defined]
    return validate


def _checked_when_read(self: Any, rope_parameters: Any, ignore_keys: Any = None) -> None:
    """A further check of settings of ours, by whoever calls transformers' own: nothing is left."""


def _check_when_read(config_class: Any) -> None:
    """Check settings of ours before transformers fills in a base of 10,000."""
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


def _refill_when_loaded(model_class: Any) -> None:
    """Loading initialises rotary modules again, from the config; ours are filled after that."""
    original = model_class.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        hf_model.settle(result[0] if isinstance(result, tuple) else result)
        return result

    model_class.from_pretrained = classmethod(from_pretrained)
