"""What a model's config states about its positions, and a request completed by it. No torch."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import (
    LENGTH,
    OWN_TYPES,
    PREFIX,
    REPLACE,
    RESONANCE,
    RopeRequest,
    RopeSpec,
    RopeType,
)
from resonance_vllm.core.wavelengths import Resonance
from resonance_vllm.errors import RopeConfigError, shown
from resonance_vllm.model_config import shipped_scaling
from resonance_vllm.model_config.checkpoint import read_config
from resonance_vllm.model_config.family import (
    by_layer_type,
    global_layers,
    known_settings,
    model_keys,
    pairs_whole_heads,
    refuse_part_of_a_head,
    text_config,
    value_of,
    without_window,
)
from resonance_vllm.settings import LENIENT

logger = logging.getLogger(__name__)

# Under these, config.json files of vision-language models keep that of the language model, code of
# their own included (InternVL, DeepSeek-VL2).
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
# What the length of a sequence is called in config.json files, by families without RoPE too.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")

Integer = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, LENIENT]
Number = Annotated[int | float | None, LENIENT]
Table = Annotated[dict[str, Any] | None, LENIENT]


class ModelPositions(BaseModel):
    """What limits and requests need of a model's config, that of its language model if nested.

    A value of an unexpected kind counts as absent; whatever needs it reports that it is missing.

    Attributes:
        nested: keys under which the language model's config stands in the model's.
        whole_head: whether the family pairs dimensions over whole heads of which a part may stand
            still, as transformers' `proportional` type has it (Gemma 4).
        length_as_written: of `max_position_embeddings`, whatever its value is.
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
    whole_head: bool = False
    length_as_written: Any = None

    @classmethod
    def of(
        cls, config: Mapping[str, Any], nested: tuple[str, ...] = (), *, whole_head: bool = False
    ) -> Self:
        """Read the content of a config.json."""
        for name in _LANGUAGE_MODEL if not nested else ():
            if isinstance(inner := config.get(name), Mapping):
                return cls.of(inner, nested=(name,))
        lengths = [config[key] for key in LENGTH_KEYS if config.get(key) is not None]
        length = next(filter(None, lengths), next(iter(lengths), None))
        written = {key: config[key] for key in cls.model_fields if key in config}
        ours = {"nested": nested, "whole_head": whole_head, "length_as_written": length}
        return cls.model_validate({**written, LENGTH_KEYS[0]: length, **ours})

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Read a config of transformers, whose class knows how its family writes things."""
        text, nested = text_config(config)
        read = {key: value_of(text, key) for key in {*cls.model_fields, *LENGTH_KEYS}}
        read["rope_parameters"] = known_settings(text, read["rope_parameters"])
        return cls.of(read, nested, whole_head=pairs_whole_heads(text))

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
    def by_layer_type(self) -> bool:
        """Whether it has several RoPEs, one a layer type."""
        return by_layer_type(self.rope_parameters or self.rope_scaling or {})

    @property
    def rope(self) -> dict[str, Any]:
        """The model's own settings as one flat dictionary; of several layer types a global one.

        Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
        """
        rope: Mapping[str, Any] = self.rope_parameters or self.rope_scaling or {}
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
    def model_keys(self) -> dict[str, Any]:
        """Keys of the dictionary that belong to the model: they stay under any method."""
        return model_keys(self.rope)

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
            written = self.length_as_written
            wrong = "missing" if written is None else f"{shown(written)} is not allowed"
            raise RopeConfigError(
                f"max_position_embeddings: {wrong} in the model's config; allowed: a whole number "
                "of at least 1, or a context length with the request"
            )
        return self.max_position_embeddings

    def with_length(self, requested: int | None) -> Self:
        """The same, its length the requested one in tokens where its config states none."""
        if self.max_position_embeddings is not None or requested is None:
            return self
        return self.model_copy(update={"max_position_embeddings": requested})

    def of_layers(self, layer_type: str) -> Self:
        """The same as if all layers were of one type, of a model with settings by layer type."""
        rope = (self.rope_parameters or self.rope_scaling or {})[layer_type]
        return self.model_copy(update={"rope_parameters": rope, "rope_scaling": None})

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
        ours = {"nested": self.nested, "whole_head": self.whole_head}
        return self.model_validate({**self.model_dump(), **known, **ours})

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

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with what the model's config knows filled in.

        Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
        already uses the same method, that method's keys. `resonance` alone is Resonance on what
        the checkpoint ships.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, the model has no
                RoPE, or the request would replace what it ships without `replace`, or does not fit
                the model.
        """
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        spec = self._completed(request)
        refuse_part_of_a_head(self, spec)
        return spec

    def _completed(self, request: RopeRequest) -> RopeSpec:
        kind = request.type
        if self.by_layer_type and (kind.name != RESONANCE or request.replace):
            global_layers(self.rope_parameters or self.rope_scaling or {})
        if self.plain:
            return self._spec(kind, request.given)
        shipped = self._readable(request)
        if shipped is not None:
            if kind.name == RESONANCE and not request.replace:
                name = shipped.method.variant()
                kind = RopeType.read(RESONANCE if name == "default" else PREFIX + name)
            if not self.scaled or type(shipped.method) is kind.method:
                spec = self._spec(kind, request.given)
                if not shipped_scaling.replaces(spec, shipped):
                    return spec
        if not request.replace:
            raise shipped_scaling.refusal(self, request)
        spec = self._spec(kind, request.given, replaced=True)
        shipped_scaling.intended.add((spec.rope_type, str(self.rope["rope_type"])))
        return spec

    def check_override(self, overrides: Mapping[str, Any]) -> None:
        """Read overrides in a library's own form, which replace a whole dictionary.

        Overrides that cannot be read are logged.

        Raises:
            RopeConfigError: they hide something that is shipped, or do not fit the model.
        """
        seen = self.overridden(overrides)
        if seen.rope == self.rope:
            return
        try:
            requested, replaced = seen.shipped(), self.replaced_by(seen)
        except RopeConfigError as error:
            logger.warning(
                "rope_parameters: %s is given in place of the shipped %s, and what runs then is "
                "unknown: %s",
                shipped_scaling.short(seen.rope),
                shipped_scaling.short(self.rope),
                error,
            )
            return
        refuse_part_of_a_head(self, requested)
        if replaced:
            raise shipped_scaling.hiding(self, seen, requested)

    def replaced_by(self, seen: "ModelPositions") -> bool:
        """Whether the settings of the same model with overrides replace what this one ships.

        Raises:
            RopeConfigError: one of the two cannot be read.
        """
        return not self.plain and shipped_scaling.replaces(seen.shipped(), self.shipped())

    def log_replacement(self, seen: "ModelPositions", logger: logging.Logger) -> None:
        """Log, once for each pair of types, that a type of ours replaces what is shipped.

        For the libraries' own interfaces (`from_pretrained`, `vllm serve --hf-overrides`), which
        cannot express that this is intended.

        Args:
            seen: the same model with overrides.
            logger: of the library's adapter.
        """
        requested = str(seen.rope["rope_type"])
        if requested not in OWN_TYPES or not self.scaled:
            return
        try:
            replaced = self.replaced_by(seen)
        except RopeConfigError:  # a type of the model's own
            replaced = True
        if replaced:
            shipped_scaling.log_once(logger, requested, str(self.rope["rope_type"]))

    def _readable(self, request: RopeRequest) -> RopeSpec | None:
        """What is shipped; None where that is unknown and is to be replaced anyway."""
        try:
            return self.shipped()
        except RopeConfigError as error:
            if request.replace:
                return None
            raise RopeConfigError(
                f"rope_type: {request.type.name!r} is requested for a {self.model_type!r} model "
                f"that ships {shipped_scaling.short(self.rope)}, which cannot be read ({error}); "
                f"allowed: no method, which runs it as shipped, or {REPLACE}: true to give that up"
            ) from error

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
            kind.method.fill(given, self.max_position_embeddings or given[LENGTH])
        return RopeSpec.of(kind, given)

    def _kept(self, kind: RopeType, written: Mapping[str, Any]) -> dict[str, Any]:
        """The written keys, and the shipped ones that stay valid beside them."""
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
                f"{shipped_scaling.short(self.rope)} and has {self.max_positions} positions; give "
                "the length that it was trained on before that scaling"
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
        return follows and not self.model_keys
