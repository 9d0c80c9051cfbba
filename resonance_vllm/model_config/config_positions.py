"""What a model's config says of its positions. No torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from leval_border.settings import LENIENT
from resonance_vllm.core.errors import RopeConfigError
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.spec import LENGTH, RESONANCE
from resonance_vllm.core.wavelengths import Resonance
from resonance_vllm.model_config.layer_types import by_layer_type, one_global

# Under these, config.json files of vision-language models keep that of the language model, code of
# their own included (InternVL, DeepSeek-VL2).
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
# What the length of a sequence is called in config.json files, by families without RoPE too.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
# Keys of a RoPE dictionary that are ours to write; all others belong to the model.
OUR_KEYS = {"rope_type", "type", *Resonance.model_fields}.union(
    *(method.key_names() for method in METHODS.values())
)

Integer = Annotated[Annotated[int, Field(ge=1, le=2**53)] | None, LENIENT]
Number = Annotated[int | float | None, LENIENT]
Table = Annotated[dict[str, Any] | None, LENIENT]


class ConfigPositions(BaseModel):
    """What limits and bases need of a model's config, that of its language model where it has one.

    A value that is not of the usual kind counts as absent: what needs it says that it is missing.

    Attributes:
        nested: keys under which the language model's config stands in the model's.
        whole_head: whether its code pairs dimensions over whole heads of which a part may stand
            still, as transformers' `proportional` type has it (Gemma 4).
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

    @classmethod
    def of(
        cls, config: Mapping[str, Any], nested: tuple[str, ...] = (), *, whole_head: bool = False
    ) -> Self:
        """Read the content of a config.json as it stands."""
        for name in _LANGUAGE_MODEL if not nested else ():
            if isinstance(inner := config.get(name), Mapping):
                return cls.of(inner, nested=(name,))
        length = next((config[key] for key in LENGTH_KEYS if config.get(key)), None)
        written = {key: config[key] for key in cls.model_fields if key in config}
        ours = {"nested": nested, "whole_head": whole_head}
        return cls.model_validate({**written, LENGTH_KEYS[0]: length, **ours})

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Read a config that transformers has read, which knows how its family writes things."""
        from resonance_vllm.hf.request import known_settings, names
        from resonance_vllm.model_config.checkpoint import text_config

        text, nested = text_config(config)
        keys = {*cls.model_fields, *LENGTH_KEYS}
        read = {key: _value(text, key) for key in keys}
        read["rope_parameters"] = known_settings(text, read["rope_parameters"])
        return cls.of(read, nested, whole_head=names(text, "proportional"))

    @classmethod
    def of_checkpoint(cls, path: str, revision: str | None = None) -> Self:
        """Read that of a checkpoint folder, or of a hub model; see `checkpoint.read_config`.

        Raises:
            RopeConfigError: there is no such folder, or its config.json cannot be read.
            OSError: the hub did not give it.
        """
        from resonance_vllm.model_config.checkpoint import read_config

        config = read_config(path, revision)
        return cls.of(config) if isinstance(config, Mapping) else cls.of_config(config)

    @property
    def by_layer_type(self) -> bool:
        """Whether it has several RoPEs, one a layer type."""
        return by_layer_type(self.rope_parameters or self.rope_scaling or {})

    @property
    def rope(self) -> dict[str, Any]:
        """The model's own settings as one flat dictionary; of several layer types the global one.

        Older config.json files keep `rope_theta` at the top and the rest in `rope_scaling`.
        """
        rope: Mapping[str, Any] = self.rope_parameters or self.rope_scaling or {}
        if self.by_layer_type:
            one = one_global(rope)
            rope = {} if one is None else rope[one]
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
        ours = {"nested": self.nested, "whole_head": self.whole_head}
        return self.model_validate({**self.model_dump(), **known, **ours})


def _value(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except Exception:  # noqa: BLE001 - a config whose layers differ refuses to say one value
        return None
