"""Credentials: told by their names, kept out of every file, handed on by the environment."""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from leval_harness.credential_names import is_credential as is_credential

VARIABLE = "LEVAL_HARNESS_SECRETS"
"""Environment variable that takes credentials to a process of ours."""
HIDDEN = "***"
SHORTEST = 6
"""A shorter value is not looked for in text, where it may stand for something else."""

_OF_QUERY = re.compile(r"^(key|sig|code|pass)$|signature$", re.IGNORECASE)
"""Names that are a credential's in the query of an address."""
_NAME = re.compile(r"[\w.-]{1,60}")
_USER = re.compile(r"(?<=//)[^/\s?#]+@|^[^\s:@/?#]+:[^\s@/]+@(?=[\w.-]+(:\d+)?(/\S*)?$)")
"""User and password of an address, also of one without `http://`, as proxies are given."""
_IN_QUERY = re.compile(r"(?<=[?&;#])([\w.-]+)=([^&;\s#]+)")
_NAMED = tuple(
    (re.compile(name), re.compile(value))
    for name, value in (
        (r"(?<![\w.-])([\w.-]++)=", r"""("[^"]*"|'[^']*'|[^\s,;&"'{}\[\]()]+)"""),
        (
            r"""["']([\w.-]++)\\*+["']\s*+:\s*+""",
            r"""("(?:[^"\\]|\\.)*"|\\+"[^"\\]*\\+"|'[^']*'|[^\s,"'{}\[\]\\]+)""",
        ),
        (r"(?<![\w-])--?([\w-]++)\s++", r"[^\s-]\S*"),
        # `{token: x}` as YAML has it
        (r"[{,]\s*+([\w.-]++)\s*+:\s*+", r"""("[^"]*"|'[^']*'|[^\s,;"'{}\[\]()]+)"""),
        # `X-Auth-Token: x`, and a message about a setting; a word of a sentence is no value
        (
            r"(?<![\w.])\.*+((?=[\w.]*[-_])[\w.]++(?:-\w++)?)\s*+:\s++",
            r"""("[^"]+"|'[^']+'|(?=\S*\d)[^\s,;"'{}\[\]()]{6,})""",
        ),
    )
)
"""How a name stands before its value, and the value: it may hold another one, as `--set=a.token=x`
and JSON in JSON. None of them looks at a text twice, which somebody may have made of one word."""
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key|api-key|(?:set-)?cookie(?=\s*:\s*[\w-]+=))\s*:\s*"
    r"([^\r\n\"']+)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)\s+([\w.~+/=-]{6,})|^(token)\s+(\S{6,})$", re.IGNORECASE)
_ISSUED = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/\S+"
    r"|\b(hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|api_org_\w{20,}|gsk_\w{20,}|nvapi-[\w-]{20,}|xai-\w{20,}|r8_\w{20,}|npm_\w{20,}"
    r"|pypi-[\w-]{20,}|dckr_pat_[\w-]{20,}|ya29\.[\w-]{20,}"
    r"|eyJ[\w-]{8,1000}\.[\w-]{8,}\.[\w-]+)"
)
"""What services give out bears their mark, whatever it stands in."""
_MASKED = re.compile(r"(^|,)\s*([\w.-]+)=\*\*\*(?=,|$)")

Place = list[str | int]
Secrets = list[tuple[Place, Any]]
"""Where a value stood, by keys and numbers, and the value."""


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
        named = any(_bears_name(value.get(key)) for key in ("name", "key", "header"))
        for key, inside in value.items():
            secret = isinstance(key, str) and (is_credential(key) or (named and key == "value"))
            if secret and inside is not None and not isinstance(inside, bool):
                secrets.append(([*place, key], inside))
            else:
                kept[key] = _split(inside, [*place, key], secrets)
        return kept
    if isinstance(value, list | tuple):
        return [
            _split_item(inside, value[i - 1] if i else "", [*place, i], secrets)
            for i, inside in enumerate(value)
        ]
    if isinstance(value, str) and (shown := public(value)) != value:
        secrets.append((place, value))
        return shown
    return value


def _split_item(value: Any, before: Any, place: Place, secrets: Secrets) -> Any:
    """An item of a list; behind `--api-key` it is what that option is given."""
    is_given = isinstance(value, str) and not value.startswith("-") and value != HIDDEN
    if is_given and _bears_name(before) and before.startswith("-"):
        secrets.append((place, value))
        return HIDDEN
    return _split(value, place, secrets)


def _bears_name(value: Any) -> bool:
    return isinstance(value, str) and bool(_NAME.fullmatch(value)) and is_credential(value)


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
    for name, value in _NAMED:
        found += _values_of(text, name, value)
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


def _values_of(
    text: str, name: re.Pattern[str], value: re.Pattern[str]
) -> Iterator[tuple[int, int, str]]:
    """Where the values of credentials stand that a text names in one way."""
    end = 0
    for match in name.finditer(text):
        if match.end() < end or not is_credential(match[1]):
            continue
        given = value.match(text, match.end())
        if given and given[0].lower() not in ("true", "false", "null", "none"):
            end = given.end()
            yield (*_inside(text, *given.span()), HIDDEN)


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
    named = [value for place, value in secrets if _is_whole(place, value)]
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


def _is_whole(place: Place, value: Any) -> bool:
    """Whether a secret is the whole value of a credential, or of something inside of one."""
    if any(isinstance(key, str) and is_credential(key) for key in place):
        return True
    return isinstance(value, str) and public(value) == value  # told by what stands beside it


def _forms(text: str) -> Iterator[str]:
    yield base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()  # user:password
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
