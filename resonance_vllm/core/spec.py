"""What a user may write as `rope_parameters`, and its validated form. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic.fields import FieldInfo

from resonance_vllm.core.method import Method
from resonance_vllm.core.methods import METHODS
from resonance_vllm.core.wavelengths import Resonance
from resonance_vllm.errors import RopeConfigError, SettingError, hint, not_allowed, shown
from resonance_vllm.files import parse_json
from resonance_vllm.settings import read

RESONANCE = "resonance"
PREFIX = f"{RESONANCE}_"
LENGTH = "original_max_position_embeddings"
REPLACE = "replace"
COMPARED = "rope_compared"
"""Key of vLLM's `hf_overrides` beside requested settings of a stock type: what vLLM builds is
compared with them. Overrides without it are not compared."""

# Every name of a method without Resonance -> the method and the settings that the name implies.
BASE_TYPES: dict[str, tuple[type[Method], Mapping[str, Any]]] = {
    name: (method, implied)
    for method in METHODS.values()
    for name, implied in {method.name: {}, **method.variants}.items()
}
# Names under which both libraries know a method without us.
STOCK_TYPES = frozenset(name for name, method in METHODS.items() if method.stock)
# Names that we add to both libraries; none of them may ever run as something else without us.
OWN_TYPES = (
    *(name for name in BASE_TYPES if name not in STOCK_TYPES),
    RESONANCE,
    *(PREFIX + name for name in BASE_TYPES if name != "default"),
)
ROPE_TYPES = (*sorted(STOCK_TYPES), *OWN_TYPES)
# Short name on our command lines and in sweep configs -> method.
ALIASES = {alias: method.name for method in METHODS.values() for alias in method.aliases}


@dataclass(frozen=True)
class RopeType:
    """A `rope_type` taken apart: the method, whether Resonance modifies it, implied settings."""

    name: str
    method: type[Method]
    resonance: bool
    implied: Mapping[str, Any]

    @classmethod
    def read(cls, name: object, *, aliases: bool = False) -> Self:
        """Take a type name apart; `aliases` allows the short names of our command line (`ntk`).

        Raises:
            RopeConfigError: the name is none of `ROPE_TYPES`.
        """
        if not isinstance(name, str):
            raise RopeConfigError(f"rope_type: {shown(name)} is not allowed{hint('', ROPE_TYPES)}")
        resonance = name == RESONANCE or name.startswith(PREFIX)
        base = "default" if name == RESONANCE else name.removeprefix(PREFIX)
        if aliases and base in ALIASES:
            base = ALIASES[base]
            name = PREFIX + base if resonance else base
        if base in BASE_TYPES:
            method, implied = BASE_TYPES[base]
            return cls(name, method, resonance, implied)
        end = hint(name, ROPE_TYPES)
        if base in ALIASES:
            end = f"; did you mean {ALIASES[base]!r}?"
            if base in METHODS[ALIASES[base]].vllm_lookalikes:
                end += f" (vLLM's {base} is another formula)"
        raise RopeConfigError(f"rope_type: unknown type {shown(name)}{end}")

    def key_names(self) -> list[str]:
        """Keys that may stand beside the type."""
        keys = self.method.key_names()
        own = Resonance.model_fields if self.resonance else ()
        return [*(key for key in own if key not in keys), *keys]

    def asks_length(self, given: Mapping[str, Any]) -> bool:
        """Whether the trained length counts in settings of this type, as far as they are given."""
        if LENGTH in self.method.key_names():
            return True
        return self.resonance and self.modifier(given).needs_length()

    def modifier(self, given: Mapping[str, Any]) -> Resonance:
        """The settings of Resonance among those of a type that it modifies."""
        own = Resonance.model_fields.keys() - self.method.model_fields.keys()
        return read(Resonance, {k: v for k, v in given.items() if k in own}, error=RopeConfigError)


@dataclass(frozen=True)
class RopeRequest:
    """What a user requests, without keys of None, checked as far as possible without a model.

    `replace` allows to give up a scaling that the checkpoint ships; no library is given it.
    """

    type: RopeType
    given: Mapping[str, Any]
    replace: bool = False

    @classmethod
    def from_dict(cls, rope: Mapping[str, Any], *, aliases: bool = True) -> Self:
        """Read a dictionary that may lack what a model's config knows.

        With `aliases` a user wrote it: short names and `replace` are allowed.

        Raises:
            RopeConfigError: the type or a key is unknown.
        """
        if not isinstance(rope, Mapping):
            raise RopeConfigError(
                not_allowed("rope_parameters", rope, "a mapping with rope_type and its keys")
            )
        if "rope_type" not in rope:
            old = " (`type` is the old name of this key)" if "type" in rope else ""
            raise RopeConfigError(f"rope_type: missing{old}{hint('', ROPE_TYPES)}")
        kind = RopeType.read(rope["rope_type"], aliases=aliases)
        given = {k: v for k, v in rope.items() if v is not None and k != "rope_type"}
        replace = given.pop(REPLACE, False) if aliases else False
        if not isinstance(replace, bool):
            raise RopeConfigError(not_allowed(REPLACE, replace, "true or false"))
        known = kind.key_names()
        for key, value in given.items():
            if key not in known:
                raise RopeConfigError(
                    f"{key}: {shown(value)} is not a setting of rope_type {kind.name!r}"
                    f"{hint(key, known)}"
                )
        return cls(kind, given, replace)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a `--rope` argument: `yarn:factor=2,truncate=false`, or a JSON dictionary.

        Raises:
            RopeConfigError: the text is neither, or the type or a key is unknown.
        """
        text = text.strip()
        if text.startswith("{"):
            return cls.from_dict(parse_json(text, f"rope {shown(text)}", RopeConfigError))
        rope_type, _, rest = text.partition(":")
        rope: dict[str, Any] = {"rope_type": rope_type.strip()}
        for item in filter(None, (part.strip() for part in rest.split(","))):
            key, equals, value = item.partition("=")
            if not equals:
                raise RopeConfigError(
                    f"rope: {item!r} in {text!r} has no value; allowed: TYPE:key=value,key=value "
                    "or a JSON dictionary"
                )
            if key.strip() in rope:
                raise RopeConfigError(f"{key.strip()}: given twice in {shown(text)}; allowed: once")
            rope[key.strip()] = parsed_value(value.strip())
        return cls.from_dict(rope)

    def to_dict(self) -> dict[str, Any]:
        """As it was written, short names resolved."""
        replace = {REPLACE: True} if self.replace else {}
        return {"rope_type": self.type.name, **self.given, **replace}


def parsed_value(text: str) -> Any:
    """JSON where a text is that, else the text itself: how values stand on a command line."""
    try:
        return parse_json(text, text)
    except SettingError:
        return text


@dataclass(frozen=True)
class RopeSpec:
    """Validated RoPE settings: a method, and how Resonance changes its wavelengths if it does."""

    method: Method
    resonance: Resonance | None = None

    @classmethod
    def from_dict(cls, rope_parameters: Mapping[str, Any]) -> Self:
        """Read a complete `rope_parameters` dictionary; None counts as not given.

        Raises:
            RopeConfigError: a key is unknown or missing, or a value is not allowed.
        """
        request = RopeRequest.from_dict(rope_parameters, aliases=False)
        return cls.of(request.type, request.given)

    @classmethod
    def of(cls, kind: RopeType, given: Mapping[str, Any]) -> Self:
        """The settings of a type, all its keys given.

        Raises:
            RopeConfigError: a key is missing, or a value is not allowed.
        """
        for key, value in kind.implied.items():
            if given.get(key, value) != value:
                raise RopeConfigError(
                    f"{key}: {shown(given[key])} contradicts rope_type {kind.name!r}; "
                    f"allowed: {value}"
                )
        resonance = kind.modifier(given) if kind.resonance else None
        own = resonance.model_fields_set if resonance else set()
        rest = {key: value for key, value in given.items() if key not in own}
        method = read(kind.method, {**kind.implied, **rest}, error=RopeConfigError)
        spec = cls(method, resonance)
        if resonance and resonance.needs_length() and spec.trained_length is None:
            raise RopeConfigError(
                f"{LENGTH}: missing; wavelengths {resonance.wavelengths!r} needs the trained length"
            )
        return spec

    @property
    def rope_type(self) -> str:
        """The name under which both libraries are given these settings."""
        name = self.method.variant()
        if self.resonance is None:
            return name
        return RESONANCE if name == "default" else PREFIX + name

    @property
    def is_stock(self) -> bool:
        """Whether both libraries run these settings without us."""
        return self.rope_type in STOCK_TYPES

    @property
    def base_is_stock(self) -> bool:
        """Whether both libraries run what Resonance modifies."""
        return self.method.variant() in STOCK_TYPES

    @property
    def trained_length(self) -> int | None:
        """`L` in tokens, where the settings hold it."""
        own = self.resonance.original_max_position_embeddings if self.resonance else None
        return self.method.trained_length or own

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` reads, for a library, without keys whose value is the default."""
        own = self.resonance.model_dump(exclude_defaults=True) if self.resonance else {}
        return {"rope_type": self.rope_type, **self.method.written(), **own}


def refuse_ignored_keys(rope: Mapping[str, Any], library: str) -> None:
    """Raise RopeConfigError if a library's own type carries a key that only types of ours have."""
    if rope.get("rope_type") in OWN_TYPES:
        return
    for key, field, name in _own_keys():
        if rope.get(key) not in (None, field.default):
            raise RopeConfigError(
                f"{key}: {shown(rope[key])} would be ignored: {library} runs rope_type "
                f"{rope.get('rope_type')!r} itself; allowed: rope_type {name}"
            )


def _own_keys() -> Iterator[tuple[str, FieldInfo, str]]:
    """Each key that no stock type has, its field and the type that has it."""
    stock = {key for method in METHODS.values() if method.stock for key in method.key_names()}
    for name, (method, implied) in BASE_TYPES.items():
        if name not in STOCK_TYPES:
            for key in implied if method.stock else set(method.key_names()) - stock:
                yield key, method.model_fields[key], name
    for key in Resonance.model_fields.keys() - stock:
        yield key, Resonance.model_fields[key], PREFIX + "*"
