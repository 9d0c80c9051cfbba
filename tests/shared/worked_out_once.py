"""What a process of tests works out once: lm-eval's index of its own tasks, and the machine.

lm-eval reads thousands of YAML files for each `TaskManager`, and describes the machine with several
programs for each evaluation: seconds that say nothing about what is tested.
"""

import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def install() -> None:
    """Keep both results, where these libraries have been imported."""
    index = sys.modules.get("lm_eval.tasks._index")
    if index is not None and not hasattr(index.load_yaml, "__wrapped__"):
        index.load_yaml = _kept(index.load_yaml, Path(index.__file__).parent)
    machine = sys.modules.get("torch.utils.collect_env")
    if machine is not None and not hasattr(machine.get_pretty_env_info, "__wrapped__"):
        machine.get_pretty_env_info = functools.cache(machine.get_pretty_env_info)


def _kept(load_yaml: Callable[..., Any], library: Path) -> Callable[..., Any]:
    """`load_yaml`, which reads a file of the library itself once; each caller gets a copy."""
    found: dict[tuple[Path, frozenset[tuple[str, Any]]], bytes] = {}

    @functools.wraps(load_yaml)
    def load(path: Path, **options: Any) -> Any:
        if not Path(path).is_relative_to(library):
            return load_yaml(path, **options)
        key = (Path(path), frozenset(options.items()))
        if key not in found:
            found[key] = pickle.dumps(load_yaml(path, **options))
        return pickle.loads(found[key])

    return load
