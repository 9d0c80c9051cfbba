"""RoPE requests in transformers configs, and the stock settings that model code sees instead.

Model code looks at `rope_parameters` in dozens of ways: which type it is, a mean softmax scale, a
base a layer, keys of its own. So a model is built with a type that its library knows, the request's
base method (or `default` where no library has that), and its rotary modules are changed afterwards
(`hf.model`). The config gets the request back when the model is built: the request is saved.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import (
    LENGTH,
    OWN_TYPES,
    STOCK_TYPES,
    RopeRequest,
    RopeSpec,
    RopeType,
)
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import (
    Settings,
    by_layer,
    model_keys,
    of_present_layers,
    windowed,
)
from resonance_vllm.verifier import OverriddenRope, Request

logger = logging.getLogger("resonance_vllm.hf.registration")

_HIDDEN = "_rope_requests"
# transformers looks for this key beside the layer types.
_BESIDE_LAYER_TYPES = "truncate"


@dataclass(frozen=True)
class _Hidden:
    """Attribute of a config, and of copies that model code makes, while stock settings are shown.

    Attributes:
        keys: what the requests have and the stock settings have not, by layer type.
        marked: what notes that an override put the requests there; None where none did.
    """

    keys: dict[str | None, Settings]
    marked: OverriddenRope | None

    def shipped(self, layer: str | None) -> Settings | None:
        """The settings of a layer type that an override replaced."""
        return None if self.marked is None else self.marked.shipped_for(layer)


def type_of(settings: Mapping[str, Any]) -> Any:
    """The type in a RoPE dictionary, under its present or its older key."""
    return settings.get("rope_type", settings.get("type"))


def own_settings(config: Any) -> dict[str | None, Settings]:
    """Settings of a config with a type of ours, by layer type."""
    return {k: each for k, each in of_present_layers(config).items() if type_of(each) in OWN_TYPES}


def requests_of(config: Any) -> dict[str | None, Request]:
    """The requests of a config by layer type, while stock settings are shown in it."""
    rope, hidden = by_layer(config), getattr(config, _HIDDEN, None)
    if hidden is None:
        marked = OverriddenRope.of(config)
        return {} if marked is None else marked.requests()
    return {
        layer: Request(
            spec_of(config, {**rope[layer], **keys}), True, rope[layer], hidden.shipped(layer)
        )
        for layer, keys in hidden.keys.items()
        if layer in rope
    }


def spec_of(config: Any, settings: Mapping[str, Any]) -> RopeSpec:
    """Settings of a config, with the lengths that the config knows.

    Raises:
        RopeConfigError: a key is unknown to the method and to the model's code, or missing.
    """
    known = RopeType.read(type_of(settings)).key_names()
    rope = {k: v for k, v in settings.items() if k in known}
    request = RopeRequest.from_dict({**rope, "rope_type": type_of(settings)}, aliases=False)
    given = dict(request.given)
    if request.type.name in STOCK_TYPES and LENGTH in request.type.method.hf_warns_of:
        # transformers does not read the key there; this one belongs to the model's query scale.
        given = {key: value for key, value in given.items() if key not in model_keys(settings)}
    if LENGTH in request.type.key_names():
        positions = getattr(config, "max_position_embeddings", None)
        original = getattr(config, LENGTH, None) or positions
        if LENGTH not in given and original is not None:
            given[LENGTH] = int(original)
        if LENGTH in given:
            request.type.method.fill(given, int(positions or given[LENGTH]))
    return RopeSpec.of(request.type, given)


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


def prepare(config: Any) -> None:
    """Check the requests of a config and what model code sees; write a head size left open.

    Model code divides where there is no head size; transformers' scaled types multiply None by a
    number (Mixtral).

    Raises:
        RopeConfigError: a request is wrong, or a stock type has a key that only types of ours have.
    """
    requests = requests_of(config)
    rope, heads = getattr(config, "rope_parameters", None), vars(config).get("num_attention_heads")
    scaled = isinstance(rope, Mapping) and rope.get("rope_type", "default") != "default"
    left_open = isinstance(heads, int) and vars(config).get("head_dim", heads) is None
    if left_open and (scaled or None in requests):
        config.head_dim = config.hidden_size // heads


@contextlib.contextmanager
def shown(every: Iterable[Any], form: Callable[[Settings], Settings]) -> Iterator[list[Any]]:
    """Show code other settings in place of our types, and yield the configs that have those.

    Args:
        every: configs; one that shows other settings already stays as it is.
        form: `stock_of` or `plain_of`.
    """
    changed = [each for each in every if _HIDDEN not in vars(each) and own_settings(each)]
    try:
        for each in changed:
            show(each, form)
        yield changed
    finally:
        for each in changed:
            restore(each)


def show(config: Any, form: Callable[[Settings], Settings]) -> None:
    """Put a form of each request in a config in its place."""
    restore(config)
    keys: dict[str | None, Settings] = {}
    marked, rope = OverriddenRope.of(config), dict(config.rope_parameters)
    for layer, settings in own_settings(config).items():
        stock = form(settings)
        keys[layer] = {k: v for k, v in settings.items() if stock.get(k) != v}
        if layer is None:
            rope = stock
        else:
            beside = {k: stock[k] for k in (_BESIDE_LAYER_TYPES,) if k in stock}
            rope |= {layer: stock, **beside}
    vars(config)[_HIDDEN] = _Hidden(keys, marked)
    config.rope_parameters = rope


def restore(config: Any) -> None:
    """Give a config, or a copy that model code made of it, its requests back."""
    hidden = vars(config).pop(_HIDDEN, None)
    if hidden is None:
        return
    rope = dict(config.rope_parameters)
    if None not in hidden.keys:
        rope.pop(_BESIDE_LAYER_TYPES, None)
    for layer, keys in hidden.keys.items():
        if layer is None:
            rope |= keys
        else:
            rope[layer] = {**rope[layer], **keys}
    marked = hidden.marked
    config.rope_parameters = (
        rope if marked is None else OverriddenRope.made(rope, marked.specs, marked.shipped)
    )


def stock_of(settings: Settings) -> Settings:
    """Settings of a type of ours as transformers' own type has them, keys of the model kept."""
    kind = RopeType.read(type_of(settings))
    method = kind.method
    if not method.stock or settings.get("ramp", "dimension") != "dimension":
        return plain_of(settings)
    ours = {"ramp", *method.hf_warns_of}
    kept = {key: value for key, value in settings.items() if key not in ours | {"type"}}
    return {**kept, "rope_type": method.name}


def plain_of(settings: Settings) -> Settings:
    """Settings without a method, keys of the model kept."""
    ours = set(RopeType.read(type_of(settings)).key_names()) - set(Method.model_fields) | {"type"}
    kept = {key: value for key, value in settings.items() if key not in ours}
    return {**kept, "rope_type": "default"}


def note_overrides(config: Any, shipped: Any, overrides: Mapping[str, Any]) -> None:
    """Mark RoPE settings in a config, and those nested in it, that overrides put there."""
    if isinstance(overrides.get("rope_parameters"), Mapping):
        _mark(config, shipped)
    for name in getattr(config, "sub_configs", {}):
        if isinstance(below := overrides.get(name), Mapping):
            note_overrides(getattr(config, name), getattr(shipped, name), below)


def _mark(config: Any, shipped: Any) -> None:
    """Note the settings of a config that are not as shipped, and what they replace."""
    before, specs = by_layer(shipped), {}
    for layer, settings in by_layer(config).items():
        if windowed(layer):
            continue
        known = before.get(layer, before.get(None))
        try:
            spec = spec_of(config, settings)
        except RopeConfigError as error:
            logger.warning("rope_parameters: what runs with %s is unknown: %s", settings, error)
            continue
        if known is None or not _is_shipped(spec, shipped, known):
            specs[layer] = spec
    if specs:
        rope = config.rope_parameters
        config.rope_parameters = OverriddenRope.made(rope, specs, copy.deepcopy(before))


def _is_shipped(spec: RopeSpec, shipped: Any, settings: Settings) -> bool:
    try:
        return spec_of(shipped, settings) == spec
    except RopeConfigError:  # a type of the model's own
        return False
