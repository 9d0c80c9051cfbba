"""Our settings in vLLM's configs, and the stock ones that its model files are shown in their place.

Model files copy RoPE dictionaries, pick keys from them, rename types and decide by their names
(DeepSeek's softmax scale, gpt-oss, MiniMax). So while a model is built its config holds the stock
type that ours starts from, and the base in it is a `Carrier`, a float that knows our settings:
whatever dictionary a model file makes for `get_rope`, it has the base.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.spec import (
    LENGTH,
    RESONANCE,
    ROPE_TYPES,
    RopeSpec,
    RopeType,
    is_own_type,
)
from resonance_vllm.model_config import shipped_scaling as replaced
from resonance_vllm.model_config.layer_types import by_layer_type, global_layers

# Keys that settings are made of; any other key of a dictionary belongs to the model.
_SETTINGS = {"rope_type", "type"}.union(*(RopeType.read(t).key_names() for t in ROPE_TYPES))
# With these a scaled type named by a model file is plain RoPE.
_NEUTRAL = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
_ABSENT = object()
AXES = "mrope_section"
"""Key of models whose positions have several axes."""
_ON_AXES = ("default", "yarn")
"""Types of vLLM that build a module for these; its others would take one axis for a sequence."""
OWN_BASE, BETA, QUERY_SCALE = "alpha", "llama_4_scaling_beta", "llama_4_scaling"


class Carrier(float):
    """A base of rotation that knows the settings it stands for.

    Attributes:
        spec: the settings.
        by_library: whether the stock settings beside it are those that `spec` starts from; else
            they are plain ones, which it changes by the ratio that it changes plain RoPE.
    """

    spec: RopeSpec | None
    by_library: bool

    def __new__(
        cls, base: float, spec: RopeSpec | None = None, by_library: bool = True
    ) -> "Carrier":
        """The same number, with settings."""
        made = super().__new__(cls, base)
        made.spec, made.by_library = spec, by_library
        return made


def is_ours(rope_type: object) -> bool:
    """Whether a `rope_type` is one that we answer for, misspelt ones of our family included."""
    return is_own_type(rope_type) or str(rope_type).startswith(RESONANCE)


def asks_us(rope: object) -> bool:
    """Whether a RoPE dictionary has a type that we answer for."""
    return isinstance(rope, Mapping) and is_ours(rope.get("rope_type"))


def of_config(config: Any) -> dict[str | None, RopeSpec]:
    """Settings of ours in a config by layer type; None is the key of a dictionary for all layers.

    Raises:
        RopeConfigError: they are wrong.
    """
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping):
        return {}
    one_each: Mapping[Any, Any] = rope if by_layer_type(rope) else {None: rope}
    present = getattr(config, "layer_types", None) or one_each
    return {
        kind: spec_of(settings)
        for kind, settings in one_each.items()
        if asks_us(settings) and (kind is None or kind in present)
    }


def spec_of(rope: Mapping[str, Any]) -> RopeSpec:
    """The settings in a dictionary of ours; keys of the model itself may stand beside them.

    Raises:
        RopeConfigError: a setting is unknown or missing, or a value is not allowed.
    """
    return RopeSpec.from_dict({k: v for k, v in rope.items() if k in _SETTINGS and k != "type"})


def at_length(rope: Mapping[str, Any], length: int) -> RopeSpec:
    """The settings in a dictionary, read by `spec_of`, with the frequencies of one length."""
    spec = spec_of(rope)
    if fixed_by_model(rope):
        raise RopeConfigError(
            f"rope_type: {spec.rope_type!r} would lose {OWN_BASE} of this model's own dynamic type "
            "in vLLM; allowed: on transformers, or another method in its place"
        )
    return dataclasses.replace(spec, method=spec.method.at_length(length))


def fixed_by_model(rope: Mapping[str, Any]) -> bool:
    """Whether a dynamic type has a base of its own, which no length changes: HunYuan's."""
    return bool(rope.get(OWN_BASE) and RopeType.read(rope["rope_type"]).method.follows_length)


def stock_settings(
    rope: Mapping[str, Any], spec: RopeSpec, positions: int, plain: str = "default"
) -> dict[str, Any]:
    """The stock dictionary from which vLLM builds what our settings then change.

    Complete, because model files read keys without asking whether they are there. What is the
    model's own (`mrope_section`, `rope_dim`) stays.

    Args:
        rope: a dictionary of ours.
        spec: the settings in it.
        positions: the config's length in tokens.
        plain: the family's type without scaling, `default` or `proportional`.
    """
    method = spec.method
    kept = {key: value for key, value in rope.items() if key not in _SETTINGS}
    if "partial_rotary_factor" in rope:
        kept["partial_rotary_factor"] = method.partial_rotary_factor
    # Features that do not turn are a part of such a module; no scaled type of vLLM keeps them.
    by_library = spec.base_is_stock and plain in ("default", method.name)
    by_library &= AXES not in rope or method.name in _ON_AXES
    kept["rope_theta"] = Carrier(method.rope_theta, spec, by_library)
    if not by_library or method.name == plain:
        length = {LENGTH: spec.trained_length or positions}
        return {**_NEUTRAL, **length, **kept, "rope_type": plain}
    implied = {key for variant in method.variants.values() for key in variant}
    own = {key: getattr(method, key) for key in method.key_names() if key not in implied}
    own = {key: list(v) if isinstance(v, tuple) else v for key, v in own.items() if v is not None}
    written = method.for_vllm({**own, "rope_type": method.name})
    common = ("rope_theta", "partial_rotary_factor")
    return {**{k: v for k, v in written.items() if k not in common}, **kept}


def _plain_type(config: Any, layer_type: str | None) -> str:
    """A family's type without scaling: what its config class has by itself."""
    try:
        rope = type(config)().rope_parameters
    except Exception:  # noqa: BLE001 - a config class that cannot be made bare tells nothing
        return "default"
    one = rope.get(layer_type) if isinstance(rope, Mapping) and layer_type else rope
    own = one.get("rope_type") if isinstance(one, Mapping) else None
    return "proportional" if own == "proportional" else "default"


@contextlib.contextmanager
def shown_as_stock(config: Any, length: int) -> Iterator[None]:
    """The config with stock settings in place of ours, each with its `Carrier`."""

    def stock(settings: Any, layer_type: str | None = None) -> Any:
        if not asks_us(settings):
            return copy.deepcopy(settings)
        spec = at_length(settings, length)
        return stock_settings(settings, spec, positions, _plain_type(config, layer_type))

    rope, positions = config.rope_parameters, config.max_position_embeddings
    shown = {k: stock(v, k) for k, v in rope.items()} if by_layer_type(rope) else stock(rope)
    # Layers that keep a rotation of their own get a table of so many rows.
    changes = {"rope_parameters": shown, "max_position_embeddings": max(positions, length)}
    # Some files read the base beside the dictionary.
    for one in shown.values() if by_layer_type(rope) else [shown]:
        base = one.get("rope_theta") if isinstance(one, Mapping) else None
        if isinstance(base, Carrier) and vars(config).get("rope_theta") == base:
            changes["rope_theta"] = base
    with _changed(config, {**_query_scale(config), **changes}):
        yield


def _query_scale(config: Any) -> dict[str, Any]:
    """Ministral 3's scale of queries, where vLLM reads it.

    transformers has it among the RoPE settings, vLLM in a dictionary that only Mistral's own
    format has; without that queries past the original length are not scaled.
    """
    rope = config.rope_parameters
    if not rope.get(BETA) or getattr(config, QUERY_SCALE, None):
        return {}
    length = rope.get(LENGTH) or config.max_position_embeddings
    return {QUERY_SCALE: {LENGTH: length, "beta": rope[BETA]}}


@contextlib.contextmanager
def _changed(config: Any, changes: Mapping[str, Any]) -> Iterator[None]:
    before = {key: getattr(config, key, _ABSENT) for key in changes}
    for key, value in changes.items():
        setattr(config, key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is _ABSENT:
                delattr(config, key)
            else:
                setattr(config, key, value)


def fix_length(config: Any, length: int) -> None:
    """Write our settings with the frequencies of one length, for transformers' modules in vLLM.

    They would take them from the longest position of a batch, and a batch holds many requests.
    """

    def fixed(settings: Any) -> Any:
        if not asks_us(settings) or fixed_by_model(settings):
            return settings
        kept = {key: value for key, value in settings.items() if key not in _SETTINGS}
        if "partial_rotary_factor" in settings:
            kept["partial_rotary_factor"] = settings["partial_rotary_factor"]
        return {**kept, **at_length(settings, length).to_dict()}

    rope = config.rope_parameters
    made = {k: fixed(v) for k, v in rope.items()} if by_layer_type(rope) else fixed(rope)
    config.rope_parameters = made


def top_level(config: Any) -> Any:
    """What `rope_parameters` a config has by itself, `_ABSENT` if none."""
    return vars(config).get("rope_parameters", _ABSENT)


def settle(config: Any, text: Any, shipped: Any, top: Any) -> None:
    """Put settings that overrides asked for where the language model reads them.

    An override replaces a whole dictionary: what belongs to the model in the shipped one
    (`mrope_section`, the rotated share) is put back. One at the top of a nested config reaches no
    module, so it goes to the language model.

    Args:
        config: the model's, overrides applied.
        text: that of its language model, the same object where nothing is nested.
        shipped: `rope_parameters` of `text` before the overrides.
        top: `top_level` of `config` before them.

    Raises:
        RopeConfigError: a key is none of the type's settings and none of the model's.
    """
    asked = getattr(config, "rope_parameters", None)
    if text is not config and anywhere(asked):
        text.rope_parameters = asked
        if top is _ABSENT:
            del config.rope_parameters
        else:
            config.rope_parameters = top
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not anywhere(rope):
        return
    shipped = shipped if isinstance(shipped, Mapping) else {}
    replaced.remark(shipped, rope)
    if by_layer_type(shipped) and not by_layer_type(rope):
        rope = {**shipped, global_layers(shipped): rope}
    if by_layer_type(rope):
        known = shipped if by_layer_type(shipped) else dict.fromkeys(rope, shipped)
        text.rope_parameters = {
            kind: _with_model_keys(one, known.get(kind) or {}) if asks_us(one) else one
            for kind, one in rope.items()
        }
    else:
        text.rope_parameters = _with_model_keys(rope, shipped)


def anywhere(value: Any) -> bool:
    """Whether a dictionary, or one in it, has a type that we answer for."""
    if not isinstance(value, Mapping):
        return False
    return asks_us(value) or any(anywhere(one) for one in value.values())


def _with_model_keys(rope: Mapping[str, Any], shipped: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an override with what belongs to the model in the shipped dictionary."""
    known = {"rope_type", *RopeType.read(rope["rope_type"]).key_names()}
    asked = {key: value for key, value in rope.items() if key in known or key not in shipped}
    RopeSpec.from_dict({k: v for k, v in asked.items() if k not in ("type", "rope_dim")})
    kept = {k: v for k, v in shipped.items() if k not in _SETTINGS or k == "partial_rotary_factor"}
    return {**kept, **asked}


def refuse_draft(target: Any, speculative: Any) -> None:
    """Raise RopeConfigError if a draft model would run beside settings of ours, without them.

    vLLM applies `hf_overrides` to the target alone, and a draft's table ends at its own length.
    """
    asked = of_config(target.hf_text_config)
    draft = getattr(speculative, "draft_model_config", None)
    # Methods without a draft model name the target's config.
    if not asked or draft is None or of_config(draft.hf_text_config) == asked:
        return
    spec = next(iter(asked.values()))
    raise RopeConfigError(
        f"speculative_config: the draft model {getattr(draft, 'model', None)!r} would not get "
        f"rope_type {spec.rope_type!r}, which vLLM gives the target alone; allowed: methods "
        "without a draft model (ngram, suffix), or a draft whose own config has the same settings"
    )
