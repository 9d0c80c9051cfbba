"""What a model's config says about its positions, and a request completed by it. No torch."""

import functools
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import (
    LENGTH,
    METHODS,
    PREFIX,
    RESONANCE,
    RopeRequest,
    RopeSpec,
    RopeType,
)
from resonance_vllm.errors import RopeConfigError, shown
from resonance_vllm.hub import read_config
from resonance_vllm.settings import LENIENT

logger = logging.getLogger(__name__)

Settings = dict[str, Any]
"""One RoPE dictionary: `rope_type` and its keys."""

QUERY_SCALE_BETA = "llama_4_scaling_beta"
"""Mistral's code scales queries by this and by the trained length, whatever the method is."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What the length of a sequence is called in config.json files, by families without RoPE too."""

# Under these, config.json files of vision-language models keep that of the language model, code of
# their own included (InternVL, DeepSeek-VL2).
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
_METHOD_KEYS = {"rope_type", "type"}.union(*(method.key_names() for method in METHODS.values()))

Integer = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, LENIENT]
Number = Annotated[int | float | None, LENIENT]
Table = Annotated[dict[str, Any] | None, LENIENT]


def windowed(layer_type: str | None) -> bool:
    """Whether layers of a type attend to a part of the text only; methods leave them as shipped."""
    return any(word in str(layer_type) for word in ("sliding", "chunked"))


def by_layer_type(rope: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds one dictionary for each layer type."""
    return "rope_type" not in rope and any(isinstance(value, Mapping) for value in rope.values())


def without_window(rope: Mapping[str, Any]) -> list[str]:
    """The layer types without a window that have settings."""
    return [k for k, settings in rope.items() if isinstance(settings, Mapping) and not windowed(k)]


def global_layers(rope: Mapping[str, Any]) -> str:
    """The layer type whose settings methods change, of settings by layer type.

    Raises:
        RopeConfigError: no type, or several, have no window.
    """
    wide = without_window(rope)
    if len(wide) != 1:
        raise RopeConfigError(
            f"rope_type: the model has a RoPE for each of {', '.join(map(str, rope))}, and not one "
            "alone for layers without a window, which methods change; allowed: no method, which "
            "runs it as shipped"
        )
    return wide[0]


def by_layer(config: Any) -> dict[str | None, Any]:
    """RoPE settings of a transformers config by layer type; None is the key for all layers."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping):
        return {}
    nested = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    return nested or {None: rope}


def of_present_layers(config: Any) -> dict[str | None, Settings]:
    """`by_layer` without the settings of layer types of which the model has no layer."""
    rope, present = by_layer(config), set(getattr(config, "layer_types", None) or ())
    if not present & set(rope):
        return rope
    return {key: settings for key, settings in rope.items() if key in present}


def model_keys(rope: Mapping[str, Any]) -> Settings:
    """What belongs to the model in a RoPE dictionary: it stays under any method."""
    read = {LENGTH} if QUERY_SCALE_BETA in rope else set()
    return {key: value for key, value in rope.items() if key not in _METHOD_KEYS - read}


def pairs_whole_heads(config: Any) -> bool:
    """Whether dimensions are paired over the whole head, of which a part turns (Gemma 4)."""
    return str(config.model_type).startswith("gemma4")


def unscaled_type(config: Any, layer_type: str | None) -> str:
    """A family's type without scaling: `default`, or `proportional` on Gemma 4's global layers."""
    whole = pairs_whole_heads(config) and not windowed(layer_type)
    return "proportional" if whole else "default"


def text_config(config: Any) -> tuple[Any, tuple[str, ...]]:
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


def value_of(config: Any, key: str) -> Any:
    """An attribute of a config; None where it has none."""
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to give one value
        return None


class ModelPositions(BaseModel):
    """What limits and requests need of a model's config, that of its language model if nested.

    A value of an unexpected kind counts as absent; whatever needs it reports that it is missing.

    Attributes:
        nested: keys under which the language model's config stands in the model's.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_type: Annotated[str | None, LENIENT] = None
    max_position_embeddings: Integer = None
    original_max_position_embeddings: Integer = None
    rope_parameters: Table = None
    rope_scaling: Table = None
    rope_theta: Number = None
    partial_rotary_factor: Number = None
    nested: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], nested: tuple[str, ...] = ()) -> Self:
        """Read the content of a config.json."""
        for name in _LANGUAGE_MODEL if not nested else ():
            if isinstance(inner := config.get(name), Mapping):
                return cls.of(inner, nested=(name,))
        length = next(filter(None, map(config.get, LENGTH_KEYS)), None)
        written = {key: config[key] for key in cls.model_fields if key in config}
        return cls.model_validate({**written, LENGTH_KEYS[0]: length, "nested": nested})

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Read a config of transformers, whose class knows how its family writes things."""
        text, nested = text_config(config)
        read = {key: value_of(text, key) for key in {*cls.model_fields, *LENGTH_KEYS}}
        return cls.of(read, nested)

    @classmethod
    def of_checkpoint(cls, path: str, revision: str | None = None) -> Self:
        """Read the config of a checkpoint folder, or of a hub model.

        Raises:
            RopeConfigError: there is no such folder, or its config.json cannot be read.
            OSError: the hub did not provide it.
        """
        config = read_config(path, revision)
        return cls.of(config) if isinstance(config, Mapping) else cls.of_config(config)

    @property
    def _written(self) -> Mapping[str, Any]:
        return self.rope_parameters or self.rope_scaling or {}

    @property
    def by_layer_type(self) -> bool:
        """Whether it has several RoPEs, one a layer type."""
        return by_layer_type(self._written)

    @property
    def rope(self) -> Settings:
        """The model's own settings as one flat dictionary; of several layer types a global one.

        Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
        """
        rope = self._written
        if self.by_layer_type:
            wide = without_window(rope)
            rope = rope[wide[0]] if wide else {}
        result = {key: value for key, value in rope.items() if value is not None}
        result.setdefault("rope_type", result.pop("type", None) or "default")
        for key in ("rope_theta", "partial_rotary_factor"):
            if key not in result and getattr(self, key) is not None:
                result[key] = getattr(self, key)
        return result

    @property
    def plain(self) -> bool:
        """Whether the checkpoint ships RoPE without any method."""
        return bool(self.rope["rope_type"] == "default")

    @property
    def scaled(self) -> bool:
        """Whether it ships a scaling, with Resonance or without it."""
        return self.rope["rope_type"] not in ("default", RESONANCE)

    @property
    def max_positions(self) -> int:
        """`max_position_embeddings`, or RopeConfigError if there is none."""
        if self.max_position_embeddings is None:
            raise RopeConfigError(
                "max_position_embeddings: the model's config has none of at least 1; allowed: a "
                "context length with the request"
            )
        return self.max_position_embeddings

    @property
    def stated_length(self) -> int | None:
        """Trained length `L` in tokens, where the config has a key for it."""
        stated = self.rope.get(LENGTH) or self.original_max_position_embeddings
        number = isinstance(stated, int | float) and 1 <= stated <= 2**53
        return int(stated) if number and stated is not None else None

    @property
    def original_length(self) -> int:
        """Trained length `L` in tokens."""
        return self.stated_length or self.max_positions

    def with_length(self, requested: int | None) -> Self:
        """The same, its length the requested one in tokens where its config states none."""
        if self.max_position_embeddings is not None or requested is None:
            return self
        return self.model_copy(update={"max_position_embeddings": requested})

    def overridden(self, overrides: Mapping[str, Any]) -> Self:
        """The config that a library sees after `overrides` of its keys."""
        for name in self.nested:
            below = overrides.get(name)
            overrides = below if isinstance(below, Mapping) else {}
        known = {key: value for key, value in overrides.items() if key in type(self).model_fields}
        if known.get("rope_scaling") and not known.get("rope_parameters"):  # its older name
            known["rope_parameters"] = known["rope_scaling"]
        return self.model_validate({**self.model_dump(), **known, "nested": self.nested})

    def in_place(self, written: dict[str, Any]) -> dict[str, Any]:
        """Overrides of the language model's config as overrides of the model's, see `nested`."""
        for name in reversed(self.nested):
            written = {name: written}
        return written

    def shipped(self) -> RopeSpec:
        """The checkpoint's own settings.

        Raises:
            RopeConfigError: it has no RoPE, or one that cannot be read.
        """
        return self._spec(RopeType.read(self.rope["rope_type"]), {})

    def ships(self, rope: RopeSpec) -> bool:
        """Whether settings are those of the checkpoint."""
        try:
            return rope == self.shipped()
        except RopeConfigError:  # a type of the model's own
            return False

    def replaced(self, rope: RopeSpec) -> Settings | None:
        """The shipped scaling that complete settings replace; None where they keep it."""
        if self.plain:
            return None
        try:
            shipped = self.shipped()
        except RopeConfigError:  # a type of the model's own
            return self.rope
        kept = shipped.method.name == "default" or rope.method.same_as(shipped.method)
        return None if kept and rope.resonance >= shipped.resonance else self.rope

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with what the model's config knows filled in.

        Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
        already uses the same method, that method's keys. `resonance` alone is Resonance on what
        the checkpoint ships. A shipped scaling that is replaced is logged, once for each pair.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, the model has no
                RoPE, or the request does not fit the model.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        kind = request.type
        if self.by_layer_type:
            global_layers(self._written)  # there is one
        if kind.name == RESONANCE and self.scaled:
            name = self.shipped().method.name
            kind = RopeType.read(RESONANCE if name == "default" else PREFIX + name)
        spec = self._spec(kind, request.given)
        if self.replaced(spec):
            spec = self._spec(kind, request.given, replaced=True)
            _log_replaced(spec.rope_type, short(self.rope))
        return spec

    def _spec(
        self, kind: RopeType, written: Mapping[str, Any], *, replaced: bool = False
    ) -> RopeSpec:
        given = self._kept(kind, written)
        if "rope_theta" not in given:
            raise RopeConfigError(
                f"rope_theta: neither given nor in the config of this {self.model_type!r} "
                "model: it has no RoPE, or one that its code fixes; give rope_theta if its code "
                "reads one"
            )
        if LENGTH in kind.key_names():
            if LENGTH not in given:
                given[LENGTH] = self._trained_length(kind.method, given, replaced)
            kind.method.fill(given, self.max_position_embeddings or given[LENGTH])
        return RopeSpec.of(kind, given)

    def _kept(self, kind: RopeType, written: Mapping[str, Any]) -> dict[str, Any]:
        """The written keys, and the shipped ones that stay valid beside them."""
        rope, keys = self.rope, [*Method.model_fields]
        try:
            same = RopeType.read(rope["rope_type"]).method is kind.method
        except RopeConfigError:
            same = False
        keys += kind.method.key_names() if same else []
        shipped = {key: rope[key] for key in keys if key in rope}
        for key, sources in kind.method.derived.items():
            # An explicit attention factor belongs to the factor beside it.
            if any(source in written and written[source] != rope.get(source) for source in sources):
                shipped.pop(key, None)
        return {**shipped, **written}

    def _trained_length(
        self, method: type[Method], given: Mapping[str, Any], replaced: bool
    ) -> int:
        """`L` of a request that does not state it."""
        extended = self.rope.get("factor")
        if self.stated_length or not self.scaled or extended is None or self._from_positions():
            return self.original_length
        if replaced:
            raise RopeConfigError(
                f"{LENGTH}: not in the config of this {self.model_type!r} model, which ships "
                f"{short(self.rope)} and has {self.max_positions} positions; give the length that "
                "it was trained on before that scaling"
            )
        factor = given.get("factor")
        if method.positions_multiplied and isinstance(factor, int | float) and factor >= 1:
            return max(int(self.max_positions / factor), 1)
        return self.max_positions

    def _from_positions(self) -> bool:
        """Whether `max_position_embeddings` is `L` of what is shipped: `dynamic` scales from it.

        Not where the model has a base of its own beside it (HunYuan's `alpha`).
        """
        try:
            follows = RopeType.read(self.rope["rope_type"]).method.follows_length
        except RopeConfigError:
            return False
        return follows and not model_keys(self.rope)


def short(rope: Mapping[str, Any]) -> str:
    """A dictionary for a message: `'yarn' (factor 4.0, ...)`, lists left out."""
    scalars = {k: v for k, v in rope.items() if not isinstance(v, list | Mapping)}
    keys = [key for key in scalars if key not in ("rope_type", "type")][:8]
    text = ", ".join(f"{key} {shown(rope[key])}" for key in keys)
    return f"{shown(rope.get('rope_type'))} ({text})" if text else shown(rope.get("rope_type"))


@functools.cache
def _log_replaced(requested: str, shipped: str) -> None:
    logger.warning("rope_type %r replaces what this checkpoint ships, %s", requested, shipped)
