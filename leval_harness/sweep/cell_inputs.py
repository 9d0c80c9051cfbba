"""What a cell's numbers rest on outside of its config: weights, documents, task files, versions.

The sweep writes it into the cell's identity; the cell's process looks again, before it computes and
afterwards, on its own machine.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leval_border.errors import SettingError
from leval_border.files import user_path
from leval_harness.backends import environment
from leval_harness.cell_record import CellRecord
from leval_harness.sweep import task_registry as own_tasks
from leval_harness.sweep.errors import CellError, ModelNotFoundError
from leval_harness.sweep.file_hashes import cached_sha256, folder_hashes, state, watching
from leval_harness.sweep.identity import folder_identity, hub_commit, package_versions

# Settings whose bare word may name a file, or a folder of weights or tokenizer files.
FOLDER_ARGS = ("peft", "delta", "tokenizer", "lora_local_path", "key_tokens", "data_dir")
# Arguments, also inside of others (vLLM's speculative_config), that may name a model of the hub.
HUB_ARGS = (*FOLDER_ARGS, "model", "hf_config_path")
_PATH = re.compile(r"/|^[^/\s]+\.\w+$")
"""A path, or the bare name of a file with its ending."""
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
MOST_NAMED = 5


def argument_identity(value: Any, where: str, key: str = "") -> Any:
    """Arguments with what they name replaced: a folder or file by hashes, the hub's by its commit.

    Of a file's name its ending alone counts, by which readers tell formats. A name of the hub that
    neither it nor the cache knows stays as it is.
    """
    if isinstance(value, Mapping):
        return {k: argument_identity(v, f"{where}.{k}", k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [argument_identity(each, where, key) for each in value]
    named = key in FOLDER_ARGS
    if isinstance(value, str) and "://" not in value and (named or _PATH.search(value)):
        try:
            path = user_path(value, where)
        except SettingError:
            if named:
                raise
            return value  # a long text with a slash in it
        if path.is_dir() and (named or "/" in value):
            return folder_hashes(path)
        if path.is_file():
            return {f"*{path.suffix}": cached_sha256(path)}
        if key in HUB_ARGS and _HUB_NAME.fullmatch(value):
            with contextlib.suppress(ModelNotFoundError):
                return {"hub": value, "commit": hub_commit(value, None)[0]}
    return value


def outside(record: CellRecord, model: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an identity that other people and machines can change.

    Args:
        record: of the cell; its path, arguments, backend, tasks and their settings are read.
        model: how the identity tells the model: by `files`, by `hub` and `commit`, or as `served`.
    """
    files: dict[str, Any] = {}
    if "files" in model:
        files = {"files": folder_identity(Path(record.model.path))}
    return {
        "model": {
            **files,
            "args": argument_identity(record.model.args, f"models.{record.model.name}.args"),
        },
        "task_versions": own_tasks.versions(record.tasks),
        "data": own_tasks.data_identity(record.tasks, record.metadata),
        "metadata": _task_settings(record),
        "packages": package_versions(record.model.backend),
    }


def _task_settings(record: CellRecord) -> dict[str, Any]:
    """Settings of the tasks, the files and folders that they name replaced by hashes.

    Where our own tasks' documents lie says nothing: what is read of them stands in `data`.
    """
    given = record.metadata
    if own_tasks.only_own(record.tasks):
        given = own_tasks.without_data_dir(given)
    return {key: argument_identity(value, f"metadata.{key}", key) for key, value in given.items()}


@contextlib.contextmanager
def as_planned(record: CellRecord) -> Iterator[None]:
    """Compute inside of this what `record` promises: on the same files, from start to end.

    Raises:
        CellError: names what is different here, or was written while the cell ran.
    """
    planned = record.identity
    # of the libraries, some set variables of their own once they are imported: looked at once
    here = {"environment": environment(record.model.backend)}
    with watching() as files:
        _compare(planned, here | outside(record, planned.get("model", {})))
    yield
    changed = [str(path) for path, before in files.items() if _state(path) != before]
    if changed:
        raise CellError(f"written while the cell ran: {_few(changed)}; compute it again")
    _compare(planned, outside(record, planned.get("model", {})))


def _state(path: Path) -> object:
    try:
        return state(path)
    except OSError:
        return None


def _compare(planned: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    asked = {key: planned.get(key) for key in here}
    model = planned.get("model", {})
    asked["model"] = {key: model.get(key) for key in here["model"]}
    before, now = _leaves(asked), _leaves(json.loads(json.dumps(here)))
    found = [
        f"{place}: {_short(before.get(place))} planned, {_short(now.get(place))} here"
        for place in sorted({*before, *now})
        if before.get(place) != now.get(place)
    ]
    if found:
        raise CellError(f"what the cell rests on is not what the sweep planned: {_few(found)}")


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Dotted place -> value of everything in nested mappings."""
    if not isinstance(value, Mapping):
        return {place: value}
    found: dict[str, Any] = {}
    for key, inside in value.items():
        found |= _leaves(inside, f"{place}.{key}" if place else key)
    return found


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "nothing" if value is None else str(value)[:80]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more
