"""What tests work out once: lm-eval's index of its own tasks, and the machine.

lm-eval reads 14,000 YAML files for each `TaskManager`, and describes the machine with several
programs for each evaluation: seconds that say nothing about what is tested. The index of a release
is made once in a checkout.
"""

import functools
import os
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / ".pytest_cache"


def install() -> None:
    """Keep both results, where these libraries have been imported."""
    index = sys.modules.get("lm_eval.tasks._index")
    if index is not None and not hasattr(index.TaskIndex.build, "__wrapped__"):
        found = KEPT / f"lm_eval_index_{sys.modules['lm_eval'].__version__}.pickle"
        build = _kept(index.TaskIndex.build, Path(index.__file__).parent, found)
        index.TaskIndex.build = staticmethod(build)
    machine = sys.modules.get("torch.utils.collect_env")
    if machine is not None and not hasattr(machine.get_pretty_env_info, "__wrapped__"):
        machine.get_pretty_env_info = functools.cache(machine.get_pretty_env_info)


def _kept(build: Callable[..., Any], library: Path, found: Path) -> Callable[..., Any]:
    """`build`, which reads the files of the library once; each caller gets a copy.

    Not those below `leval_harness` there: they are ours, and worked on.
    """
    ours = library / "leval_harness"

    @functools.wraps(build)
    def building(paths: Iterable[Path], **options: Any) -> Any:
        paths = list(paths)
        if library not in paths:
            return build(paths, **options)
        if not found.exists():
            index = build([library], **options).items()
            theirs = {n: e for n, e in index if ours not in getattr(e.yaml_path, "parents", ())}
            found.parent.mkdir(exist_ok=True)
            new = found.with_suffix(f".{os.getpid()}")
            new.write_bytes(pickle.dumps(theirs))
            new.replace(found)
        further = [ours, *(path for path in paths if path != library)]
        return pickle.loads(found.read_bytes()) | build(further, **options)

    return building
