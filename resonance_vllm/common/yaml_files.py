"""YAML from users, read with PyYAML's safe loader; its error in one line with the place."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from resonance_vllm.common.errors import SettingError, error_message


def parse_yaml(text: str, where: str, error: type[ValueError] = SettingError) -> Any:
    """The value that a YAML document stands for; `where` is the file or option it comes from.

    Raises:
        ValueError: as `error`: not YAML, or a tag that would run code.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as wrong:  # !!timestamp 2020-99-99
        mark = getattr(wrong, "problem_mark", None)
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(wrong, "problem", None) or error_message(wrong)  # without the text itself
        raise error(f"{where}: is not valid YAML: {problem}{place}") from None


def read_yaml(path: Path, error: type[ValueError] = SettingError) -> dict[str, Any]:
    """The mapping in a YAML file; empty for an empty one.

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
    """Files of a folder of `harness_configs` by name."""
    found = Path(str(files("harness_configs"))) / folder
    return {path.stem: path for path in sorted(found.glob("*.yaml"))}
