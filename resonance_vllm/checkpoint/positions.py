"""What a checkpoint's config says about positions, and requests completed from it. No torch."""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from resonance_vllm.checkpoint.reached_layers import refuse_windowed_only
from resonance_vllm.checkpoint.reading import read_config
from resonance_vllm.checkpoint.rope_dict import (
    LANGUAGE_MODEL_KEYS,
    RopeDict,
    global_layer_type,
    global_layer_types,
    is_per_layer_type,
    model_specific_keys,
    normalize_rope_dict,
    refuse_two_rope_dicts,
)
from resonance_vllm.common.errors import RopeConfigError, short_repr
from resonance_vllm.common.log import warn_once
from resonance_vllm.core.method import MAX_TOKENS, Method
from resonance_vllm.core.spec import (
    METHODS,
    ORIGINAL_LENGTH_KEY,
    RESONANCE,
    RESONANCE_PREFIX,
    RopeRequest,
    RopeSpec,
    RopeType,
)

logger = logging.getLogger(__name__)

LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""Names of the sequence length in config.json files, those of families without RoPE included."""

_ATTENTION_FACTOR_SOURCES = ("factor", "mscale", "mscale_all_dim", ORIGINAL_LENGTH_KEY)
# A model with one of these keys needs no table of positions, and has none.
_POSITIONS_WITHOUT_TABLE = (
    "alibi", "relative_attention", "relative_attention_num_buckets", "attn_config",
    "mamba_d_state", "ssm_state_size", "state_size", "hybrid_override_pattern",
)  # fmt: skip
_FAMILIES_WITHOUT_TABLE = {
    "bloom", "cpmant", "inkling_text", "kimi_linear", "rwkv", "xlnet", "xlstm",
}  # fmt: skip
"""Families that show it by no key: ALiBi, relative positions, states, or no positions at all."""


def language_model_config(config: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the language model's part of a transformers config, and the keys that lead to it."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:  # it has several, and transformers does not choose one
        return config, ()
    return text, _keys_to(text, config) or ()


def _keys_to(part: Any, config: Any) -> tuple[str, ...] | None:
    """Return the keys that lead from a config to a part of it; None where it is not a part."""
    if part is config:
        return ()
    for name in getattr(config, "sub_configs", {}):
        below = getattr(config, name, None)
        keys = None if below is None else _keys_to(part, below)
        if keys is not None:
            return (name, *keys)
    return None


def config_value(config: Any, key: str) -> Any:
    """Return an attribute of a config, or None where it has none."""
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to give one value
        return None


def _of_type(value: object, expected: Any) -> Any:
    """Return a value of a foreign config, or None where it has another type than expected."""
    return value if isinstance(value, expected) and not isinstance(value, bool) else None


def _length(value: object) -> int | None:
    number = _of_type(value, int | float)
    return int(number) if number and 1 <= number <= MAX_TOKENS else None


@dataclass(frozen=True)
class PositionConfig:
    """What limits and requests need of a checkpoint's config: that of its language model.

    Values of an unexpected type count as absent.

    Attributes:
        model_type: as config.json names the family.
        max_position_embeddings: length of a sequence in tokens, under whichever key.
        original_max_position_embeddings: original context length in tokens, where the config has the
            key beside the RoPE dictionary and not inside it.
        rope_parameters: one RoPE dictionary, or one per layer type.
        rope_theta: base, where it is beside the dictionary.
        partial_rotary_factor: share of a head that rotates, where it is beside the dictionary.
        layer_types: one per layer, where the config lists them.
        has_position_table: whether the model looks positions up in a table (learned positions).
        is_mla: whether it has multi-head latent attention (DeepSeek).
        nested: keys under which the language model's config is found.
    """

    model_type: str | None = None
    max_position_embeddings: int | None = None
    original_max_position_embeddings: int | None = None
    rope_parameters: RopeDict = field(default_factory=dict)
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    layer_types: tuple[str, ...] = ()
    has_position_table: bool = False
    is_mla: bool = False
    nested: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], nested: tuple[str, ...] = ()) -> Self:
        """Read the content of a config.json.

        Raises:
            RopeConfigError: it has RoPE settings in two places that differ.
        """
        refuse_two_rope_dicts(config)
        if not nested:
            for name in LANGUAGE_MODEL_KEYS:
                language_model = config.get(name)
                if isinstance(language_model, Mapping):
                    return cls.from_dict(language_model, nested=(name,))
        rope = _of_type(config.get("rope_parameters"), dict)
        legacy_rope = _of_type(config.get("rope_scaling"), dict)
        lengths = [config.get(key) for key in LENGTH_KEYS]
        layer_types = _of_type(config.get("layer_types"), list | tuple) or ()
        return cls(
            model_type=_of_type(config.get("model_type"), str),
            max_position_embeddings=_length(next(filter(None, lengths), None)),
            original_max_position_embeddings=_length(config.get(ORIGINAL_LENGTH_KEY)),
            rope_parameters=rope or legacy_rope or {},
            rope_theta=_of_type(config.get("rope_theta"), int | float),
            partial_rotary_factor=_of_type(config.get("partial_rotary_factor"), int | float),
            layer_types=tuple(str(layer_type) for layer_type in layer_types),
            is_mla=config.get("kv_lora_rank") is not None,
            nested=nested,
        )

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a config of transformers, whose class knows how its family spells things."""
        text, nested = language_model_config(config)
        keys = {*(config_field.name for config_field in fields(cls)), *LENGTH_KEYS, "kv_lora_rank"}
        content = {key: config_value(text, key) for key in keys}
        if not content["rope_parameters"]:  # a config class from before transformers 5
            content["rope_scaling"] = config_value(text, "rope_scaling")
        positions = cls.from_dict(content, nested)
        has_rope = bool(positions.rope_parameters) or positions.rope_theta is not None
        no_table = positions.model_type in _FAMILIES_WITHOUT_TABLE or any(
            config_value(text, key) for key in _POSITIONS_WITHOUT_TABLE
        )
        return replace(positions, has_position_table=not has_rope and not no_table)

    @classmethod
    def from_checkpoint(cls, path: str, revision: str | None = None) -> Self:
        """Read the config of a checkpoint folder or hub model.

        Raises:
            SettingError, RopeConfigError, OSError: as for `read_config`.
        """
        config = read_config(path, revision)
        return cls.from_dict(config) if isinstance(config, Mapping) else cls.from_config(config)

    @property
    def rope(self) -> RopeDict:
        """Return the model's own settings as one flat dictionary: those of layers without a window."""
        rope = self.rope_parameters
        if is_per_layer_type(rope):
            candidates = global_layer_types(rope)
            rope = rope[candidates[0]] if candidates else {}
        result = normalize_rope_dict(rope)
        for key in ("rope_theta", "partial_rotary_factor"):
            if key not in result and getattr(self, key) is not None:
                result[key] = getattr(self, key)
        return result

    @property
    def is_scaled(self) -> bool:
        """Return whether the checkpoint has a scaling method of its own, with or without Resonance."""
        return self.rope["rope_type"] not in ("default", RESONANCE)

    @property
    def max_positions(self) -> int:
        """Return `max_position_embeddings`; RopeConfigError if there is none."""
        if self.max_position_embeddings is None:
            raise RopeConfigError("max_position_embeddings: the model's config has none")
        return self.max_position_embeddings

    @property
    def stated_original_length(self) -> int | None:
        """Return the original context length `L` in tokens, where the config has a key for it."""
        return _length(self.rope.get(ORIGINAL_LENGTH_KEY)) or self.original_max_position_embeddings

    @property
    def original_length(self) -> int:
        """Return the original context length `L`: the stated one, else `max_position_embeddings`."""
        return self.stated_original_length or self.max_positions

    def with_length(self, requested: int | None) -> Self:
        """Return a copy whose length is the requested one, in tokens, if the config has none."""
        return replace(self, max_position_embeddings=self.max_position_embeddings or requested)

    def nest(self, overrides: dict[str, Any]) -> dict[str, Any]:
        """Return overrides of the language model's config as overrides of the whole config."""
        for name in reversed(self.nested):
            overrides = {name: overrides}
        return overrides

    def own_spec(self) -> RopeSpec:
        """Return the checkpoint's own settings.

        Raises:
            RopeConfigError: they cannot be read, for example a type that only the model's code has.
        """
        return self._spec(RopeType.parse(self.rope["rope_type"]), {})

    @functools.cached_property
    def own_spec_or_none(self) -> RopeSpec | None:
        """Return `own_spec`, or None where it cannot be read."""
        try:
            return self.own_spec()
        except RopeConfigError:
            return None

    def replaced_scaling(self, rope: RopeSpec) -> RopeDict | None:
        """Return the checkpoint's own scaling if `rope` replaces it; None if it is kept."""
        if self.rope["rope_type"] == "default":
            return None
        own = self.own_spec_or_none
        if own is None or rope.resonance < own.resonance:
            return self.rope
        is_kept = own.method.name == "default" or rope.method == own.method
        return None if is_kept else self.rope

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """Complete a request with what the model's config knows: base, lengths, shared keys.

        Where the checkpoint has the same method, that method's keys are taken as well. `resonance`
        alone is Resonance on the checkpoint's own method. A scaling of the checkpoint that is
        replaced is logged once.

        Args:
            rope: a request, or a dictionary that may lack what the config knows, such as
                `{"rope_type": "yarn", "factor": 2.0}`.

        Returns:
            Complete settings.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, the model has no
                RoPE that the request fits, or the request reaches none of its layers.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        rope_type = request.type
        self._refuse_windowed_layers_only()
        if rope_type.name == RESONANCE and self.is_scaled:
            rope_type = self._resonance_on_own_method()
        spec = self._spec(rope_type, request.settings)
        if self.replaced_scaling(spec):
            replaces = "rope_type %r replaces the checkpoint's own, %s"
            warn_once(logger, replaces, spec.rope_type, short_repr(self.rope))
        return spec

    def _refuse_windowed_layers_only(self) -> None:
        """Refuse a request that reaches no layer, because methods leave windowed ones alone."""
        if not is_per_layer_type(self.rope_parameters):
            return
        global_layer_type(self.rope_parameters)  # refuses a model without exactly one
        present = set(self.layer_types) & set(self.rope_parameters)
        refuse_windowed_only(present, self.layer_types, self.model_type)

    def _resonance_on_own_method(self) -> RopeType:
        """Return Resonance on the method that the checkpoint has."""
        method = self.own_spec().method
        if method.depends_on_length:
            raise RopeConfigError(
                f"rope_type: 'resonance' alone on the {method.name!r} that this checkpoint "
                "ships; allowed: a method with its factor, such as resonance_yarn:factor=4"
            )
        return RopeType(RESONANCE_PREFIX + method.name, method=type(method), resonance=True)

    def _spec(self, rope_type: RopeType, written: Mapping[str, Any]) -> RopeSpec:
        """Return the settings of a type: the written ones, completed from the config."""
        method = rope_type.method
        settings = {**self._inherited(method, written), **written}
        if "rope_theta" not in settings:
            raise RopeConfigError(
                f"rope_theta: neither given nor in the config of this {self.model_type!r} model"
            )
        if ORIGINAL_LENGTH_KEY in method.key_names():
            if ORIGINAL_LENGTH_KEY not in settings:
                settings[ORIGINAL_LENGTH_KEY] = self._original_length_of(method, settings)
            positions = self.max_position_embeddings or settings[ORIGINAL_LENGTH_KEY]
            method.fill_from_config(settings, positions)
        return RopeSpec.from_settings(rope_type, settings)

    @property
    def _own_method(self) -> type[Method] | None:
        """Return the checkpoint's method, with or without Resonance; None for an unknown one."""
        name = str(self.rope["rope_type"])
        if name == RESONANCE:
            name = "default"
        return METHODS.get(name.removeprefix(RESONANCE_PREFIX))

    def _inherited(self, method: type[Method], written: Mapping[str, Any]) -> RopeDict:
        """Return the checkpoint's own keys that stay valid beside the written ones."""
        rope = self.rope
        keys = list(Method.model_fields)
        if method is self._own_method:
            keys = method.key_names()
        inherited = {key: rope[key] for key in keys if key in rope}
        # An explicit attention factor belongs to the settings that it was computed for.
        for key in _ATTENTION_FACTOR_SOURCES:
            if written.get(key, rope.get(key)) != rope.get(key):
                inherited.pop("attention_factor", None)
        return inherited

    def _original_length_of(self, method: type[Method], settings: Mapping[str, Any]) -> int:
        """Return `L` in tokens for settings that do not state it."""
        rope = self.rope
        own_method = self._own_method
        # `dynamic` scales from the config's length, unless a base of its own is beside it
        # (HunYuan's `alpha`).
        from_config_length = (
            own_method and own_method.depends_on_length and not model_specific_keys(rope)
        )
        if self.stated_original_length or not self.is_scaled or "factor" not in rope:
            return self.original_length
        if from_config_length:
            return self.original_length
        if method is not own_method or any(settings[key] != rope.get(key) for key in settings):
            raise RopeConfigError(
                f"{ORIGINAL_LENGTH_KEY}: not in the config of this {self.model_type!r} model, which "
                f"ships {short_repr(rope)}; give the length that it was trained on before that "
                "scaling"
            )
        factor = settings.get("factor")
        if method.config_length_is_scaled and isinstance(factor, int | float) and factor >= 1:
            return max(int(self.max_positions / factor), 1)
        return self.max_positions


def complete_rope(rope: RopeSpec | RopeRequest | Mapping[str, Any] | str, model: Any) -> RopeSpec:
    """Complete RoPE settings, in any form that users write, from a model's config.

    Args:
        rope: `"yarn:factor=2"`, a dictionary such as `{"rope_type": "yarn", "factor": 2.0}`, a
            request, or complete settings, which are returned as they are. A dictionary that has
            every required key is complete, too: where it leaves out an optional key, the default is
            meant and not what the checkpoint has.
        model: a `PositionConfig`, or a config of transformers.

    Returns:
        Complete settings, as for `PositionConfig.complete`.

    Raises:
        RopeConfigError: as for `PositionConfig.complete`.
    """
    if isinstance(rope, RopeSpec):
        return rope
    positions = model if isinstance(model, PositionConfig) else PositionConfig.from_config(model)
    if isinstance(rope, str):
        return positions.complete(RopeRequest.parse(rope))
    if isinstance(rope, RopeRequest):
        return positions.complete(rope)
    request = RopeRequest.from_dict(rope)
    model_fields = request.type.method.model_fields
    required = {key for key, field_info in model_fields.items() if field_info.is_required()}
    if required <= request.settings.keys():
        return RopeSpec.from_settings(request.type, request.settings)
    return positions.complete(request)
