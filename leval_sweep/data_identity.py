"""Which documents a cell will read, as hashes: another document is another cell."""

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leval_sweep import own_tasks
from leval_sweep.errors import ConfigError
from leval_sweep.identity import cached_sha256
from leval_tasks.closed.catalog import TASKS

# Stands for the language reference that every Python brings along; it is no file of a folder.
PYTHON_FILE = "pydocs.jsonl"


def _in_folder(folder: Path, name: str, task: str) -> Path | None:
    """Where a task finds its file; texts for perplexity may lie in `corpora/` below."""
    places = [folder / name] + ([] if task in TASKS else [folder / "corpora" / name])
    return next((path for path in places if path.is_file()), None)


def data_identity(tasks: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Source of our tasks' documents and the hashes of its files.

    Files of the hub are hashed when they are read, and that hash stands in lm-eval's results;
    tasks of lm-eval keep their own data.

    Args:
        tasks: names as the sweep has them.
        metadata: `data_dir` in it, else `LEVAL_DATA_DIR`, else the hub.

    Returns:
        `{"source": ..., "files": {name: sha256}}`, empty where no task of ours reads files.

    Raises:
        ConfigError: the folder, or a file of it, does not exist.
    """
    from leval_tasks.data import available, missing_file, resolve_source

    known = own_tasks.own_tasks()
    wanted = {
        file: task
        for task in own_tasks.members(tasks)
        if task in known and (file := known[task].file)
    }
    rest = {"python": platform.python_version()} if wanted.pop(PYTHON_FILE, None) else {}
    if not wanted:
        return rest
    try:
        source = resolve_source(metadata)
        files: dict[str, str] = {}
        for name, task in wanted.items():
            if task in TASKS and TASKS[task] not in available(source):
                raise missing_file(source, TASKS[task])
            if source.folder is None or (source.kind == "sample" and task not in TASKS):
                continue
            path = _in_folder(source.folder, name, task)
            if path is None:
                raise ConfigError(f"data_dir: {source.path} has no {name}")
            files[name] = cached_sha256(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {"source": source.kind, "files": files, **rest}
