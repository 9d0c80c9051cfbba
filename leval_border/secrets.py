"""Credentials: told by their names, kept out of every file, handed on by the environment."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VARIABLE = "LEVAL_HARNESS_SECRETS"
"""Environment variable that takes credentials to a process of ours."""
HIDDEN = "***"
SHORTEST = 6
"""A shorter value is not looked for in text, where it may stand for something else."""

_NAMES = {
    *("password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials"),
    *("authorization", "authorisation", "auth", "bearer", "apikey", "cookie", "cookies"),
    *("header", "headers"),
}
_KEYS = {"api", "access", "private", "secret", "subscription", "account", "auth", "encryption"}
# Tokens of a text, not of a user: `eos_token`, `think_end_token`, `max_new_token`.
_OF_TEXT = {
    *("bos", "eos", "pad", "unk", "sep", "cls", "mask", "eot", "eod", "eom", "boi", "eoi", "fim"),
    *(
        "start",
        "end",
        "begin",
        "stop",
        "prefix",
        "suffix",
        "middle",
        "first",
        "last",
        "next",
        "new",
    ),
    *("think", "thinking", "reasoning", "image", "audio", "video", "vision", "special", "added"),
    *("max", "min", "per", "of", "add", "skip", "system", "assistant", "role", "turn", "answer"),
    *("decoder", "forced", "separator", "delimiter", "vocab", "blank", "space", "newline", "tool"),
}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_IN_URL = re.compile(r"(?<=://)[^/\s@?#]+@")
_IN_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=([^&\s#]+)")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}")
_PAIR = re.compile(r"([\w.-]+)=([^,]*)")

Place = list[str | int]
Secrets = list[tuple[Place, Any]]
"""Where a value stood, by keys and numbers, and the value."""


def is_credential(name: str) -> bool:
    """Whether a name is a credential's: `hf_token`, `apiKey`; not `max_tokens`, `eos_token`."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if words[-1] == "token":
        return not _OF_TEXT & set(words)
    if words[-1] in ("key", "keys"):
        return len(words) > 1 and words[-2] in _KEYS
    return words[-1] in _NAMES


def split(content: Any) -> tuple[Any, Secrets]:
    """What may be written down of nested settings, and the rest; see `joined`.

    What has the name of a credential is left out, true, false and null excepted; text loses user
    and password of an address, credentials of its query, and what follows `Bearer`.
    """
    secrets: Secrets = []
    return _split(content, [], secrets), secrets


def _split(value: Any, place: Place, secrets: Secrets) -> Any:
    if isinstance(value, Mapping):
        kept = {}
        for key, inside in value.items():
            secret = isinstance(key, str) and is_credential(key)
            if secret and inside is not None and not isinstance(inside, bool):
                secrets.append(([*place, key], inside))
            else:
                kept[key] = _split(inside, [*place, key], secrets)
        return kept
    if isinstance(value, list | tuple):
        return [_split(inside, [*place, i], secrets) for i, inside in enumerate(value)]
    if isinstance(value, str) and (public := _public_text(value)) != value:
        secrets.append((place, value))
        return public
    return value


def _public_text(text: str) -> str:
    def query(match: re.Match[str]) -> str:
        return f"{match[1]}={HIDDEN}" if is_credential(match[1]) else match[0]

    if "://" in text:
        text = _IN_QUERY.sub(query, _IN_URL.sub("", text))
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def joined(content: Any, secrets: Secrets) -> Any:
    """What `split` was given, from what it returned."""
    result = content
    for place, value in secrets:
        result = _with(result, place, value)
    return result


def _with(node: Any, place: Place, value: Any) -> Any:
    if not place:
        return value
    head, *rest = place
    if isinstance(node, list):
        return [_with(each, rest, value) if i == head else each for i, each in enumerate(node)]
    return {**node, head: _with(node.get(head, {}), rest, value)}


def redacted(content: Any) -> Any:
    """Settings that somebody else wrote, without credentials; `a=1,token=2` is read as pairs."""
    if isinstance(content, Mapping):
        return {key: redacted(value) for key, value in split(content)[0].items()}
    if isinstance(content, list | tuple):
        return [redacted(each) for each in content]
    if not isinstance(content, str):
        return content
    text = _public_text(content)
    if all("=" in part for part in text.split(",")):
        pairs = _PAIR.findall(text)
        if any(is_credential(name) for name, _ in pairs):
            return ",".join(f"{n}={v}" for n, v in pairs if not is_credential(n))
    return text


def in_text(text: str) -> Secrets:
    """The credentials of an argument: JSON, `a=1,token=2`, or an address."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    if not isinstance(parsed, str):
        return split(parsed)[1]
    pairs = [(name, value) for name, value in _PAIR.findall(text) if is_credential(name)]
    return [([name], value) for name, value in pairs] + split(text)[1]


def values(secrets: Secrets, environment: Mapping[str, str] | None = None) -> list[str]:
    """Every text that must not be seen: of secrets, and of an environment (default: this one)."""
    given = os.environ if environment is None else environment
    content: list[Any] = [value for _, value in secrets]
    content += [value for name, value in given.items() if is_credential(name)]
    addresses = [text for text in [*_texts(content), *given.values()] if "://" in text]
    found = {text for text in _texts(content) if "://" not in text}
    for text in addresses:
        for match in _IN_URL.findall(text):
            found |= {match[:-1], match[:-1].partition(":")[2]}
        found |= {value for name, value in _IN_QUERY.findall(text) if is_credential(name)}
    # `Bearer abc` is known by `abc` alone as well
    found |= {word for text in found for word in text.split()}
    return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inside in value.values():
            yield from _texts(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from _texts(inside)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def hidden(content: Any, texts: Iterable[str]) -> Any:
    """A copy of nested data in which none of some texts stands."""
    texts = list(texts)
    if not texts:
        return content
    if isinstance(content, Mapping):
        return {hidden(key, texts): hidden(value, texts) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)([hidden(value, texts) for value in content])
    if isinstance(content, str):
        for text in texts:
            content = content.replace(text, HIDDEN)
    return content


def to_environment(secrets: Secrets) -> dict[str, str]:
    """Environment variables that take secrets to a process of ours."""
    return {VARIABLE: json.dumps(secrets)} if secrets else {}


def from_environment() -> Secrets:
    """The secrets that `to_environment` put into this process's environment."""
    return [(place, value) for place, value in json.loads(os.environ.get(VARIABLE, "[]"))]
