"""Requests in a transformers config, and the stock settings that model code is shown instead.

Model code looks at `rope_parameters` in dozens of ways: which type it is, a mean softmax scale, a
base a layer, keys of its own. So a model is built as what its library knows, the request's base
method (or `default` where no library has that), and its rotary modules are changed afterwards
(`hf_model`). The config gets the request back when the model is built: it is what is saved.
"""

import contextlib
import copy
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Method
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import (
    LENGTH,
    RopeRequest,
    RopeSpec,
    RopeType,
    is_own_type,
    refuse_ignored_keys,
)
from resonance_vllm.core.wavelengths import Resonance

ASKED = "_resonance_asked"
"""Attribute of a config while model code sees stock settings: the keys that differ, by layer."""

_ASIDE = "truncate"

_KEYS = {key for method in METHODS.values() if method.stock for key in method.key_names()}
# In published files, and read by no code: the first YaRN models say it of themselves.
_KEYS |= {"finetuned"}

Settings = dict[str, Any]


def by_layer(config: Any) -> dict[str | None, Settings]:
    """The rope settings of a config by layer type; None is the key of settings for all layers."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return {}
    nested = {key: value for key, value in rope.items() if isinstance(value, dict)}
    return dict(nested) if nested else {None: rope}


def own_requests(config: Any) -> dict[str | None, Settings]:
    """Settings of a config with a type of ours, those of layer types that it has none of aside."""
    present = getattr(config, "layer_types", None)
    rope = by_layer(config)
    if not present or not set(rope) & set(present):
        present = rope
    return {
        key: settings
        for key, settings in rope.items()
        if is_own_type(_type(settings)) and (key is None or key in present)
    }


def configs(config: Any) -> Iterator[Any]:
    """A config and those nested in it, each once."""
    from transformers import PreTrainedConfig

    seen, waiting = set[int](), [config]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, PreTrainedConfig) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.extend(vars(each).values())


def complete_head_dim(config: Any) -> None:
    """Write the head size that a config leaves open, beside a scaled type.

    Model code divides then, transformers' scaled types multiply None by a number (Mixtral).
    """
    rope, heads = getattr(config, "rope_parameters", None), vars(config).get("num_attention_heads")
    scaled = isinstance(rope, Mapping) and rope.get("rope_type", "default") != "default"
    if scaled and isinstance(heads, int) and vars(config).get("head_dim", heads) is None:
        config.head_dim = config.hidden_size // heads


@contextlib.contextmanager
def stock_settings(config: Any) -> Iterator[list[Any]]:
    """Show model code the stock settings of every request in a config.

    Yields the configs that hold a request.
    """
    every = list(configs(config))
    for settings in (settings for each in every for settings in by_layer(each).values()):
        refuse_ignored_keys(settings, "transformers")
    changed = [each for each in every if ASKED not in vars(each) and own_requests(each)]
    try:
        for each in changed:
            _show_stock(each)
        yield changed
    finally:
        for each in changed:
            restore(each)


def _show_stock(config: Any) -> None:
    for settings in own_requests(config).values():
        spec_of(config, settings)  # checked as a whole before model code sees a part of it
    _show(config, stock_of)
    for layer_type in vars(config)[ASKED]:
        if not _is_run(config, layer_type):
            restore(config)
            return _show(config, _plain_of)
    return None


def _is_run(config: Any, layer_type: str | None) -> bool:
    """Whether transformers' function for a type can read this family's config.

    Where it cannot (Mixtral writes no size of a head), plain RoPE is what the method changes.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    function = ROPE_INIT_FUNCTIONS.get(by_layer(config)[layer_type]["rope_type"])
    keywords = {} if layer_type is None else {"layer_type": layer_type}
    try:
        if function is not None:
            function(copy.deepcopy(config), "cpu", **keywords)
    except TypeError:
        return False
    except Exception:  # noqa: BLE001 - the model's own code says it better
        return True
    return True


def show_plain(changed: list[Any]) -> None:
    """Show model code plain settings in place of the stock ones that it does not build with."""
    for config in changed:
        restore(config)
        _show(config, _plain_of)


@contextlib.contextmanager
def plain_settings(config: Any) -> Iterator[None]:
    """Show whoever checks a config plain settings in place of its requests."""
    ours = ASKED not in vars(config) and bool(own_requests(config))
    if ours:
        _show(config, _plain_of)
    try:
        yield
    finally:
        if ours:
            restore(config)


def _show(config: Any, of: Callable[[Settings], Settings]) -> None:
    asked: dict[str | None, Settings] = {}
    shown = dict(config.rope_parameters)
    for layer_type, settings in own_requests(config).items():
        stock = of(settings)
        asked[layer_type] = {k: v for k, v in settings.items() if stock.get(k) != v}
        if layer_type is None:
            shown = stock
        else:
            shown[layer_type] = stock
            # transformers looks for this key beside the layer types.
            shown |= {key: stock[key] for key in (_ASIDE,) if key in stock}
    vars(config)[ASKED] = asked
    config.rope_parameters = shown


def restore(config: Any) -> None:
    """Give a config, or a copy that model code made of it, its requests back."""
    asked = vars(config).pop(ASKED, None)
    if asked is None:
        return
    rope = dict(config.rope_parameters)
    if None not in asked:
        rope.pop(_ASIDE, None)
    for layer_type, keys in asked.items():
        if layer_type is None:
            rope |= keys
        else:
            rope[layer_type] = {**rope[layer_type], **keys}
    config.rope_parameters = rope


def requests_of(config: Any) -> dict[str | None, Settings]:
    """The requests that a module's config stands for while stock settings are shown."""
    rope = by_layer(config)
    asked = getattr(config, ASKED, None) or {}
    return {key: {**rope[key], **keys} for key, keys in asked.items() if key in rope}


def stock_of(settings: Mapping[str, Any]) -> Settings:
    """Settings of a type of ours as transformers' own type has them, keys of the model kept."""
    kind = RopeType.read(_type(settings))
    method = kind.method
    if not method.stock or kind.implied:
        return _plain_of(settings)
    ours = set(Resonance.model_fields) - set(method.model_fields)
    ours |= _keys_of_variants(method) | set(method.hf_warns_of)
    return {**_without(settings, ours), "rope_type": method.name}


def _plain_of(settings: Mapping[str, Any]) -> Settings:
    """Settings without a method, keys of the model kept."""
    ours = set(RopeType.read(_type(settings)).key_names()) - set(Method.model_fields)
    return {**_without(settings, ours), "rope_type": "default"}


def _without(settings: Mapping[str, Any], keys: set[str]) -> Settings:
    return {key: value for key, value in settings.items() if key not in keys | {"type"}}


def _keys_of_variants(method: type[Method]) -> set[str]:
    return {key for implied in method.variants.values() for key in implied}


def spec_of(config: Any, settings: Mapping[str, Any]) -> RopeSpec:
    """A request of a config, with the lengths that the config knows.

    Raises:
        RopeConfigError: a key is unknown to the method and to the model's code, or missing.
    """
    known = RopeType.read(_type(settings)).key_names()
    extra = {key for key in settings if key not in known and _of_model(config, key)}
    rope = {key: value for key, value in settings.items() if key not in extra}
    request = RopeRequest.from_dict({**rope, "rope_type": _type(settings)}, aliases=False)
    given = dict(request.given)
    if request.type.asks_length(given):
        positions = getattr(config, "max_position_embeddings", None)
        original = getattr(config, LENGTH, None) or positions
        if LENGTH not in given and original is not None:
            given[LENGTH] = int(original)
        if LENGTH in given:
            request.type.method.fill(given, int(positions or given[LENGTH]))
    return RopeSpec.of(request.type, given)


def known_settings(config: Any, rope: Any) -> Any:
    """A shipped dictionary without keys that no code of the family reads.

    In a request they would count as misspelt.
    """
    if not isinstance(rope, Mapping):
        return rope
    try:
        known = set(RopeType.read(_type(rope)).key_names())
    except RopeConfigError:
        known = set(rope)  # of a type that nobody but the model's code can read
    return {
        key: known_settings(config, value)
        for key, value in rope.items()
        if isinstance(value, Mapping) or key in known or _of_model(config, key)
    }


def _of_model(config: Any, key: str) -> bool:
    """Whether a key beside a method's own is one that the model's code knows."""
    if key == "type" or key in (getattr(config, "ignore_keys_at_rope_validation", None) or ()):
        return True
    # Published dictionaries keep keys of methods that they do not name.
    return key in _KEYS or names(config, key)


def names(config: Any, word: str) -> bool:
    """Whether a family's code has a word in quotes."""
    return f'"{word}"' in _source(type(config).__module__)


@functools.cache
def _source(config_module: str) -> str:
    """The text of a family's config and model code, read without importing it."""
    parent, _, name = config_module.rpartition(".")
    text = ""
    for module in (config_module, f"{parent}.{name.replace('configuration_', 'modeling_', 1)}"):
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                text += Path(spec.origin).read_text(encoding="utf-8")
    return text


def _type(settings: Mapping[str, Any]) -> Any:
    return settings.get("rope_type", settings.get("type"))
