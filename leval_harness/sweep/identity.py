"""The declared identity of a run: everything that decides its numbers. A run's id is its hash.

Counted are settings that a task reads, files of the model and the data, and versions of what
computes. The machine and all versions are recorded beside it.
"""

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from leval_harness.backends import BACKENDS
from leval_harness.results.layout import (
    FAILED,
    FORMATS,
    LOG,
    LOSSES,
    RUN_FILE,
    SCHEMA_VERSION,
    SWEEP,
)
from leval_harness.sweep import task_registry as tasks
from leval_harness.sweep.config import SweepConfig, listed
from leval_harness.sweep.run_record import RunRecord
from leval_tasks.closed.catalog import TASKS
from leval_tasks.perplexity.corpora import BUNDLED
from resonance_vllm.common.files import expand_user, file_sha256, read_json_object
from resonance_vllm.common.hub import resolve_commit

SETTINGS_FILES = (
    "config.json", "generation_config.json", "adapter_config.json", "params.json",
    "*quant*config.json", "*.index.json",
)  # fmt: skip
"""Settings of a model, its quantization and its adapter, and lists of weight files."""
TOKENIZER_FILES = (
    "tokenizer*.json", "*_tokenizer*.json", "special_tokens_map.json", "added_tokens.json",
    "*vocab*", "merges*", "*.model", "*.model.v*", "*.tiktoken", "*.spm", "*.bpe", "tekken.json",
    "*processor_config.json", "chat_template*", "*.jinja", "additional_chat_templates/*",
)  # fmt: skip
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
TRAINER_FILES = ("optimizer", "scheduler", "scaler", "sampler", "training_args", "rng_state",
                 "random_states", "trainer_state")  # fmt: skip
"""What the names of a trainer's own files begin with."""
END_BYTES = 1 << 20
PYTHON_FILES = [f"{corpus}.jsonl" for corpus in BUNDLED]
"""Stand for text that every Python contains; they are not files of a folder."""
FOLDER_ARGS = ("peft", "delta", "tokenizer", "lora_local_path", "model", "hf_config_path")
"""Arguments, also inside of others, that may name a folder of weights or a model of the hub."""
_DATE = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*"
"""How the dates in the names of lm-eval's files begin: a task's own file may be `samples_train.jsonl`."""
NO_PART_OF_A_TASK = (
    ".*", "__pycache__", "*.md",
    f"results_{_DATE}.json", f"samples_*_{_DATE}.jsonl",
    SWEEP, RUN_FILE, FAILED, LOG, f"{LOSSES}*.npy",
    *(f"table.{form}" for form in FORMATS),
)  # fmt: skip
"""Names in a task's folder that decide no number.

They are hidden and compiled files, notes, what lm-eval writes with `--output_path`, and what a
sweep writes with `--out`.
"""
READ_BY_ALL = ("tasks", "limit", "batch_size", "device", "context_length")
READ_BY_QUESTIONS = ("num_fewshot", "seed", "apply_chat_template", "gen_kwargs")
"""Fields of the record that tasks read as they are; those that read running text none of these."""
RUNNING_TEXT = {"perplexity", "effective_context"}


def run_identity(record: RunRecord, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that decides the numbers of a run; `model` is `ModelFiles.identity`."""
    families = tasks.families_of(record.tasks)
    read = tasks.read_by_tasks(record.tasks, record.metadata)
    fields: tuple[str, ...] = READ_BY_ALL
    if not families <= RUNNING_TEXT:
        fields += READ_BY_QUESTIONS
    hashed: set[str] = set()
    if families <= set(tasks.SETTINGS):
        hashed = {"data_dir"}  # the content of its files counts, under `data`
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            **model,
            "backend": record.model.backend,
            "dtype": record.model.dtype,
            "args": with_digests(record.model.args),
        },
        "rope_parameters": record.method.rope_parameters,
        "rope_precision": record.method.rope_precision,
        **{name: getattr(record, name) for name in fields},
        "metadata": with_digests({key: read[key] for key in read if key not in hashed}),
        "task_versions": {
            name: task_version(name) for name in [*record.tasks, *tasks.members(record.tasks)]
        },
        "data": documents(record.tasks, record.metadata),
        "packages": package_versions(record.model.backend),
    }


@cache
def package_versions(backend: str) -> dict[str, str]:
    """Return the installed versions of the packages that decide what a backend computes."""
    names = ["leval-harness", "lm_eval"]
    if backend in BACKENDS:
        names += BACKENDS[backend].packages
    versions = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def with_digests(value: Any, key: str = "") -> Any:
    """Return settings with each file or folder replaced by digests, a hub name by its commit."""
    if isinstance(value, Mapping):
        return {name: with_digests(inside, name) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [with_digests(inside, key) for inside in value]
    if not isinstance(value, str) or "://" in value or len(value) > 250:
        return value
    path = expand_user(value)
    if path.is_file():
        return {f"*{path.suffix}": digest(path)}
    if key in FOLDER_ARGS and path.is_dir():
        return checkpoint_digests(path)
    if key in FOLDER_ARGS and re.fullmatch(r"\w[\w.-]*/[\w.-]+", value):
        with contextlib.suppress(OSError):
            return {"hub": value, "commit": resolve_commit(value, None)[0]}
    return value


def documents(names: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return source and SHA-256 of the documents that tasks read, by family.

    They are those of this package's tasks, and those that RULER reads from a folder. Files of the
    hub are hashed when they are read, and lm-eval's results hold that hash.

    Raises:
        DataError: the folder, or a file of it, does not exist.
    """
    from leval_tasks.common.data import missing_file, resolve_source
    from leval_tasks.perplexity.corpora import corpus_file
    from leval_tasks.retrieval.haystack import haystack_file

    known = tasks.own_tasks()
    by_family: dict[str, Any] = {}
    for task in tasks.members(names):
        file = None
        if task in known:
            file = known[task].file
        if task in known and known[task].family == "retrieval":
            file = haystack_file(metadata)
        if task in known and known[task].family == "mrcr":
            by_family.setdefault("mrcr", {}).update(mrcr_documents(task, metadata))
        if file is None:
            continue
        if file in PYTHON_FILES:
            by_family["python"] = platform.python_version()
            continue
        source = resolve_source(metadata.get("data_dir"))
        family = by_family.setdefault(known[task].family, {"source": source.kind, "files": {}})
        closed = TASKS.get(task)
        if closed is None:
            family["files"][file] = digest(corpus_file(file, source))
        elif not source.has(closed):
            raise missing_file(source, closed)
        elif source.folder:
            family["files"][file] = digest(source.folder / file)
    by_family.update(ruler_documents(names, metadata))
    return by_family


def ruler_documents(names: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 of the files that tasks of RULER read from a folder; empty without any."""
    from leval_harness.sweep.ruler import local_files

    if tasks.families_of(names) <= set(tasks.SETTINGS):
        return {}
    files = local_files(names, metadata.get("data_dir"))
    if not files:
        return {}
    return {"ruler": {name: digest(path) for name, path in files.items()}}


def mrcr_documents(task: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return source and SHA-256 of the files of an MRCR task in `data_dir`.

    The hub's are of one revision, which is part of the version of the task.
    """
    from leval_tasks.common.data import resolve_source
    from leval_tasks.mrcr.data import local_files, needles_of

    source = resolve_source(metadata.get("data_dir"))
    if source.folder is None:
        return {"source": source.kind}
    paths = local_files(needles_of(task), source.folder)
    return {"source": source.kind, task: {path.name: digest(path) for path in paths}}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; of weights that of their size, first and last megabyte.

    Weights of a hundred gigabytes are thus known in milliseconds, on every machine of a sweep.
    """
    if not any(path.match(pattern) for pattern in WEIGHT_FILES):
        return file_sha256(path)
    size = path.stat().st_size
    hashed = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as handle:
        hashed.update(handle.read(END_BYTES))
        handle.seek(max(0, size - END_BYTES))
        hashed.update(handle.read(END_BYTES))
    return hashed.hexdigest()


def has_weights(folder: Path) -> bool:
    """Return whether a folder has a file of weights."""
    return any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES)


def checkpoint_digests(folder: Path) -> dict[str, str]:
    """Return path -> digest of the files of a checkpoint, adapter or tokenizer that libraries load.

    What a trainer or a person keeps beside them is ignored. Python of the checkpoint counts: it
    runs with `trust_remote_code`.
    """
    patterns = (*SETTINGS_FILES, *TOKENIZER_FILES, *WEIGHT_FILES, "*.py")
    matching = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {
        path.relative_to(folder).as_posix(): digest(path)
        for path in sorted(matching)
        if not path.name.startswith((".", *TRAINER_FILES))
    }


def task_version(name: str) -> Any:
    """Return what distinguishes a task from its earlier and later versions.

    A task of this package: the version in its YAML. A task given as a file: its content and that
    of what it includes,
    with data files that they name, and the other files of its folder. Tasks of lm-eval: its
    version, which is among the packages.
    """
    if not tasks.is_file(name):
        known = tasks.own_tasks()
        return known[name].version if name in known else "lm_eval"
    folder = Path(name).parent
    read = dict[Path, Any]()
    ahead = [Path(name)]
    while ahead:
        file = ahead.pop()
        read[file] = content = _content(file)
        includes = content.pop("include", []) if isinstance(content, dict) else []
        for name_of_include in listed(includes):
            included = Path(os.path.normpath(file.parent / str(name_of_include)))
            ahead += [included] * (included.is_file() and included not in read)
    beside = {path.relative_to(folder).as_posix(): digest(path) for path in _beside(folder, read)}
    for included in read:
        if included.parent == folder:
            continue
        # `!function` of an included file means a module in the folder of that file
        for path in sorted(included.parent.glob("*.py")):
            beside[os.path.relpath(path, folder)] = digest(path)
    return {"content": [with_digests(content) for content in read.values()], "files": beside}


class _TaskLoader(yaml.BaseLoader):
    """Read as text every value, and of `!function name` its name."""


_TaskLoader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")


def _content(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _TaskLoader)
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return None  # lm-eval says what is wrong with it


def _beside(folder: Path, read: Collection[Path], above: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the files of a task's folder that may decide a number, beside those that were `read`.

    What does not is listed by name (`NO_PART_OF_A_TASK`), file by file: that results were written
    into a folder says nothing about the other files in it. Links are followed, but none that leads
    back to a folder of `above`, the folders that hold this one.
    """
    above = {*above, folder.resolve()}
    for path in sorted(folder.iterdir()):
        if path in read or any(path.match(pattern) for pattern in NO_PART_OF_A_TASK):
            continue
        if path.is_dir() and path.resolve() not in above:
            yield from _beside(path, read, above)
        elif path.is_file() and not (tasks.is_file(path.name) and _is_sweep(_content(path))):
            yield path


def _is_sweep(content: Any) -> bool:
    named = set(content) if isinstance(content, dict) else set()
    return bool({"models", "methods"} & named) and named <= {*SweepConfig.model_fields, "include"}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return dotted place -> old and new value, shortened, of what differs in two identities."""
    old = dict(_leaves(before))
    new = dict(_leaves(now))
    places = sorted(place for place in {*old, *new} if old.get(place) != new.get(place))
    return {place: (_short(old.get(place)), _short(new.get(place))) for place in places}


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted place and value of everything in nested mappings."""
    if isinstance(value, Mapping) and value:
        for key, inside in value.items():
            yield from _leaves(inside, f"{place}.{key}" if place else str(key))
    else:
        yield place, list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "nothing" if value is None else str(value)[:80]


def closest(record: RunRecord, runs: Iterable[Path]) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the finished run that is most like a planned one, and in what they differ."""
    differing: dict[str, dict[str, tuple[str, str]]] = {}
    for folder in runs:
        identity = (read_json_object(folder / RUN_FILE) or {}).get("identity", {})
        differing[folder.name] = differences(identity, record.identity)
    if not differing:
        return "", {}
    name = min(differing, key=lambda run: len(differing[run]))
    return name, differing[name]
