"""YAML files of users, read with PyYAML's safe loader; errors in one line with the position."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from resonance_vllm.common.errors import SettingError, error_message


def parse_yaml(text: str, where: str, error: type[ValueError] = SettingError) -> Any:
    """Return the value of a YAML document; `where` is the file or option it comes from.

    Raises:
        ValueError: as `error`: not YAML, or a tag that would run code.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as wrong:  # !!timestamp 2020-99-99
        mark = getattr(wrong, "problem_mark", None)
        position = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(wrong, "problem", None) or error_message(wrong)  # without the text itself
        raise error(f"{where}: is not valid YAML: {problem}{position}") from None


def read_yaml(path: Path, error: type[ValueError] = SettingError) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty one for an empty file.

    Raises:
        ValueError: as `error`: not readable, no mapping, or see `parse_yaml`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise error(f"{path}: cannot be read: {error_message(wrong)}") from None
    content = parse_yaml(text, str(path), error)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise error(f"{path}: must be a mapping of settings, not {type(content).__name__}")
    return content


def packaged_configs(folder: str) -> dict[str, Path]:
    """Return the YAML files of a folder of `harness_configs` by name, without suffix."""
    configs = Path(str(files("harness_configs"))) / folder
    return {path.stem: path for path in sorted(configs.glob("*.yaml"))}
