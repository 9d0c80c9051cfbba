"""What users write as `rope_parameters`, and its validated form. No torch."""

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import resonance_vllm.core
from resonance_vllm.common.errors import RopeConfigError, SettingError, choices_hint, short_repr
from resonance_vllm.common.files import parse_json
from resonance_vllm.common.settings import parse_settings
from resonance_vllm.core.method import Method

RESONANCE = "resonance"
RESONANCE_PREFIX = f"{RESONANCE}_"
ORIGINAL_LENGTH_KEY = "original_max_position_embeddings"


def _methods() -> Iterator[type[Method]]:
    """Yield the classes with a name in `methods.py`, `remapping.py` and modules `methods_*.py`."""
    for info in pkgutil.iter_modules(resonance_vllm.core.__path__):
        if info.name == "remapping" or info.name.partition("_")[0] == "methods":
            module = importlib.import_module(f"{resonance_vllm.core.__name__}.{info.name}")
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Method) and hasattr(value, "name"):
                    yield value


METHODS: dict[str, type[Method]] = {
    method.name: method for method in sorted(_methods(), key=lambda method: method.name)
}
"""Every method by its `rope_type`."""
STOCK_TYPES = frozenset(name for name, method in METHODS.items() if method.stock)
"""Names of methods that both libraries have themselves."""
OWN_TYPES = (
    *(name for name in METHODS if name not in STOCK_TYPES),
    RESONANCE,
    *(RESONANCE_PREFIX + name for name in METHODS if name != "default"),
)
"""Names that this package adds to both libraries. Without it they must fail, and never run as
another method."""
ROPE_TYPES = (*sorted(STOCK_TYPES), *OWN_TYPES)
ALIASES = {"ntk": "ntk_aware", f"{RESONANCE_PREFIX}ntk": f"{RESONANCE_PREFIX}ntk_aware"}
"""Short names on the command line and in sweep configs; vLLM's own `ntk` is another formula."""


@dataclass(frozen=True)
class RopeType:
    """A parsed `rope_type`.

    Attributes:
        name: as it was written, without aliases.
        method: the class of its method.
        resonance: whether Resonance modifies the method.
    """

    name: str
    method: type[Method]
    resonance: bool

    @classmethod
    def parse(cls, name: object) -> Self:
        """Parse a type name.

        Raises:
            RopeConfigError: it is not one of `ROPE_TYPES`; similar names are suggested.
        """
        written = str(name)
        resonance = written == RESONANCE or written.startswith(RESONANCE_PREFIX)
        base = "default" if written == RESONANCE else written.removeprefix(RESONANCE_PREFIX)
        if base in METHODS:
            return cls(written, METHODS[base], resonance)
        raise RopeConfigError(
            f"rope_type: unknown type {short_repr(name)}{choices_hint(name, ROPE_TYPES)}"
        )


@dataclass(frozen=True)
class RopeRequest:
    """What a user requests, checked as far as possible without a model.

    Attributes:
        type: the parsed `rope_type`.
        settings: the other keys, without those whose value is None.
    """

    type: RopeType
    settings: Mapping[str, Any]

    @classmethod
    def from_dict(cls, rope: Mapping[str, Any], *, aliases: bool = True) -> Self:
        """Read a dictionary that may lack what a model's config knows.

        Args:
            rope: `rope_type` and keys of its method.
            aliases: whether short names are allowed, as where users write them.

        Raises:
            RopeConfigError: the type or a key is unknown, or `rope_type` is missing.
        """
        if not isinstance(rope, Mapping) or "rope_type" not in rope:
            raise RopeConfigError(
                f"rope_type: missing in {short_repr(rope)}{choices_hint('', ROPE_TYPES)}"
            )
        name = str(rope["rope_type"])
        kind = RopeType.parse(ALIASES.get(name, name) if aliases else name)
        given = {k: v for k, v in rope.items() if v is not None and k != "rope_type"}
        for key in given.keys() - kind.method.model_fields.keys():
            raise RopeConfigError(
                f"{key}: unknown setting{choices_hint(key, kind.method.key_names())}"
            )
        return cls(kind, given)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a `--rope` argument: `yarn:factor=2,truncate=false`, or a JSON dictionary.

        Raises:
            RopeConfigError: the text is neither, or the type or a key is unknown.
        """
        text = text.strip()
        if text.startswith("{"):
            return cls.from_dict(parse_json(text, f"rope {short_repr(text)}", RopeConfigError))
        rope_type, _, rest = text.partition(":")
        rope: dict[str, Any] = {"rope_type": rope_type.strip()}
        for item in filter(None, (part.strip() for part in rest.split(","))):
            key, _, value = item.partition("=")
            rope[key.strip()] = parse_value(value.strip())
        return cls.from_dict(rope)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as a dictionary, short names resolved."""
        return {"rope_type": self.type.name, **self.settings}


def parse_value(text: str) -> Any:
    """Return the value of a text that is JSON, else the text: how command lines write values."""
    try:
        return parse_json(text, text)
    except SettingError:
        return text


_PARSED: dict[tuple[type[Method], str], Method] = {}
"""Settings that were parsed, by their method and their keys as JSON. They are frozen."""
_MOST_PARSED = 1000


def _parsed_method(method: type[Method], given: Mapping[str, Any]) -> Method:
    """Return the settings of a method, which are parsed once.

    A model reads the settings that were written into its config for every rotary module that it
    builds.

    Raises:
        RopeConfigError: a key is unknown or missing, or a value is not allowed.
    """
    try:
        text = json.dumps(given, sort_keys=True)
    except TypeError:  # a value that no setting has: the error is about that
        return parse_settings(method, dict(given), error=RopeConfigError)
    if (method, text) not in _PARSED:
        settings = parse_settings(method, dict(given), error=RopeConfigError)
        if len(_PARSED) > _MOST_PARSED:
            _PARSED.clear()
        # What is written into a config is `to_settings`, and read from there.
        written = json.dumps(settings.to_settings(), sort_keys=True)
        _PARSED[method, text] = settings
        _PARSED[method, written] = settings
    return _PARSED[method, text]


@dataclass(frozen=True)
class RopeSpec:
    """Complete, validated RoPE settings.

    Attributes:
        method: the settings of the method.
        resonance: whether Resonance rounds its wavelengths to integers.
    """

    method: Method
    resonance: bool = False

    @classmethod
    def from_dict(cls, rope_parameters: Mapping[str, Any]) -> Self:
        """Read a complete `rope_parameters` dictionary.

        Args:
            rope_parameters: `rope_type` and the keys of its method; lengths in tokens. A value of
                None counts as not given.

        Returns:
            The settings, defaults filled in.

        Raises:
            RopeConfigError: a key is unknown or missing, or a value is not allowed.
        """
        request = RopeRequest.from_dict(rope_parameters, aliases=False)
        return cls.from_settings(request.type, request.settings)

    @classmethod
    def from_settings(cls, kind: RopeType, given: Mapping[str, Any]) -> Self:
        """Return complete settings from the keys of a parsed type.

        Args:
            kind: the type.
            given: the keys of its method, without `rope_type`.

        Raises:
            RopeConfigError: as for `from_dict`.
        """
        return cls(_parsed_method(kind.method, given), kind.resonance)

    @property
    def rope_type(self) -> str:
        """Return the name of these settings in both libraries."""
        if not self.resonance:
            return self.method.name
        return RESONANCE if self.method.name == "default" else RESONANCE_PREFIX + self.method.name

    @property
    def is_stock(self) -> bool:
        """Return whether both libraries run these settings without this package."""
        return self.rope_type in STOCK_TYPES and self.method.is_stock_formula

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads, without keys whose value is the default."""
        return {"rope_type": self.rope_type, **self.method.to_settings()}
