"""Registration in transformers: our rope types, exact phase, precision of rotation.

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
from resonance_vllm.hf import float32, request
from resonance_vllm.hf import model as rotary_model
from resonance_vllm.hf.rotary import rope_function
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
        ROPE_INIT_FUNCTIONS[rope_type] = rope_function
        # Without one, transformers warns that it cannot check the type.
        setattr(PreTrainedConfig, f"_validate_{rope_type}_rope_parameters", _checked_when_read)
    PreTrainedConfig.rope_precision = None
    _check_when_read(PreTrainedConfig)
    request.read_overrides(PreTrainedConfig)
    _when_first_made(PreTrainedConfig, _validate_plain)
    _when_first_made(PreTrainedModel, _wrap_constructor)
    _refill_when_loaded(PreTrainedModel)


def set_rope_precision(model: nn.Module, rope_precision: str) -> None:
    """Choose the precision in which a built model rotates q and k.

    `float32` computes cos, sin and the rotation in float32 and casts q and k back before cache and
    attention; `model` is what transformers does. A model whose code cannot be given float32 keeps
    its own precision, with a warning: `rope_precision_used` of the model tells which it is.

    Raises:
        RopeConfigError: another word.
    """
    one_of("rope_precision", rope_precision, ROPE_PRECISIONS, RopeConfigError)
    state: Any = model
    used = rope_precision
    if rope_precision == "float32":
        rotary = any(rotary_model.rotary_modules(model))
        reason = float32.patch(model) if rotary else "it has no rotary module"
        if reason is not None:
            used = "model"
            logger.warning(
                "rope_precision: %s rotates in its own precision, not in float32: %s",
                type(model).__name__,
                reason,
            )
    rotary_model.set_precision(model, used)
    state.rope_precision_used = used
    state.config.rope_precision = rope_precision


def _when_first_made(base: Any, change: Callable[[Any], None]) -> None:
    """Change every class of a kind when its first object is made: most are imported much later."""
    once = functools.cache(change)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        once(cls)
        return super(base, cls).__new__(cls)

    base.__new__ = new


def _wrap_constructor(cls: Any) -> None:
    """Let a model's constructor see stock settings, and change what it built."""
    original = cls.__init__

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any = args[0] if args else kwargs.get("config")
        if _building.get() or not hasattr(config, "rope_precision"):
            original(self, *args, **kwargs)
            return
        token = _building.set(True)
        every = list(request.configs(config))
        try:
            for each in every:
                request.prepare(each)
            with request.shown(every, request.stock_of) as changed:
                _construct(functools.partial(original, self, *args, **kwargs), cls, changed)
                rotary_model.apply_requests(self)
        finally:
            _building.reset(token)
            if "_modules" in vars(self):
                # Model code makes copies of its config.
                for module in self.modules():
                    for each in request.configs(getattr(module, "config", None)):
                        request.restore(each)
        if config.rope_precision is not None:
            set_rope_precision(self, config.rope_precision)

    cls.__init__ = build


def _construct(construct: Callable[[], None], cls: Any, changed: list[Any]) -> None:
    """Build a model with stock settings, or plain ones where its code refuses a method's type.

    Ernie 4.5 VL takes no type but `default`, and DeepSeek's code reads a factor of every other.

    Args:
        construct: the constructor with its arguments.
        cls: the model class.
        changed: the configs in which stock settings are shown.

    Raises:
        RopeConfigError: it does not build with plain settings either.
    """
    random = torch.get_rng_state()
    try:
        return construct()
    except _CODE_ERRORS as error:
        if not changed:
            raise
        reason = error
    torch.set_rng_state(random)  # the weights of a seed, not the next ones
    for each in changed:
        request.show(each, request.plain_of)
    try:
        return construct()
    except _CODE_ERRORS as error:
        first = next(iter(request.requests_of(changed[0]).values()))
        raise RopeConfigError(
            f"rope_type: {first.spec.rope_type!r}: the code of {cls.__name__} does not build "
            f"with it: {type(reason).__name__}: {reason}; allowed: what this model's code reads"
        ) from error


def _validate_plain(cls: Any) -> None:
    """Let a config class's checks see plain settings in place of ours.

    Classes check what they know; some refuse every type but theirs (Phi 3). They do it when a
    config is read and when it is saved; vLLM calls the check of RoPE alone once more. The one that
    all classes inherit stays: vLLM replaces it with its own there.
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
        with request.shown([self], request.plain_of):
            original(self, *args, **kwargs)

    validate._resonance = True  # type: ignore[attr-defined]
    return validate


def _checked_when_read(self: Any, rope_parameters: Any, ignore_keys: Any = None) -> None:
    """Transformers' own check of a type of ours: nothing, `_check_when_read` has done it."""


def _check_when_read(config_class: Any) -> None:
    """Check settings of ours before transformers fills in a base of 10,000."""
    original = config_class.__post_init__

    @functools.wraps(original)
    def post_init(self: Any, **kwargs: Any) -> Any:
        params = kwargs.get("rope_scaling") or getattr(self, "rope_parameters", None) or {}
        # transformers fills in a base that stands beside the dictionary.
        base = kwargs.get("rope_theta", getattr(self, "rope_theta", None))
        nested = [value for value in params.values() if isinstance(value, Mapping)]
        for settings in nested or [params]:
            if is_own_type(settings.get("rope_type", settings.get("type"))):
                given = {} if base is None else {"rope_theta": base}
                request.spec_of(self, {**given, **settings})
        return original(self, **kwargs)

    config_class.__post_init__ = post_init


def _refill_when_loaded(model_class: Any) -> None:
    """Loading initialises rotary modules again, from the config; ours are filled after that."""
    original = model_class.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        rotary_model.refill(result[0] if isinstance(result, tuple) else result)
        return result

    model_class.from_pretrained = classmethod(from_pretrained)
