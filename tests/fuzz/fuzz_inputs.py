"""Inputs that nobody would write: values of every wrong kind, documents with one of them inside."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = 3000
"""Levels of nesting: more than Python's parsers can follow."""


class Raw(str):
    """A text that stands in a document as it is, without quotation marks."""

    __slots__ = ()


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 3, 2**31, 2**63, -(2**70), 1e308, -0.0, 1e-320),
    *("", " ", "x", "1", "1.5", "null", "true", "~nouser", "~", "/", "..", "."),
    *("\x00", "a\x1b[31mb", "\ufeff", "\u202e", "１８", "é" * 5, "x" * 5000, "${HOME}"),
    *("{{x}}", "%s%n", "-", "--", "a,b=c", "\x9b31m", "\ud83d", "\udcff"),
    *([], {}, [[]], [None], [1, "a", None], {"": 1}, {"a": {"b": {}}}, {"\x00": 1}),
    *(Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e400"), Raw("9" * 400), Raw("9" * 5000)),
    *(Raw("[" * DEEP + "]" * DEEP), Raw('{"a":' * DEEP + "1" + "}" * DEEP)),
)
junk = st.sampled_from(range(len(JUNK))).map(JUNK.__getitem__)


def encoded(value: Any) -> str:
    """JSON with `Raw` texts as they are."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {encoded(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encoded, value)) + "]"
    return json.dumps(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be replaced: the whole, and every value of a mapping or list."""
    yield path
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value[:20]) if isinstance(value, list) else parts:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def renamed(value: Any, path: tuple[Any, ...], new: str | None) -> Any:
    """A copy with another name of one key, or without it."""
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) > 1:
        copy[path[0]] = renamed(copy[path[0]], path[1:], new)
    elif isinstance(copy, dict):
        old = copy.pop(path[0])
        if new is not None:
            copy[new] = old
    else:
        del copy[path[0]]
    return copy


@st.composite
def documents(draw: st.DrawFn, seed: Any) -> Any:
    """A JSON value with up to three changes: a value replaced, a key misspelt or gone."""
    value = seed
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(value))
        path = draw(st.sampled_from(every))
        change = draw(st.sampled_from(("replace", "replace", "rename", "drop")))
        if change == "replace" or not path:
            value = replaced(value, path, draw(junk))
        else:
            value = renamed(value, path, f"{path[-1]}x" if change == "rename" else None)
        if isinstance(value, Raw):
            break
    return value


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A file cut, with foreign bytes in it, or with nothing in it."""
    at = draw(st.integers(0, max(len(content), 1)))
    foreign = draw(st.sampled_from((b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"{")))
    kind = draw(st.sampled_from(("cut", "bytes", "bom", "empty", "twice", "crlf")))
    return {
        "cut": content[:at],
        "bytes": content[:at] + foreign + content[at:],
        "bom": b"\xef\xbb\xbf" + content,
        "empty": b"",
        "twice": content + content,
        "crlf": content.replace(b"\n", b"\r\n"),
    }[kind]


@st.composite
def files(draw: st.DrawFn, seed: Path) -> bytes:
    """What could stand in a file instead of what does."""
    content = seed.read_bytes()
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(content))
    if seed.suffix == ".json":
        return encoded(draw(documents(json.loads(content)))).encode()
    if seed.suffix == ".jsonl":
        lines = content.decode().splitlines()
        at = draw(st.sampled_from([n for n, line in enumerate(lines) if line.startswith("{")]))
        lines[at] = encoded(draw(documents(json.loads(lines[at]))))
        return "\n".join(lines).encode()
    if seed.suffix in (".yaml", ".yml"):
        import yaml

        # JSON is YAML: values that only YAML has stand beside.
        if draw(st.integers(0, 4)) == 0:
            return content + draw(st.sampled_from(YAML_ENDS)).encode()
        return encoded(draw(documents(yaml.safe_load(content)))).encode()
    return draw(damaged(content))


YAML_ENDS = (
    "\nx: !!python/object/apply:os.system [true]\n",
    "\nx: !!timestamp 9999-99-99\n",
    "\nx0: &x0 [1]\n" + "".join(f"x{n + 1}: &x{n + 1} [*x{n}, *x{n}]\n" for n in range(40)),
    "\nname: " + "9" * 400 + "\n",
    "\n? [a, b]\n: 1\n",
    "\n<<: 3\n",
    "\n\t- x\n",
    "\n2026-01-01: 1\n",
    "\nname: a\nname: b\n",
    "\n--- \nb: 1\n",
    "\nname: *nowhere\n",
    "\nname: !!binary aGk=\n",
    "\nname: !!set {a}\n",
    "\ntimeout: .nan\n",
    "\ntimeout: -.inf\n",
    "\nseed: 1:30\n",
    '\nname: "\\0\\e[31m"\n',
    '\nname: "\\ud83d"\n',
    "\nname: 2026-02-30\n",
    "\n%YAML 9.9\n",
)
