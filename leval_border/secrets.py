"""Credentials: told by their names, kept out of every file, handed on by the environment."""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

VARIABLE = "LEVAL_HARNESS_SECRETS"
"""Environment variable that takes credentials to a process of ours."""
HIDDEN = "***"
SHORTEST = 6
"""A shorter value is not looked for in text, where it may stand for something else."""

_NAMES = {
    *("password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials"),
    *("authorization", "authorisation", "auth", "bearer", "apikey", "cookie", "cookies"),
    *("header", "headers", "authentication", "oauth", "jwt", "cred", "creds"),
    *("passwords", "passphrases", "apikeys", "secretkey", "accesskey", "privatekey"),
    *("hftoken", "authtoken", "accesstoken", "apitoken", "bearertoken"),
}
_KEYS = {
    *("api", "access", "private", "secret", "subscription", "account", "auth", "encryption"),
    *("client", "signing", "ssh", "license", "licence", "master", "deploy", "storage", "service"),
    *("openai", "anthropic", "hf", "huggingface", "azure", "google", "gemini", "mistral", "cohere"),
    *("groq", "wandb"),
}
_TOKENS = {"api", "auth", "access", "bearer", "refresh", "secret", "hf"}
"""Several tokens are of a text, but for these."""
_WHICH = {
    *("value", "prod", "production", "dev", "staging", "primary", "secondary", "main", "backup"),
    *("ro", "rw", "b64", "base"),
}
"""Says which of several credentials it is, as a number does."""
_OF_QUERY = re.compile(r"^(key|sig|code|pass)$|signature$", re.IGNORECASE)
"""Names that are a credential's in the query of an address."""
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
_USER = re.compile(r"(?<=//)[^/\s?#]+@|^[^\s:@/?#]+:[^\s@/]+@(?=[\w.-]+(:\d+)?(/\S*)?$)")
"""User and password of an address, also of one without `http://`, as proxies are given."""
_IN_QUERY = re.compile(r"(?<=[?&;#])([\w.-]+)=([^&;\s#]+)")
_PAIR = re.compile(r"""([\w.-]+)=(?=("[^"]*"|'[^']*'|[^\s,;&"'{}\[\]()]+))""")
_IN_JSON = re.compile(
    r"""["']([\w.-]+)\\*["']\s*:\s*"""
    r"""(?=("(?:[^"\\]|\\.)*"|\\+"[^"\\]*\\+"|'[^']*'|[^\s,"'{}\[\]\\]+))"""
)
"""The value is only looked at: it may hold another one, as `--set=a.token=x` and JSON in JSON."""
_OPTION = re.compile(r"(?<![\w-])--?([\w-]+)\s+([^\s-]\S*)")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key|api-key|(?:set-)?cookie(?=\s*:\s*[\w-]+=))\s*:\s*"
    r"([^\r\n\"']+)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+([\w.~+/=-]{6,})|^(token)\s+(\S{6,})$", re.IGNORECASE)
_ISSUED = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
"""What services give out bears their mark, whatever it stands in."""
_MASKED = re.compile(r"(^|,)\s*([\w.-]+)=\*\*\*(?=,|$)")

Place = list[str | int]
Secrets = list[tuple[Place, Any]]
"""Where a value stood, by keys and numbers, and the value."""


def is_credential(name: str) -> bool:
    """Whether a name is a credential's: `hf_token`, `apiKey`; not `max_tokens`, `eos_token`."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and (words[-1].isdecimal() or words[-1] in _WHICH):
        words.pop()
    if not words or name == "PWD":  # a shell's variable of the folder that it is in
        return False
    if words[-1] == "token":
        return not _OF_TEXT & set(words)
    if words[-1] in ("key", "keys", "tokens"):
        known = _TOKENS if words[-1] == "tokens" else _KEYS
        return len(words) > 1 and words[-2] in known
    return words[-1] in _NAMES or words[-1].endswith(("password", "passwd"))


def split(content: Any) -> tuple[Any, Secrets]:
    """What may be written down of nested settings, and the rest; see `joined`.

    What has the name of a credential is left out, true, false and null excepted; text loses what
    `public` says.
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
    if isinstance(value, str) and (shown := public(value)) != value:
        secrets.append((place, value))
        return shown
    return value


def public(text: str) -> str:
    """A text without credentials: what has the name or the form of one is `***`.

    That is user and password of an address (left out), `name=value`, `"name": value`, options,
    headers, `Bearer` and `Basic`, and what services issue.
    """
    pieces, at = [], 0
    for start, end, instead in _found(text):
        pieces += [text[at:start], instead]
        at = end
    return "".join([*pieces, text[at:]])


def _found(text: str) -> list[tuple[int, int, str]]:
    """Where credentials stand in a text, and what is to stand there; they do not overlap."""
    found = [(*match.span(), "") for match in _USER.finditer(text)]
    found += [
        (*match.span(2), HIDDEN)
        for match in (_IN_QUERY.finditer(text) if "://" in text else ())
        if is_credential(match[1]) or _OF_QUERY.search(match[1])
    ]
    found += [
        (*_inside(text, *match.span(2)), HIDDEN)
        for pattern in (_PAIR, _IN_JSON, _OPTION)
        for match in pattern.finditer(text)
        if is_credential(match[1]) and match[2].lower() not in ("true", "false", "null", "none")
    ]
    found += [(*match.span(2), HIDDEN) for match in _HEADER.finditer(text)]
    found += [
        (*match.span(4 if match[3] else 2), HIDDEN)
        for match in _SCHEME.finditer(text)
        if match[3] or _is_of_scheme(match[1], match[2])
    ]
    found += [(*match.span(), HIDDEN) for match in _ISSUED.finditer(text)]
    apart: list[tuple[int, int, str]] = []
    for start, end, instead in sorted(found, key=lambda each: (each[0], -each[1])):
        if text[start:end] != instead and (not apart or start >= apart[-1][1]):
            apart.append((start, end, instead))
    return apart


def _inside(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of a value without its quotation marks."""
    marks = "\\\"'"
    start += len(text[start:end]) - len(text[start:end].lstrip(marks))
    return start, start + len(text[start:end].rstrip(marks))


def _is_of_scheme(scheme: str, text: str) -> bool:
    """Whether what follows `Bearer` or `Basic` is a credential, and no word of a sentence."""
    if scheme.lower() == "bearer":
        return not text.isalpha() or len(text) > 20
    try:
        return b":" in base64.b64decode(text, validate=True)
    except ValueError:
        return False


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
    without = _MASKED.sub(lambda pair: "" if is_credential(pair[2]) else pair[0], public(content))
    return without.lstrip(",") if without != content else content


def in_text(text: str) -> Secrets:
    """The credentials of an argument: JSON, `a=1,token=2`, or an address."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    return split(text if isinstance(parsed, str | int | float) else parsed)[1]


def values(secrets: Secrets, environment: Mapping[str, str] | None = None) -> list[str]:
    """Every text that must not be seen: of secrets, and of an environment (default: this one).

    In each form in which it may come back: as it is, in an address, in JSON.
    """
    given = os.environ if environment is None else environment
    named = [value for place, value in secrets if _is_named(place)]
    named += [value for name, value in given.items() if is_credential(name)]
    found = {text for text in _texts(named) if "://" not in text}
    inside = [value for _, value in secrets] + list(given.values())
    for text in _texts(inside):
        for start, end, _ in _found(text):
            part = text[start:end].removesuffix("@")
            found |= {part, part.partition(":")[2] if "@" in text[start:end] else part}
    # `Bearer abc` is known by `abc` alone as well
    found |= {word for text in found for word in text.split()}
    found |= {form for text in found for form in _forms(text)}
    return sorted((text for text in found if len(text) >= SHORTEST), key=len, reverse=True)


def _is_named(place: Place) -> bool:
    """Whether a secret is the whole value of a credential, or of something inside of one."""
    return any(isinstance(key, str) and is_credential(key) for key in place)


def _forms(text: str) -> Iterator[str]:
    yield unquote(text)
    yield quote(text, safe="")
    yield json.dumps(text)[1:-1]


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
