"""YAML from users: a safe loader, bounded size, no repeated keys; every error shows its line."""

import re
from pathlib import Path
from typing import Any

import yaml

from resonance_vllm.errors import SettingError, said_by_parser, shown

MOST_CHARACTERS = 1_000_000
"""A longer text is no settings file."""

_MERGE = "tag:yaml.org,2002:merge"


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader that also refuses a key written twice in one mapping."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; an error of any kind becomes one that knows the place."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, TypeError) as wrong:
            kind = node.tag.replace("tag:yaml.org,2002:", "!!")
            reason = f"{shown(node.value)} is no {kind} ({said_by_parser(wrong)})"
            raise _error(reason, node) from None


# YAML 1.1 reads 010 as 8 and 1:30 as 90, which users do not expect of a setting.
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
    r"|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
)
_NUMBERS = {"tag:yaml.org,2002:int": _DECIMAL, "tag:yaml.org,2002:float": _FLOAT}
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise _error("a key must be plain text", key_node)
        if key in seen:
            raise _error(f"the key {key!r} is written twice", key_node)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    value = str(loader.construct_scalar(node))
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise _error("an escape such as \\ud83d is half a character; write the character", node)
    return value


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)
_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG, _text)


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def parse_yaml(text: str, where: str, error: type[ValueError] = SettingError) -> Any:
    """The value that a YAML document stands for; `where` is the file or option it comes from.

    Raises:
        ValueError: as `error`: not YAML, a tag that would run code, a key written twice, a text
            that is too long or nested too deep.
    """
    if len(text) > MOST_CHARACTERS:
        raise error(f"{where}: is longer than {MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, _StrictLoader)
    except RecursionError:
        raise error(f"{where}: is not valid YAML: nested too deep") from None
    except yaml.MarkedYAMLError as wrong:
        raise error(f"{where}: is not valid YAML: {_with_place(wrong)}") from None
    except yaml.YAMLError as wrong:  # a character that YAML does not allow
        raise error(f"{where}: is not valid YAML: {said_by_parser(wrong)}") from None


def _with_place(wrong: yaml.MarkedYAMLError) -> str:
    """What is wrong, with the number of the line, the line itself, and a caret below the place."""
    problem = " ".join(filter(None, (wrong.context, wrong.problem)))
    mark = wrong.problem_mark or wrong.context_mark
    if mark is None:
        return problem
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})\n{mark.get_snippet(2)}"


def read_yaml(path: Path, error: type[ValueError] = SettingError) -> dict[str, Any]:
    """The mapping in a YAML file; empty for an empty one.

    Raises:
        ValueError: as `error`: not readable, no UTF-8, no mapping, or see `parse_yaml`.
    """
    try:
        with path.open(encoding="utf-8") as handle:
            text = handle.read(MOST_CHARACTERS + 1)
    except OSError as wrong:
        raise error(f"{path}: cannot be read ({wrong.strerror})") from None
    except UnicodeDecodeError as wrong:
        raise error(f"{path}: is not UTF-8 text ({wrong.reason})") from None
    content = parse_yaml(text, str(path), error)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise error(f"{path}: must be a mapping of settings, not {type(content).__name__}")
    return content
