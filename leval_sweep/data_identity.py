"""Which documents a cell will read, as hashes: another document is another cell."""

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leval_sweep import own_tasks
from leval_sweep.errors import ConfigError
from leval_sweep.identity import cached_sha256

PERPLEXITY_PREFIX = "ppl_"
# Stands for the language reference that every Python brings along; it is no file of a folder.
PYTHON_FILE = "pydocs.jsonl"


def task_file(task: str) -> str | None:
    """Name of the file that one of our tasks reads; None where it reads none."""
    from leval_tasks.data import KNOWN_FILES

    for name, known in KNOWN_FILES.items():
        if known.task == task:
            return name
    if task.startswith(PERPLEXITY_PREFIX):
        return f"{task.removeprefix(PERPLEXITY_PREFIX)}.jsonl"
    return None


@cache
def _sample_sha256(name: str) -> str:
    """Hash of a file of the bundled sample: it is generated, the same in every process."""
    from leval_tasks.data import resolve_source, sample_content

    source = resolve_source({"data_dir": "sample"})
    return hashlib.sha256(sample_content(source, name)).hexdigest()


def _in_folder(folder: Path, name: str) -> Path | None:
    """Where a task finds its file; texts for perplexity may lie in `corpora/` below."""
    places = [folder / name] + ([] if name in _closed_files() else [folder / "corpora" / name])
    return next((path for path in places if path.is_file()), None)


def _closed_files() -> set[str]:
    from leval_tasks.data import KNOWN_FILES

    return set(KNOWN_FILES)


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
    from leval_tasks.data import KNOWN_FILES, missing_file, resolve_source

    known = own_tasks.own_tasks()
    names = [task_file(task) for task in own_tasks.members(tasks) if task in known]
    wanted = [name for name in names if name is not None]
    if PYTHON_FILE in wanted:
        wanted.remove(PYTHON_FILE)
        rest = {"python": platform.python_version()}
    else:
        rest = {}
    if not wanted:
        return rest
    try:
        source = resolve_source(metadata)
        files: dict[str, str] = {}
        for name in wanted:
            if source.kind == "sample" and name in KNOWN_FILES:
                files[name] = _sample_sha256(name)
            elif source.kind == "data_dir":
                path = _in_folder(Path(source.path), name)
                if path is not None:
                    files[name] = cached_sha256(path)
                elif name in KNOWN_FILES:
                    raise missing_file(source, name)
                else:
                    raise ConfigError(f"data_dir: {source.path} has no {name}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return {"source": source.kind, "files": files, **rest}
