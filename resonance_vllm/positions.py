"""What a model's config says of its positions, and a request completed by it. No torch."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator
from pydantic import ValidatorFunctionWrapHandler as Handler

from leval_border.errors import shown
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Method
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import (
    LENGTH,
    PREFIX,
    REPLACE,
    RESONANCE,
    RopeRequest,
    RopeSpec,
    RopeType,
    is_own_type,
)
from resonance_vllm.core.wavelengths import Resonance

logger = logging.getLogger(__name__)

# Under these, config.json files of vision-language models keep that of the language model, code of
# their own included (InternVL, DeepSeek-VL2).
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
# In the names of layer types that look back a part of the text only.
_WINDOWS = ("sliding", "chunked")
# What the length of a sequence is called in config.json files, by families without RoPE too.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
# Keys of a RoPE dictionary that are ours to write; all others belong to the model.
OUR_KEYS = {"rope_type", "type", *Resonance.model_fields}.union(
    *(method.key_names() for method in METHODS.values())
)


def _or_none(value: Any, handler: Handler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


Tolerant = WrapValidator(_or_none)
Integer = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, Tolerant]
Number = Annotated[int | float | None, Tolerant]
Table = Annotated[dict[str, Any] | None, Tolerant]


class ModelPositions(BaseModel):
    """What limits and bases need of a model's config, that of its language model where it has one.

    A value that is not of the usual kind counts as absent: what needs it says that it is missing.

    Attributes:
        nested: keys under which the language model's config stands in the model's.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_type: Annotated[str | None, Tolerant] = None
    max_position_embeddings: Integer = None
    original_max_position_embeddings: Integer = None
    rope_parameters: Table = None
    rope_scaling: Table = None
    rope_theta: Number = None
    partial_rotary_factor: Number = None
    nested: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], nested: tuple[str, ...] = ()) -> Self:
        """Read the content of a config.json as it stands."""
        for name in _LANGUAGE_MODEL if not nested else ():
            if isinstance(inner := config.get(name), Mapping):
                return cls.of(inner, nested=(name,))
        length = next((config[key] for key in LENGTH_KEYS if config.get(key)), None)
        written = {key: config[key] for key in cls.model_fields if key in config}
        return cls.model_validate({**written, LENGTH_KEYS[0]: length, "nested": nested})

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Read a config that transformers has read, which knows how its family writes things."""
        from resonance_vllm.checkpoint import text_config
        from resonance_vllm.hf_request import known_settings

        text, nested = text_config(config)
        keys = {*cls.model_fields, *LENGTH_KEYS}
        read = {key: _value(text, key) for key in keys}
        read["rope_parameters"] = known_settings(text, read["rope_parameters"])
        return cls.of(read, nested)

    @classmethod
    def of_checkpoint(cls, path: str, revision: str | None = None) -> Self:
        """Read that of a checkpoint folder, or of a hub model; see `checkpoint.read_config`.

        Raises:
            RopeConfigError: there is no such folder, or its config.json cannot be read.
            OSError: the hub did not give it.
        """
        from resonance_vllm.checkpoint import read_config

        config = read_config(path, revision)
        return cls.of(config) if isinstance(config, Mapping) else cls.of_config(config)

    @property
    def by_layer_type(self) -> bool:
        """Whether it has several RoPEs, one a layer type."""
        written = self.rope_parameters or self.rope_scaling or {}
        return "rope_type" not in written and any(
            isinstance(value, Mapping) for value in written.values()
        )

    @property
    def rope(self) -> dict[str, Any]:
        """The model's own settings as one flat dictionary; of several layer types the global one.

        Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
        """
        rope: Mapping[str, Any] = self.rope_parameters or self.rope_scaling or {}
        if self.by_layer_type:
            rope = rope.get(_global_layers(rope) or "", {})
        result = {key: value for key, value in rope.items() if value is not None}
        result.setdefault("rope_type", result.pop("type", None) or "default")
        for key in ("rope_theta", "partial_rotary_factor"):
            if key not in result and getattr(self, key) is not None:
                result[key] = getattr(self, key)
        return result

    @property
    def model_keys(self) -> dict[str, Any]:
        """What stands in the dictionary that is the model's alone: it stays under any method."""
        return {key: value for key, value in self.rope.items() if key not in OUR_KEYS}

    @property
    def plain(self) -> bool:
        """Whether the checkpoint ships RoPE without any method."""
        return bool(self.rope["rope_type"] == "default")

    @property
    def scaled(self) -> bool:
        """Whether it ships a scaling, beside Resonance or without it."""
        return self.rope["rope_type"] not in ("default", RESONANCE)

    @property
    def max_positions(self) -> int:
        """`max_position_embeddings`, or RopeConfigError if there is none."""
        if self.max_position_embeddings is None:
            raise RopeConfigError(
                "max_position_embeddings: missing in the model's config; allowed: a whole number"
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

    def overridden(self, overrides: Mapping[str, Any]) -> Self:
        """The config that a library sees after `overrides` of its keys."""
        for name in self.nested:
            below = overrides.get(name)
            overrides = below if isinstance(below, Mapping) else {}
        known = {key: value for key, value in overrides.items() if key in type(self).model_fields}
        if known.get("rope_scaling") and not known.get("rope_parameters"):  # its older name
            known["rope_parameters"] = known["rope_scaling"]
        return self.model_validate({**self.model_dump(), **known, "nested": self.nested})

    def shipped(self) -> RopeSpec:
        """The checkpoint's own settings.

        Raises:
            RopeConfigError: it has no RoPE, or one that cannot be read.
        """
        kind = RopeType.read(self.rope["rope_type"])
        return self._spec(kind, {})

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with what the model's config knows filled in: the one reading of it.

        Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
        already uses the same method, that method's keys. `resonance` alone is Resonance on what
        the checkpoint ships.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, the model has no
                RoPE, or the request would replace what it ships without saying so.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        kind = request.type
        self._refuse_other_layers()
        if self.plain:
            return self._spec(kind, request.given)
        shipped = self._readable(request)
        if shipped is not None:
            if kind.name == RESONANCE and not request.replace:
                kind = _with_resonance(shipped.method)
            if not self.scaled or type(shipped.method) is kind.method:
                spec = self._spec(kind, request.given)
                if not _replaces(spec, shipped):
                    return spec
        if not request.replace:
            raise self._refusal(request)
        if shipped is not None and shipped.method.name == "proportional":
            self._refuse_part_of_a_head(kind, shipped)
        return self._spec(kind, request.given, replaced=True)

    def _refuse_part_of_a_head(self, kind: RopeType, shipped: RopeSpec) -> None:
        """Refuse a library's own type on a family whose whole head is turned, in part by 0.

        Those types make features for the share that turns alone: transformers' model code fails on
        fewer of them, vLLM pairs other dimensions.
        """
        share = shipped.method.partial_rotary_factor
        if share < 1 and not is_own_type(kind.name) and kind.name != shipped.rope_type:
            ours = RESONANCE if kind.name == "default" else f"{RESONANCE}_{kind.name}"
            raise RopeConfigError(
                f"rope_type: {kind.name!r} of the libraries does not fit this {self.model_type!r} "
                f"model, which turns {share:g} of each head and pairs dimensions over all of it; "
                f"allowed: {ours}, types of ours (ntk_aware), or Resonance on what is shipped"
            )

    def check_override(self, overrides: Mapping[str, Any]) -> None:
        """Read overrides in a library's own form, which put one dictionary in place of another.

        What cannot be read is logged: what runs in place of the shipped settings is unknown.

        Raises:
            RopeConfigError: they hide something that is shipped.
        """
        seen = self.overridden(overrides)
        if seen.rope == self.rope:
            return
        try:
            asked, shipped = seen.shipped(), None if self.plain else self.shipped()
        except RopeConfigError as error:
            logger.warning(
                "rope_parameters: %s is given in place of the shipped %s, and what runs then is "
                "unknown: %s",
                _short(seen.rope),
                _short(self.rope),
                error,
            )
            return
        if shipped is not None and _replaces(asked, shipped):
            raise RopeConfigError(
                f"rope_parameters: {_short(seen.rope)} would hide what this {self.model_type!r} "
                f"model ships, {_short(self.rope)}; write --rope {asked.rope_type}:{REPLACE}=true "
                "with its keys to give that up, or --rope resonance for Resonance on top of it"
            )

    def _refuse_other_layers(self) -> None:
        """A dictionary of a layer type that a model has not would be used by no layer."""
        if self.by_layer_type:
            global_layers(self.rope_parameters or self.rope_scaling or {})

    def _readable(self, request: RopeRequest) -> RopeSpec | None:
        """What is shipped; None where that is nothing known, and is to be replaced anyway."""
        try:
            return self.shipped()
        except RopeConfigError as error:
            if request.replace:
                return None
            raise RopeConfigError(
                f"rope_type: {request.type.name!r} is asked of a {self.model_type!r} model that "
                f"ships {_short(self.rope)}, which cannot be read ({error}); allowed: no method, "
                f"which runs it as shipped, or {REPLACE}: true to give that up"
            ) from error

    def _refusal(self, request: RopeRequest) -> RopeConfigError:
        return RopeConfigError(
            f"rope_type: {request.type.name!r} would replace what this {self.model_type!r} model "
            f"ships, {_short(self.rope)}; write {REPLACE}: true ({_example(request)}) to give "
            "that up, or resonance for Resonance on top of it"
        )

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
        if kind.asks_length(given):
            if LENGTH not in given:
                given[LENGTH] = self._trained_length(kind.method, given, replaced)
            kind.method.fill(given, self.max_positions)
        return RopeSpec.of(kind, given)

    def _kept(self, kind: RopeType, written: Mapping[str, Any]) -> dict[str, Any]:
        """What was written, and the shipped keys that hold on beside it."""
        rope, keys = self.rope, [*Method.model_fields]
        try:
            shipped_kind = RopeType.read(rope["rope_type"])
        except RopeConfigError:
            pass
        else:
            keys += kind.method.key_names() if shipped_kind.method is kind.method else []
            keys += Resonance.model_fields if shipped_kind.resonance and kind.resonance else []
        shipped = {key: rope[key] for key in keys if key in rope}
        for key, sources in kind.method.derived.items():
            # An attention factor that is spelt out belongs to the factor beside it.
            if any(source in written and written[source] != rope.get(source) for source in sources):
                shipped.pop(key, None)
        return {**shipped, **written}

    def _trained_length(
        self, method: type[Method], given: Mapping[str, Any], replaced: bool
    ) -> int:
        """`L` of a request that does not say it."""
        extended = self.rope.get("factor")
        if self.stated_length or not self.scaled or extended is None:
            return self.original_length
        if replaced:
            raise RopeConfigError(
                f"{LENGTH}: not in the config of this {self.model_type!r} model, which ships "
                f"{_short(self.rope)} and has {self.max_positions} positions; give the length "
                "that it was trained on before that scaling"
            )
        factor = given.get("factor")
        if method.positions_multiplied and isinstance(factor, int | float) and factor >= 1:
            return max(int(self.max_positions / factor), 1)
        return self.max_positions


def windowed(layer_type: str | None) -> bool:
    """Whether layers of a type look back a part of the text only; methods leave them as shipped."""
    return any(word in str(layer_type) for word in _WINDOWS)


def global_layers(rope: Mapping[str, Any]) -> str:
    """The layer type whose settings methods change, of settings by layer type.

    Raises:
        RopeConfigError: no type, or several, have no window.
    """
    found = _global_layers(rope)
    if found is None:
        raise RopeConfigError(
            f"rope_type: the model has a RoPE for each of {', '.join(map(str, rope))}, and not one "
            "alone for layers without a window, which methods change; allowed: no method, which "
            "runs it as shipped"
        )
    return found


def _global_layers(rope: Mapping[str, Any]) -> str | None:
    wide = [k for k, settings in rope.items() if isinstance(settings, Mapping) and not windowed(k)]
    return wide[0] if len(wide) == 1 else None


def _value(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to say one value
        return None


def _with_resonance(method: Method) -> RopeType:
    name = method.variant()
    return RopeType.read(RESONANCE if name == "default" else PREFIX + name)


def _replaces(asked: RopeSpec, shipped: RopeSpec) -> bool:
    """Whether something that is shipped would be lost."""
    if shipped.resonance is not None:
        rule = shipped.resonance.wavelengths
        if asked.resonance is None or asked.resonance.wavelengths != rule:
            return True
    return shipped.method.name != "default" and not asked.method.same_as(shipped.method)


def _short(rope: Mapping[str, Any]) -> str:
    """A dictionary for a message: `'yarn' (factor 4.0, ...)`, lists left out."""
    keys = [k for k, v in rope.items() if k not in ("rope_type", "type") and not _long(v)][:8]
    told = ", ".join(f"{key} {shown(rope[key])}" for key in keys)
    return f"{shown(rope.get('rope_type'))} ({told})" if told else shown(rope.get("rope_type"))


def _long(value: object) -> bool:
    return isinstance(value, list | Mapping)


def _example(request: RopeRequest) -> str:
    """The request with `replace`, as the command line takes it."""
    scalars = {k: v for k, v in request.given.items() if isinstance(v, int | float | str)}
    keys = [f"{key}={str(value).lower()}" for key, value in scalars.items()]
    return f"--rope {request.type.name}:{','.join([*keys, f'{REPLACE}=true'])}"


def rope_dictionaries(config: Any) -> list[dict[str, Any]]:
    """The rope settings of a transformers config: one, or one for each layer type that it has."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return []
    present = getattr(config, "layer_types", None) or rope
    nested = {key: value for key, value in rope.items() if isinstance(value, dict)}
    if "rope_type" in rope or not nested:
        return [rope]
    return [value for key, value in nested.items() if key in present]
