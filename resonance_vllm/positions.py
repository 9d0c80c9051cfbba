"""What a model's config.json says of its positions, read once. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator
from pydantic import ValidatorFunctionWrapHandler as Handler

from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.method import Method
from resonance_vllm.core.spec import BASE_TYPES, PREFIX, RopeRequest, RopeSpec, RopeType

GLOBAL_LAYERS = "full_attention"


def _or_none(value: Any, handler: Handler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


Tolerant = WrapValidator(_or_none)
Integer = Annotated[int | None, Tolerant]
Number = Annotated[int | float | None, Tolerant]
Table = Annotated[dict[str, Any] | None, Tolerant]


class ModelPositions(BaseModel):
    """The keys of a config.json that positions depend on.

    Other keys may stand there, and a value that is not of the usual kind (some families write
    lists) counts as absent: what needs it says that it is missing.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_type: Annotated[str | None, Tolerant] = None
    max_position_embeddings: Integer = None
    original_max_position_embeddings: Integer = None
    rope_parameters: Table = None
    rope_scaling: Table = None
    rope_theta: Number = None
    rope_local_base_freq: Number = None
    partial_rotary_factor: Number = None
    head_dim: Integer = None
    hidden_size: Integer = None
    num_attention_heads: Integer = None
    kv_lora_rank: Integer = None
    qk_rope_head_dim: Integer = None
    text_config: Table = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read the content of a config.json."""
        return cls.model_validate(dict(config))

    @classmethod
    def of_checkpoint(cls, path: str) -> Self:
        """Read that of a local checkpoint, or of a hub model that transformers can find.

        Raises:
            OSError: there is none.
            ValueError: it is not JSON.
        """
        file = Path(path) / "config.json"
        if file.is_file():
            return cls.of(json.loads(file.read_text(encoding="utf-8")))
        from transformers import AutoConfig

        return cls.of(AutoConfig.from_pretrained(path).to_dict())

    @property
    def rope(self) -> dict[str, Any]:
        """The model's own settings as one flat dictionary; of several layer types the global one.

        Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
        """
        rope = self.rope_parameters or self.rope_scaling or {}
        if GLOBAL_LAYERS in rope:
            rope = rope[GLOBAL_LAYERS] or {}
        result = {key: value for key, value in rope.items() if value is not None}
        result.setdefault("rope_type", result.pop("type", None) or "default")
        for key in ("rope_theta", "partial_rotary_factor"):
            if key not in result and getattr(self, key) is not None:
                result[key] = getattr(self, key)
        return result

    @property
    def by_layer_type(self) -> bool:
        """Whether it has several RoPEs, one a layer type."""
        return GLOBAL_LAYERS in (self.rope_parameters or {})

    @property
    def max_positions(self) -> int:
        """`max_position_embeddings`, or RopeConfigError if there is none."""
        if self.max_position_embeddings is None:
            raise RopeConfigError(
                "max_position_embeddings: missing in the model's config; allowed: a whole number"
            )
        return self.max_position_embeddings

    @property
    def original_length(self) -> int:
        """Trained length `L` in tokens."""
        stated = self.rope.get("original_max_position_embeddings")
        return int(stated or self.original_max_position_embeddings or self.max_positions)

    def rotary_dim(self, share: float | None = None) -> int:
        """Rotated dimensions of a head, of which `share` rotates, by default the config's."""
        head_dim = self.head_dim
        if head_dim is None:
            if not self.hidden_size or not self.num_attention_heads:
                raise RopeConfigError(
                    "head_dim: missing in the model's config; allowed: a whole number"
                )
            head_dim = self.hidden_size // self.num_attention_heads
        return int(head_dim * (share or self.rope.get("partial_rotary_factor") or 1.0))

    def overridden(self, overrides: Mapping[str, Any]) -> Self:
        """The config that a library sees after `overrides` of its keys."""
        known = {key: value for key, value in overrides.items() if key in type(self).model_fields}
        return self.model_copy(update=known)

    def check_family(self) -> None:
        """Raise RopeConfigError for a model whose positions our settings cannot describe."""
        if self.kv_lora_rank is not None or self.qk_rope_head_dim is not None:
            problem = (
                "uses multi-head latent attention (MLA), whose rotary part both libraries build in "
                "their own way; allowed: models with one RoPE over the whole head"
            )
        elif "mrope_section" in self.rope:
            problem = (
                "uses multi-axis RoPE (mrope_section); allowed: models with one position a token"
            )
        elif self.text_config is not None and self.rope_parameters is None:
            problem = "nests its language model in text_config; allowed: text-only checkpoints"
        else:
            return
        raise RopeConfigError(f"model_type: {self.model_type!r} {problem}")

    def complete(self, rope: RopeRequest | Mapping[str, Any]) -> RopeSpec:
        """A request with what the model's config knows filled in: the one reading of it.

        Filled in: `rope_theta`, the trained length, `partial_rotary_factor`, and, where the model
        already uses the same method, any of that method's keys.

        Raises:
            RopeConfigError: a key is unknown or missing, a value is not allowed, or the model's
                positions cannot be described.
        """
        self.check_family()
        request = rope if isinstance(rope, RopeRequest) else RopeRequest.from_dict(rope)
        return self._completed(request.type, request.given)

    def shipped(self) -> RopeSpec:
        """The checkpoint's own settings; see `complete` for what is refused."""
        self.check_family()
        return self._completed(RopeType.read(self.rope["rope_type"]), {})

    def _completed(self, kind: RopeType, written: Mapping[str, Any]) -> RopeSpec:
        shipped = self.rope
        same = BASE_TYPES.get(str(shipped["rope_type"]).removeprefix(PREFIX))
        keys = kind.method.key_names() if same and same[0] is kind.method else Method.model_fields
        given = {**{key: shipped[key] for key in keys if key in shipped}, **written}
        if "rope_theta" not in given:
            raise RopeConfigError(
                f"rope_theta: neither given nor in the config of this {self.model_type!r} "
                "model; give rope_theta if it is a RoPE model"
            )
        if kind.asks_length(given):
            kind.method.fill(given, self.original_length, self.max_positions)
        return RopeSpec.of(kind, given)


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
