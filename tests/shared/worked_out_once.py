"""What tests work out once: lm-eval's index of its own tasks, and the machine.

lm-eval reads 14,000 YAML files for each `TaskManager`, and describes the machine with several
programs for each evaluation: seconds that say nothing about what is tested. The files of a release
are read once on a machine, into pytest's own cache.
"""

import functools
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / ".pytest_cache"


def install() -> None:
    """Keep both results, where these libraries have been imported."""
    index = sys.modules.get("lm_eval.tasks._index")
    if index is not None and not hasattr(index.load_yaml, "__wrapped__"):
        library = Path(index.__file__).parent
        found = KEPT / f"lm_eval_tasks_{sys.modules['lm_eval'].__version__}.pickle"
        texts = pickle.loads(found.read_bytes()) if found.exists() else {}
        index.load_yaml = _kept(index.load_yaml, library, texts)
        index.TaskIndex.build = staticmethod(_saving(index.TaskIndex.build, found, texts))
    machine = sys.modules.get("torch.utils.collect_env")
    if machine is not None and not hasattr(machine.get_pretty_env_info, "__wrapped__"):
        machine.get_pretty_env_info = functools.cache(machine.get_pretty_env_info)


def _kept(load_yaml: Callable[..., Any], library: Path, texts: dict[Any, bytes]) -> Any:
    """`load_yaml`, which reads a file of the library itself once; each caller gets a copy."""

    @functools.wraps(load_yaml)
    def load(path: Path, **options: Any) -> Any:
        file, ours = Path(path), library / "leval_harness"  # copies of what is being worked on
        if not file.is_relative_to(library) or file.is_relative_to(ours):
            return load_yaml(path, **options)
        key = (str(file.relative_to(library)), *sorted(options.items()))
        if key not in texts:
            texts[key] = pickle.dumps(load_yaml(path, **options))
        return pickle.loads(texts[key])

    return load


def _saving(build: Callable[..., Any], found: Path, texts: dict[Any, bytes]) -> Any:
    """`build`, which writes down what it has read for the first time."""

    def building(*arguments: Any, **options: Any) -> Any:
        before = len(texts)
        index = build(*arguments, **options)
        if len(texts) > before:
            KEPT.mkdir(exist_ok=True)
            new = found.with_suffix(f".{os.getpid()}")
            new.write_bytes(pickle.dumps(texts))
            new.replace(found)
        return index

    return building
