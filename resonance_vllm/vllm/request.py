"""Requests in vLLM's configs, and the stock settings that its model files see instead.

Model files copy RoPE dictionaries, pick keys from them, rename types and decide by their names
(DeepSeek's softmax scale, gpt-oss, MiniMax). So while a model is built its config holds the stock
type that ours starts from, and the base in it is a `TaggedBase`, a float that knows our settings:
whatever dictionary a model file makes for `get_rope`, it has the base.
"""

import contextlib
import copy
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from resonance_vllm.core.spec import LENGTH, OWN_TYPES, RESONANCE, RopeSpec, RopeType
from resonance_vllm.errors import RopeConfigError
from resonance_vllm.positions import (
    QUERY_SCALE_BETA,
    Settings,
    by_layer,
    by_layer_type,
    global_layers,
    model_keys,
    of_present_layers,
    unscaled_type,
    windowed,
)
from resonance_vllm.verifier import OverriddenRope, Request

# Named after the package, below vLLM's own logger: that one has a handler in every process.
logger = logging.getLogger("vllm.resonance_vllm")

# With these a scaled type named by a model file is plain RoPE.
_NEUTRAL = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
_ABSENT = object()
_BASES = ("rope_theta", "compress_rope_theta")
"""Keys of configs beside RoPE dictionaries that hold the base of one of them."""
AXES = "mrope_section"
"""Key of models whose positions have several axes."""
_ON_AXES = ("default", "yarn")
"""Types of vLLM that build a module for these; its others would take one axis for a sequence."""
OWN_BASE, QUERY_SCALE = "alpha", "llama_4_scaling"


class TaggedBase(float):
    """A base of rotation that knows the settings it stands for.

    Attributes:
        spec: the settings.
        by_library: whether the stock settings beside it are those that `spec` starts from; else
            they are plain ones, which it changes by the ratio that it changes plain RoPE.
    """

    spec: RopeSpec
    by_library: bool

    @classmethod
    def of(cls, spec: RopeSpec, *, by_library: bool) -> "TaggedBase":
        """The base of settings, with them."""
        made = cls(spec.method.rope_theta)
        made.spec, made.by_library = spec, by_library
        return made


def is_ours(rope: object) -> bool:
    """Whether a RoPE dictionary has a type of ours, misspelt ones of the Resonance family included.

    A misspelt one is refused by us, with the names that exist.
    """
    if not isinstance(rope, Mapping):
        return False
    rope_type = rope.get("rope_type")
    return rope_type in OWN_TYPES or str(rope_type).startswith(RESONANCE)


def has_ours(value: Any) -> bool:
    """Whether a dictionary, or one inside it, has a type of ours."""
    if not isinstance(value, Mapping):
        return False
    return is_ours(value) or any(has_ours(one) for one in value.values())


def requests_of(config: Any) -> dict[str | None, Request]:
    """The requests of a language model's config by layer type, all of them ours or none.

    Raises:
        RopeConfigError: they are wrong.
    """
    if own := own_specs(config):
        rope = by_layer(config)
        return {layer: Request(spec, True, rope[layer]) for layer, spec in own.items()}
    marked = OverriddenRope.of(config)
    return {} if marked is None else marked.requests()


def own_specs(config: Any) -> dict[str | None, RopeSpec]:
    """Settings of our types in a config by layer type.

    Raises:
        RopeConfigError: they are wrong.
    """
    rope = of_present_layers(config)
    return {layer: spec_for_vllm(each) for layer, each in rope.items() if is_ours(each)}


def spec_for_vllm(rope: Mapping[str, Any]) -> RopeSpec:
    """The settings in a dictionary; keys of the model itself may stand beside them.

    Raises:
        RopeConfigError: a setting is unknown or missing, or a value is not allowed.
    """
    beside = model_keys(rope).keys() - RopeType.read(rope.get("rope_type")).key_names()
    spec = RopeSpec.from_dict({k: v for k, v in rope.items() if k not in beside | {"type"}})
    spec.method.for_vllm({"rope_type": spec.rope_type})  # refuses what vLLM cannot run
    return spec


def at_length(rope: Mapping[str, Any], length: int) -> RopeSpec:
    """The settings in a dictionary, read by `spec_for_vllm`, with the frequencies of one length."""
    spec = spec_for_vllm(rope)
    if _fixed_by_model(rope):
        raise RopeConfigError(
            f"rope_type: {spec.rope_type!r} would lose {OWN_BASE} of this model's own dynamic type "
            "in vLLM; allowed: on transformers, or another method in its place"
        )
    return dataclasses.replace(spec, method=spec.method.at_length(length))


def _fixed_by_model(rope: Mapping[str, Any]) -> bool:
    """Whether a dynamic type has a base of its own, which no length changes: HunYuan's."""
    return bool(rope.get(OWN_BASE) and RopeType.read(rope["rope_type"]).method.follows_length)


def tagged_stock(
    rope: Mapping[str, Any], spec: RopeSpec, positions: int, plain: str = "default"
) -> Settings:
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
    kept = _model_keys(rope)
    # Features that do not turn are a part of such a module; no scaled type of vLLM keeps them.
    by_library = spec.base_is_stock and plain in ("default", method.name)
    by_library &= AXES not in rope or method.name in _ON_AXES
    kept["rope_theta"] = TaggedBase.of(spec, by_library=by_library)
    if not by_library or method.name == plain:
        length = {LENGTH: spec.method.trained_length or positions}
        return {**_NEUTRAL, **length, **kept, "rope_type": plain}
    own = {key: getattr(method, key) for key in method.key_names() if key != "ramp"}
    own = {key: list(v) if isinstance(v, tuple) else v for key, v in own.items() if v is not None}
    written = method.for_vllm({**own, "rope_type": method.name})
    common = ("rope_theta", "partial_rotary_factor")
    return {**{k: v for k, v in written.items() if k not in common}, **kept}


@contextlib.contextmanager
def shown_as_stock(config: Any, length: int) -> Iterator[None]:
    """The config with stock settings in place of ours, each with its `TaggedBase`."""
    rope, positions = config.rope_parameters, config.max_position_embeddings
    shown: dict[str | None, Any] = {}
    for layer_type, settings in by_layer(config).items():
        if is_ours(settings):
            spec, plain = at_length(settings, length), unscaled_type(config, layer_type)
            shown[layer_type] = tagged_stock(settings, spec, positions, plain)
        else:
            shown[layer_type] = copy.deepcopy(settings)
    changes = {
        "rope_parameters": shown.get(None, {**rope, **shown}),
        # Layers that keep a rotation of their own get a table of so many rows.
        "max_position_embeddings": max(positions, length),
        **_query_scale(config),
    }
    for one in shown.values():  # some files read the base beside the dictionary
        base = one.get("rope_theta")
        if isinstance(base, TaggedBase):
            names = [name for name in _BASES if vars(config).get(name) == base]
            changes.update(dict.fromkeys(names, base))
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


def _query_scale(config: Any) -> dict[str, Any]:
    """Ministral 3's scale of queries, where vLLM reads it.

    transformers has it among the RoPE settings, vLLM in a dictionary that only Mistral's own
    format has; without that queries past the original length are not scaled.
    """
    rope = config.rope_parameters
    if not rope.get(QUERY_SCALE_BETA) or getattr(config, QUERY_SCALE, None):
        return {}
    length = rope.get(LENGTH) or config.max_position_embeddings
    return {QUERY_SCALE: {LENGTH: length, "beta": rope[QUERY_SCALE_BETA]}}


def fix_length(config: Any, length: int) -> None:
    """Write our settings with the frequencies of one length, for transformers' modules in vLLM.

    A dynamic type with a base of the model's own stays: no length changes it there either.
    """
    fixed = {
        layer_type: {**_model_keys(settings), **at_length(settings, length).to_dict()}
        for layer_type, settings in by_layer(config).items()
        if is_ours(settings) and not _fixed_by_model(settings)
    }
    if fixed:
        config.rope_parameters = fixed.get(None, {**config.rope_parameters, **fixed})


def _model_keys(rope: Mapping[str, Any]) -> Settings:
    """What belongs to the model in a dictionary, whatever its method."""
    share = {k: v for k, v in rope.items() if k == "partial_rotary_factor"}
    return {**model_keys(rope), **share}


# Overrides: vLLM's `hf_overrides`.


class Shipped(NamedTuple):
    """RoPE settings before overrides: those of the outer config by itself, and the text model's."""

    top: Any
    text: Mapping[str, Any]

    @classmethod
    def of(cls, config: Any) -> "Shipped":
        """Read a config."""
        rope = copy.deepcopy(getattr(config.get_text_config(), "rope_parameters", None))
        top = vars(config).get("rope_parameters", _ABSENT)
        return cls(top, rope if isinstance(rope, Mapping) else {})


def place_override(config: Any, shipped: Shipped) -> None:
    """Put settings of ours from overrides where the language model reads them.

    An override replaces a whole dictionary: what belongs to the model in the shipped one
    (`mrope_section`, the rotated share) is put back. One at the top of a nested config reaches no
    module, so it goes to the language model.

    Args:
        config: the model's, overrides applied.
        shipped: its settings before them.

    Raises:
        RopeConfigError: a key is none of the type's settings and none of the model's.
    """
    text, before = config.get_text_config(), shipped.text
    requested = getattr(config, "rope_parameters", None)
    if text is not config and has_ours(requested):
        text.rope_parameters = requested
        if shipped.top is _ABSENT:
            del config.rope_parameters
        else:
            config.rope_parameters = shipped.top
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not has_ours(rope):
        return
    if by_layer_type(before) and not by_layer_type(rope):
        rope = {**before, global_layers(before): rope}
    if by_layer_type(rope):
        known = before if by_layer_type(before) else dict.fromkeys(rope, before)
        text.rope_parameters = {
            kind: _with_model_keys(one, known.get(kind) or {}) if is_ours(one) else one
            for kind, one in rope.items()
        }
    else:
        text.rope_parameters = _with_model_keys(rope, before)


def _with_model_keys(rope: Mapping[str, Any], shipped: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an override with what belongs to the model in the shipped dictionary."""
    known = {"rope_type", *RopeType.read(rope["rope_type"]).key_names()}
    given = {key: value for key, value in rope.items() if key in known or key not in shipped}
    RopeSpec.from_dict({k: v for k, v in given.items() if k not in ("type", "rope_dim")})
    return {**_model_keys(shipped), **given}


def note_override(text: Any, shipped: Shipped) -> None:
    """Mark a stock type in the config of a language model, for a comparison with what is built."""
    before = shipped.text
    specs = {kind: spec_for_vllm(one) for kind, one in by_layer(text).items() if not windowed(kind)}
    replaced: Any = dict(before) if by_layer_type(before) else {None: dict(before)}
    text.rope_parameters = OverriddenRope.made(text.rope_parameters, specs, replaced)
