"""What a model's config says about its positions, and how RoPE settings are written into it.

The only place that makes the forms in which libraries and lm-eval read settings. No torch.
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from resonance_vllm.common.errors import RopeConfigError, short_repr
from resonance_vllm.common.hub import read_config
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import (
    METHODS,
    NATIVE_LENGTH_KEY,
    OWN_TYPES,
    RESONANCE,
    RESONANCE_PREFIX,
    RopeRequest,
    RopeSpec,
    RopeType,
)

logger = logging.getLogger(__name__)

Settings = dict[str, Any]
"""One RoPE dictionary: `rope_type` and its keys."""

QUERY_SCALE_BETA = "llama_4_scaling_beta"
"""Mistral's code scales queries by this and by the native context length, whatever the method is."""
_SCALE_FOLLOWS = ("factor", "mscale", "mscale_all_dim", NATIVE_LENGTH_KEY)
"""Keys from which methods make the attention factor."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What the length of a sequence is called in config.json files, by families without RoPE too."""

# Under these, config.json files of vision-language models keep that of the language model, code of
# their own included (InternVL, DeepSeek-VL2).
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
_METHOD_KEYS = {"rope_type", "type"}.union(*(method.key_names() for method in METHODS.values()))
ROPE_PRECISIONS = ("float32", "model")
VERIFY_ROPE_KEY = "rope_compared"
"""Key of vLLM's `hf_overrides` beside requested settings of a stock type: what vLLM builds is
compared with them. Overrides without it are not compared."""


def is_windowed(layer_type: str | None) -> bool:
    """Whether layers of a type attend to a part of the text only; methods leave them unmodified."""
    return any(word in str(layer_type) for word in ("sliding", "chunked"))


def is_per_layer_type(rope: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds one dictionary for each layer type."""
    return "rope_type" not in rope and any(isinstance(value, Mapping) for value in rope.values())


def global_layer_types(rope: Mapping[str, Any]) -> list[str]:
    """The layer types without a window that have settings."""
    return [
        k for k, settings in rope.items() if isinstance(settings, Mapping) and not is_windowed(k)
    ]


def global_layer_type(rope: Mapping[str, Any]) -> str:
    """The one layer type without a window, whose settings methods change; else RopeConfigError."""
    wide = global_layer_types(rope)
    if len(wide) != 1:
        names = ", ".join(map(str, rope))
        raise RopeConfigError(f"rope_type: of {names} not one alone is for layers without a window")
    return wide[0]


def rope_by_layer_type(config: Any) -> dict[str | None, Any]:
    """RoPE settings of a transformers config by layer type; None is the key for all layers."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping):
        return {}
    nested = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    return nested or {None: rope}


def rope_of_present_layers(config: Any) -> dict[str | None, Settings]:
    """`by_layer` without the settings of layer types of which the model has no layer."""
    rope, present = rope_by_layer_type(config), set(getattr(config, "layer_types", None) or ())
    if not present & set(rope):
        return rope
    return {key: settings for key, settings in rope.items() if key in present}


def model_specific_keys(rope: Mapping[str, Any]) -> Settings:
    """What belongs to the model in a RoPE dictionary: it stays under any method."""
    read = {NATIVE_LENGTH_KEY} if QUERY_SCALE_BETA in rope else set()
    return {key: value for key, value in rope.items() if key not in _METHOD_KEYS - read}


def unscaled_rope_type(config: Any, layer_type: str | None) -> str:
    """A family's type without scaling: `default`, or `proportional` on Gemma 4's global layers.

    There dimensions are paired over the whole head, of which a part turns.
    """
    whole = str(config.model_type).startswith("gemma4") and not is_windowed(layer_type)
    return "proportional" if whole else "default"


def language_model_config(config: Any) -> tuple[Any, tuple[str, ...]]:
    """The language model's part of a transformers config, and the keys under which it stands."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:  # several, and transformers does not choose one
        return config, ()
    return text, _place_of(text, config) or ()


def _place_of(part: Any, config: Any) -> tuple[str, ...] | None:
    if part is config:
        return ()
    for name in getattr(config, "sub_configs", {}):
        below = getattr(config, name, None)
        place = None if below is None else _place_of(part, below)
        if place is not None:
            return (name, *place)
    return None


def config_value(config: Any, key: str) -> Any:
    """An attribute of a config; None where it has none."""
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to give one value
        return None


def _of_kind(value: object, kind: Any) -> Any:
    """A value of somebody else's config; None where it is of another kind."""
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _length(value: object) -> int | None:
    number = _of_kind(value, int | float)
    return int(number) if number and 1 <= number <= 2**53 else None


@dataclass(frozen=True)
class PositionConfig:
    """What limits and requests need of a model's config, that of its language model if nested.

    Values of an unexpected kind count as absent. `rope_parameters` has one dictionary, or one a
    layer type; `nested` has the keys under which the language model's config stands.
    """

    model_type: str | None = None
    max_position_embeddings: int | None = None
    original_max_position_embeddings: int | None = None
    rope_parameters: Settings = field(default_factory=dict)
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    nested: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], nested: tuple[str, ...] = ()) -> Self:
        """Read the content of a config.json."""
        for name in _LANGUAGE_MODEL if not nested else ():
            if isinstance(inner := config.get(name), Mapping):
                return cls.from_dict(inner, nested=(name,))
        ropes = (_of_kind(config.get(key), dict) for key in ("rope_parameters", "rope_scaling"))
        return cls(
            _of_kind(config.get("model_type"), str),
            _length(next(filter(None, map(config.get, LENGTH_KEYS)), None)),
            _length(config.get(NATIVE_LENGTH_KEY)),
            next(filter(None, ropes), {}),
            _of_kind(config.get("rope_theta"), int | float),
            _of_kind(config.get("partial_rotary_factor"), int | float),
            nested,
        )

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a config of transformers, whose class knows how its family writes things."""
        text, nested = language_model_config(config)
        keys = {each.name for each in fields(cls)} | {"rope_scaling", *LENGTH_KEYS}
        return cls.from_dict({key: config_value(text, key) for key in keys}, nested)

    @classmethod
    def from_checkpoint(cls, path: str, revision: str | None = None) -> Self:
        """Read the config of a checkpoint folder, or of a hub model; errors as of `read_config`."""
        config = read_config(path, revision)
        return cls.from_dict(config) if isinstance(config, Mapping) else cls.from_config(config)

    @property
    def rope(self) -> Settings:
        """The model's own settings as one flat dictionary; of several layer types a global one."""
        rope = self.rope_parameters
        if is_per_layer_type(rope):
            wide = global_layer_types(rope)
            rope = rope[wide[0]] if wide else {}
        result = {key: value for key, value in rope.items() if value is not None}
        result.setdefault("rope_type", result.pop("type", None) or "default")
        for key in ("rope_theta", "partial_rotary_factor"):
            if key not in result and getattr(self, key) is not None:
                result[key] = getattr(self, key)
        return result

    @property
    def scaled(self) -> bool:
        """Whether it ships a scaling, with Resonance or without it."""
        return self.rope["rope_type"] not in ("default", RESONANCE)

    @property
    def max_positions(self) -> int:
        """`max_position_embeddings`, or RopeConfigError if there is none."""
        if self.max_position_embeddings is None:
            raise RopeConfigError("max_position_embeddings: the model's config has none")
        return self.max_position_embeddings

    @property
    def stated_native_length(self) -> int | None:
        """Native context length `L` in tokens, where the config has a key for it."""
        return _length(self.rope.get(NATIVE_LENGTH_KEY)) or self.original_max_position_embeddings

    @property
    def native_length(self) -> int:
        """Native context length `L` in tokens."""
        return self.stated_native_length or self.max_positions

    def with_length(self, requested: int | None) -> Self:
        """The same, its length the requested one in tokens where its config states none."""
        return replace(self, max_position_embeddings=self.max_position_embeddings or requested)

    def nest(self, written: dict[str, Any]) -> dict[str, Any]:
        """Overrides of the language model's config as overrides of the model's, see `nested`."""
        for name in reversed(self.nested):
            written = {name: written}
        return written

    def own_spec(self) -> RopeSpec:
        """The checkpoint's own settings, or RopeConfigError if they cannot be read."""
        return self._spec(RopeType.parse(self.rope["rope_type"]), {})

    @property
    def own_spec_or_none(self) -> RopeSpec | None:
        """`shipped`, or None where that cannot be read: a type of the model's own."""
        try:
            return self.own_spec()
        except RopeConfigError:
            return None

    def replaced_scaling(self, rope: RopeSpec) -> Settings | None:
        """The shipped scaling that complete settings replace; None where they keep it."""
        if self.rope["rope_type"] == "default":
            return None
        shipped = self.own_spec_or_none
        if shipped is None or rope.resonance < shipped.resonance:
            return self.rope
        kept = shipped.method.name == "default" or rope.method == shipped.method
        return None if kept else self.rope

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with the base, lengths and shared keys that the model's config knows.

        Where the model ships the same method, with that method's keys. `resonance` alone is
        Resonance on what it ships. A shipped scaling that is replaced is logged once.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, or the model has
                no RoPE that the request fits.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        kind = request.type
        if is_per_layer_type(self.rope_parameters):
            global_layer_type(self.rope_parameters)  # there is one
        if kind.name == RESONANCE and self.scaled:  # on what is shipped
            method = self.own_spec().method
            kind = RopeType(RESONANCE_PREFIX + method.name, method=type(method), resonance=True)
            if method.depends_on_length:
                raise RopeConfigError(
                    f"rope_type: 'resonance' alone on the {method.name!r} that this checkpoint "
                    "ships; allowed: a method with its factor, such as resonance_yarn:factor=4"
                )
        spec = self._spec(kind, request.given)
        if self.replaced_scaling(spec):
            replaces = "rope_type %r replaces what this checkpoint ships, %s"
            log_once(replaces, spec.rope_type, short_repr(self.rope))
        return spec

    def _spec(self, kind: RopeType, written: Mapping[str, Any]) -> RopeSpec:
        given = self._kept(kind.method, written)
        if "rope_theta" not in given:
            raise RopeConfigError(
                f"rope_theta: neither given nor in the config of this {self.model_type!r} model"
            )
        if NATIVE_LENGTH_KEY in kind.method.key_names():
            if NATIVE_LENGTH_KEY not in given:
                given[NATIVE_LENGTH_KEY] = self._native_length(kind.method, given)
            kind.method.fill_from_config(
                given, self.max_position_embeddings or given[NATIVE_LENGTH_KEY]
            )
        return RopeSpec.from_settings(kind, given)

    @property
    def _method(self) -> type[Method] | None:
        """The method that is shipped, with Resonance or without; None for one of its own."""
        name = str(self.rope["rope_type"])
        return METHODS.get("default" if name == RESONANCE else name.removeprefix(RESONANCE_PREFIX))

    def _kept(self, method: type[Method], written: Mapping[str, Any]) -> dict[str, Any]:
        """The written keys, and the shipped ones that stay valid beside them."""
        rope = self.rope
        keys = method.key_names() if method is self._method else list(Method.model_fields)
        shipped = {key: rope[key] for key in keys if key in rope}
        # An explicit attention factor belongs to the settings that it would follow from.
        if any(written.get(key, rope.get(key)) != rope.get(key) for key in _SCALE_FOLLOWS):
            shipped.pop("attention_factor", None)
        return {**shipped, **written}

    def _native_length(self, method: type[Method], given: Mapping[str, Any]) -> int:
        """`L` of a request that does not state it."""
        # `dynamic` scales from the config's length, but where a base of its own stands beside it
        # (HunYuan's `alpha`)
        follows = (
            self._method and self._method.depends_on_length and not model_specific_keys(self.rope)
        )
        if self.stated_native_length or not self.scaled or "factor" not in self.rope or follows:
            return self.native_length
        if method is not self._method or any(given[key] != self.rope.get(key) for key in given):
            raise RopeConfigError(
                f"{NATIVE_LENGTH_KEY}: not in the config of this {self.model_type!r} model, which ships "
                f"{short_repr(self.rope)}; give the length that it was trained on before that scaling"
            )
        factor = given.get("factor")
        if method.config_length_is_scaled and isinstance(factor, int | float) and factor >= 1:
            return max(int(self.max_positions / factor), 1)
        return self.max_positions


@functools.cache
def log_once(message: str, *values: object) -> None:
    """Log a warning, the same one once in a process."""
    logger.warning(message, *values)


# What libraries are given.


def length_limit(
    model: PositionConfig, rope: RopeSpec | None = None, requested: int | None = None
) -> int:
    """Longest sequence in tokens that a model may be given, on transformers and vLLM alike.

    It is `Method.length_limit`, but for `dynamic`, whose base grows with the `requested` length in
    tokens, and for methods that extend nothing, which then extrapolate. Without `rope` the
    checkpoint as it is counts, whose stock types are written scaled.

    Raises:
        RopeConfigError: no length is given, or the config has a type of ours that cannot be read.
    """
    model = model.with_length(requested or (rope.method.native_length if rope else None))
    if rope is None:
        if model.rope["rope_type"] == "default":
            return max(model.max_positions, requested or 0)
        if model.rope["rope_type"] not in OWN_TYPES:
            return model.max_positions
        rope = model.own_spec()
    # What extends nothing has the native context length, also where it replaces a shipped scaling.
    positions = model.max_positions if rope.method.extension else model.native_length
    limit = rope.method.length_limit(positions)
    if rope.method.depends_on_length or not rope.method.extension:
        return max(limit, requested or 0)
    return limit


def with_rope(config: Any, rope: Mapping[str, Any], limit: int | None = None) -> Any:
    """Write complete settings into a transformers config, where its language model reads them.

    Without a `limit` in tokens that of the settings counts. The config is changed and returned.

    Raises:
        RopeConfigError: the settings are wrong.
    """
    text, _ = language_model_config(config)
    written = _for_transformers(RopeSpec.from_dict(rope), PositionConfig.from_config(config), limit)
    for key, value in written.items():
        setattr(text, key, value)
    if vars(text).get("head_dim", 0) is None:  # Mixtral: scaled types of transformers multiply it
        text.head_dim = text.hidden_size // text.num_attention_heads
    return config


def hf_overrides(
    rope: RopeSpec, model: PositionConfig, context_length: int | None = None
) -> dict[str, Any]:
    """Keys of config.json with which transformers runs settings, as `with_rope` writes them."""
    return model.nest(_for_transformers(rope, model, context_length))


def _for_transformers(rope: RopeSpec, model: PositionConfig, length: int | None) -> dict[str, Any]:
    """Keys of the language model's config.

    `max_position_embeddings` stays the native context length for types that follow the length, because
    transformers takes it for that.
    """
    limit = length_limit(model, rope, length)
    original = rope.method.native_length or model.with_length(limit).max_positions
    positions = original if rope.method.depends_on_length else limit
    return _written(model, rope.to_dict(), positions, original)


def vllm_hf_overrides(
    rope: RopeSpec, model: PositionConfig, max_model_len: int | None = None
) -> dict[str, Any]:
    """The `hf_overrides` of vLLM, for an engine with this `max_model_len` in tokens.

    Without one the limit of the settings counts.
    """
    if rope.method.depends_on_length:  # vLLM fixes the frequencies when it starts
        length = max_model_len or length_limit(model, rope)
        log_once("vLLM runs %r as it is at the served length of %d tokens", rope.rope_type, length)
        rope = replace(rope, method=rope.method.at_length(length))
    limit = length_limit(model, rope, max_model_len)
    original = rope.method.native_length or limit
    parameters = rope.method.to_vllm(rope.to_dict())
    if model.nested:  # vLLM updates a dictionary key by key there: what is shipped would stay
        stays = model_specific_keys(model.rope)
        parameters = {key: None for key in model.rope if key not in stays} | parameters
    # vLLM's own linear multiplies it by the factor, its table too, but for Gemma 3
    multiplied = rope.rope_type == "linear" and "gemma3" not in str(model.model_type)
    written = _written(model, parameters, original if multiplied else limit, original)
    if rope.method.name == "longrope":
        written[NATIVE_LENGTH_KEY] = original  # vLLM reads it there
    compared = {VERIFY_ROPE_KEY: True} if rope.is_stock and rope != model.own_spec_or_none else {}
    return {**model.nest(written), **compared}


def _written(
    model: PositionConfig, parameters: Settings, positions: int, original: int
) -> dict[str, Any]:
    """Settings and the lengths that belong to them, under the keys that the model's config has."""
    parameters = {**model_specific_keys(model.rope), **parameters}
    if is_per_layer_type(shipped := model.rope_parameters):
        parameters = {**shipped, global_layer_type(shipped): parameters}
    result: dict[str, Any] = {"rope_parameters": parameters}
    if model.max_position_embeddings is not None:
        result["max_position_embeddings"] = positions
    # Where a config has this key at the top, both libraries let it win over the dictionary.
    if model.original_max_position_embeddings is not None:
        result[NATIVE_LENGTH_KEY] = original
    return result


def model_args(
    rope: RopeSpec | None,
    model: PositionConfig,
    *,
    library: str,
    model_path: str,
    context_length: int | None = None,
    rope_precision: str = "float32",
) -> dict[str, Any]:
    """`model_args` for lm-eval: settings in the form that the backend of a library reads.

    Without `rope` the checkpoint runs as it is; without `context_length` in tokens the limit
    counts. vLLM always rotates in the model's dtype, whatever `rope_precision` is.

    Raises:
        RopeConfigError: `context_length` is above the limit.
    """
    limit = length_limit(model, rope, context_length)
    if context_length is not None and context_length > limit:
        raise RopeConfigError(
            f"context_length: {context_length} is above the limit of {limit} tokens; allowed: a "
            "larger factor"
        )
    length, model = context_length or limit, model.with_length(limit)
    args: dict[str, Any] = {"pretrained": model_path}
    if library == "transformers":
        args |= {"max_length": length, "rope_precision": rope_precision}
        return args if rope is None else {**args, "rope_parameters": rope.to_dict()}
    args["max_model_len"] = length
    if rope is not None:
        args["hf_overrides"] = vllm_hf_overrides(rope, model, length)
    elif length > model.max_positions:
        args["hf_overrides"] = model.nest({"max_position_embeddings": length})
    return args
