"""Registration in transformers: our rope types, exact phase, precision of rotation.

Call `register()` once in a process, before a model is built. Then the types work wherever
transformers reads `rope_parameters`: config.json, `from_pretrained(rope_parameters=...)`,
`AutoConfig`, save and reload. Stock types keep transformers' own functions.
"""

import copy
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from resonance_vllm.core import frequencies
from resonance_vllm.core.spec import OWN_TYPES
from resonance_vllm.hf import request
from resonance_vllm.hf.model import set_rope_precision, wrap_constructor
from resonance_vllm.hf.rotary import refill
from resonance_vllm.positions import by_layer

__all__ = ["register", "set_rope_precision"]

logger = logging.getLogger(__name__)


@functools.cache
def register() -> None:
    """Add our rope types to transformers; a second call does nothing.

    `rope_precision` becomes a keyword of `from_pretrained` and a key of config.json: `float32` or
    `model` (the default: the activations' dtype, as transformers does).
    """
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ROPE_INIT_FUNCTIONS.update(dict.fromkeys(OWN_TYPES, rope_function))
    # Most classes are imported much later, so each is changed when its first object is made.
    _when_first_made(PreTrainedConfig, validate_plain)
    _when_first_made(PreTrainedModel, wrap_constructor)
    wrap_loading(PreTrainedModel)
    wrap_reading(PreTrainedConfig)


def rope_function(
    config: Any,
    device: torch.device | str | None = None,
    seq_len: int | Tensor | None = None,
    layer_type: str | None = None,
) -> tuple[Tensor, float]:
    """The entry of every type of ours in transformers' `ROPE_INIT_FUNCTIONS`.

    For a rotary module that is made alone, outside a model: frequencies without the exact phase.

    Returns:
        `inv_freq`, float32 `[features]`, and the attention factor. `seq_len` is a tensor where it
        follows a sequence; `layer_type` is the key of `rope_parameters` by layer type.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    settings = by_layer(config)[layer_type]
    spec, stock = request.spec_of(config, settings), request.stock_of(settings)
    if stock["rope_type"] == "default":  # which is no function of the registry
        stock |= {"rope_type": "linear", "factor": 1.0}
    shown = copy.copy(config)
    shown.rope_parameters = (
        stock if layer_type is None else {**config.rope_parameters, layer_type: stock}
    )
    length = None if seq_len is None else int(seq_len)
    function = ROPE_INIT_FUNCTIONS[stock["rope_type"]]
    found, scale = function(shown, device, seq_len=length, layer_type=layer_type)
    rotation = frequencies.rotation(spec, frequencies.base_frequencies(spec, found, length))
    target = torch.get_default_device() if device is None else device
    factor = scale if spec.base_is_stock else spec.method.scale()
    return rotation.inv_freq.to(dtype=torch.float32, device=target), factor


def _when_first_made(base: Any, change: Callable[[Any], None]) -> None:
    """Change every class of a kind when its first object is made."""
    once = functools.cache(change)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        once(cls)
        return super(base, cls).__new__(cls)

    base.__new__ = new


def wrap_loading(model_class: Any) -> None:
    """Loading initialises rotary modules again, from the config; ours are filled after that."""
    original = model_class.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        refill(result[0] if isinstance(result, tuple) else result)
        return result

    model_class.from_pretrained = classmethod(from_pretrained)


def wrap_reading(config_class: Any) -> None:
    """Let transformers' config base class read our types and keywords.

    Settings of ours are checked before transformers fills in a base of 10,000.

    Keywords of `from_pretrained` are applied key by key at every depth, and RoPE settings among
    them are noted. transformers changes a config one level down key by key, and replaces one two
    levels down by the keys that are given: a model's sizes become defaults (Qwen-Omni's text model
    is in `thinker_config.text_config`).
    """
    config_class.rope_precision = None
    for rope_type in OWN_TYPES:
        # Without one, transformers warns that it cannot check the type.
        setattr(config_class, f"_validate_{rope_type}_rope_parameters", lambda *_, **__: None)
    check: Any = config_class.__post_init__
    read: Any = config_class.from_dict.__func__

    @functools.wraps(check)
    def post_init(self: Any, **kwargs: Any) -> Any:
        params = kwargs.get("rope_scaling") or getattr(self, "rope_parameters", None) or {}
        # transformers fills in a base that stands beside the dictionary.
        base = kwargs.get("rope_theta", getattr(self, "rope_theta", None))
        nested = [value for value in params.values() if isinstance(value, Mapping)]
        for settings in nested or [params]:
            if request.type_of(settings) in OWN_TYPES:
                request.spec_of(
                    self, {**({} if base is None else {"rope_theta": base}), **settings}
                )
        return check(self, **kwargs)

    @functools.wraps(read)
    def from_dict(cls: Any, config_dict: Any, *args: Any, **kwargs: Any) -> Any:
        deep = {key: value for key, value in kwargs.items() if _is_deep(cls, key, value)}
        before = read(cls, copy.deepcopy(config_dict)) if _has_rope(kwargs) else None
        direct = {key: value for key, value in kwargs.items() if key not in deep}
        result = read(cls, config_dict, *args, **direct)
        config = result[0] if isinstance(result, tuple) else result
        if deep:
            _update(config, deep)
        if before is not None:
            request.note_overrides(config, before, kwargs)
        return result

    config_class.__post_init__ = post_init
    config_class.from_dict = classmethod(from_dict)


def validate_plain(cls: Any) -> None:
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


def _has_rope(overrides: Mapping[str, Any]) -> bool:
    """Whether overrides have RoPE settings, at any depth."""
    below = (value for value in overrides.values() if isinstance(value, Mapping))
    return isinstance(overrides.get("rope_parameters"), Mapping) or any(map(_has_rope, below))


def _is_deep(config_class: Any, key: str, override: Any) -> bool:
    """Whether an override of a config changes one that is nested two levels down or deeper."""
    below = getattr(config_class, "sub_configs", {}).get(key)
    inner = getattr(below, "sub_configs", {})
    return isinstance(override, Mapping) and any(name in inner for name in override)


def _update(config: Any, overrides: Mapping[str, Any]) -> None:
    """Change the configs nested in a config by the given keys, at every depth."""
    from transformers import PreTrainedConfig

    for name, given in overrides.items():
        below = getattr(config, name, None)
        if not isinstance(below, PreTrainedConfig) or not isinstance(given, Mapping):
            continue
        inner = {key: value for key, value in given.items() if key in below.sub_configs}
        _update(below, inner)
        own = {key: value for key, value in given.items() if key not in inner}
        if own:
            setattr(config, name, type(below)(**{**below.to_dict(), **own}))
