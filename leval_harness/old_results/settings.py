"""The settings that separate runs in tables, read from the identity of a cell.

The identity in `cell.json` holds everything that decides a cell's numbers. `ResultsFile.identity`
gives the same fields of a results file that no sweep wrote. Whatever an identity holds separates
blocks of a table, unless a list here gives the reason why it does not: a setting that this module
does not know separates.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leval_harness.old_results.fields import digest, short_name
from leval_tasks.metadata import FAMILIES

METHOD = "rope"
"""The one setting that is compared instead: it is the method of a row."""

FILES = "model_files"
"""Digest of the checkpoint: separates, unless a sweep has one checkpoint for each method."""

FOLLOW_LENGTH = (
    "min_tokens", "max_length", "questions_asked", "max_seq_lengths", "task_hash",
)  # fmt: skip
"""Settings that follow from the context length: they separate numbers of one length only."""

LENGTHS = ("context_length", "max_length", "max_model_len")
"""The row or the column of a number, under any of the names of tasks and backends."""

PROMPT = ("frame", "system_role", "answer_prefix")
"""What a closed-ended task records of its prompts."""

_LAST_BITS = "changes the order of sums: the last bits of a number"
_SPEED = "where and how fast it runs"
_NAMES = "names of rows, columns and files"

IDENTITY_ASIDE = {
    "schema_version": "layout of the file",
    "tasks": "the columns of tables",
    "context_length": "the rows of tables",
    "limit": "partial runs have blocks of their own",
    "data": "the results state for each task what was read",
    "packages": "a table may span an upgrade; page and details show versions",
    **dict.fromkeys(("model", "rope_parameters", "metadata", "task_versions",
                     "apply_chat_template"), "read field by field"),
    **dict.fromkeys(("batch_size", "batch_sizes", "device"), _LAST_BITS),
    **dict.fromkeys(("use_cache", "start_time", "end_time", "pretty_env_info",
                     "upper_git_hash"), _SPEED),
    **dict.fromkeys(("model_source", "model_name_sanitized"), _NAMES),
    **dict.fromkeys(("model_num_parameters", "model_size"), "follows from the model"),
    "bootstrap_iters": "of standard errors only",
    "system_instruction_sha": "hash of the instruction, which stands beside it",
    **dict.fromkeys(("tokenizer_pad_token", "tokenizer_eos_token", "tokenizer_bos_token",
                     "eot_token_id"), "of the tokenizer; some versions do not write it"),
    "samples": "answers to single questions",
}  # fmt: skip
"""Fields of an identity, and of lm-eval's results file, that do not separate as they are."""

ARGUMENTS_ASIDE = {
    **dict.fromkeys(("pretrained", "model", "path"), _NAMES),
    **dict.fromkeys(LENGTHS, "the row or the column of a number"),
    "rope_parameters": "the method, which is what is compared",
    "max_position_embeddings": "follows from the method and the context length",
    "rope_compared": "follows from the method",
    **dict.fromkeys(("revision", "dtype", "rope_precision"), "a setting under this name"),
    **dict.fromkeys(("batch_size", "max_batch_size", "max_num_seqs", "max_num_batched_tokens",
                     "logits_cache", "kv_cache_gib"), _LAST_BITS),
    **dict.fromkeys(("device", "device_map", "device_map_option", "parallelize", "offload_folder",
                     "max_memory_per_gpu", "max_cpu_memory", "gpus", "gpu_memory_utilization",
                     "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                     "swap_space", "num_concurrent", "max_retries", "timeout", "base_url",
                     "verify_certificate", "ca_cert_path", "download_dir", "cache_dir",
                     "local_files_only", "low_cpu_mem_usage", "cpu_offload_gb",
                     "distributed_executor_backend", "disable_log_stats", "log_level",
                     "use_tqdm_on_load"), _SPEED),
}  # fmt: skip
"""Arguments of a model that do not separate."""

TASK_ASIDE = {
    **dict.fromkeys(("task", "task_alias", "tag", "group", "group_alias", "alias", "class"),
                    _NAMES),
    "metadata": "read key by key",
    "unsafe_code": "a permission",
    **dict.fromkeys(("should_decontaminate", "doc_to_decontamination_query"),
                    "of a second figure, which is none of the task's metrics"),
}  # fmt: skip
"""Keys of a task's configuration that do not separate."""

METADATA_ASIDE = dict.fromkeys(("version", "config_source"), "read elsewhere in the file")
"""Keys of the metadata of other projects' tasks that do not separate."""

OWN = frozenset(name for family in FAMILIES for name in family.decides_numbers()) - set(LENGTHS)
"""Settings of our tasks that decide numbers."""

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
LONGEST_TITLE = 60


def settings_of(identity: Mapping[str, Any]) -> dict[str, str]:
    """The settings of an identity that separate, and its method, as short texts by name."""
    model = identity.get("model") or {}
    tasks = identity.get("task_versions") or {}
    files = {name: model[name] for name in ("files", "hub") if name in model}
    # two sweeps may use one name for two files, wherever these lie
    task_files = sorted(
        (Path(name).name, f"{version}")
        for name, version in tasks.items()
        if name.endswith((".yaml", ".yml"))
    )
    return canonical(
        requested_settings(identity.get("metadata") or {})
        | without(identity, IDENTITY_ASIDE)
        | {
            "backend": model.get("backend"),
            "dtype": model.get("dtype"),
            "revision": model.get("commit"),
            "model_args": model_arguments(model.get("args") or {}),
            METHOD: whole(identity.get("rope_parameters")),
            FILES: _digest(files),
            "task_files": _digest(task_files),
            "chat_template": identity.get("apply_chat_template"),
        }
    )


def _digest(content: Any) -> str:
    return digest(json.dumps(content, sort_keys=True)) if content else ""


def whole(value: object) -> object:
    """The same with `2` for `2.0`: both mean one number."""
    if isinstance(value, Mapping):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return int(value)
    return value


def canonical(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings as texts, without credentials and empty ones; a long one ends in its digest."""
    texts = {}
    for name, value in values.items():
        if value not in (None, "", {}, []):
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, sort_keys=True, default=str)
            # a Python function has another address in each process
            texts[short_name(name)] = short_name(_ADDRESS.sub("0x", text))
    return texts


def titled(name: str, text: str) -> str:
    """A setting in a block's title: long values by their digest, nothing where it is unset."""
    shown = text if len(text) <= LONGEST_TITLE else f"#{digest(text)}"
    return f"{name.replace('_', ' ')} {shown}" if text else ""


def without(values: Mapping[str, Any], aside: Mapping[str, str]) -> dict[str, Any]:
    """Keys and values less those that a list puts aside."""
    return {name: value for name, value in values.items() if name not in aside}


def model_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model that separate."""
    kept = without(arguments, ARGUMENTS_ASIDE)
    overrides = kept.get("hf_overrides")
    if isinstance(overrides, Mapping):  # vLLM takes the same arguments in here
        kept["hf_overrides"] = without(overrides, ARGUMENTS_ASIDE)
    return {name: value for name, value in kept.items() if value not in (None, "", {}, [])}


def requested_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of our tasks in `--metadata`; those under a family's own key win."""
    settings = dict(metadata)
    for family in FAMILIES:
        if family.group and isinstance(given := metadata.get(family.group), Mapping):
            settings |= given
    return recorded_settings({name: value for name, value in settings.items() if name in OWN})


def recorded_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a task of ours recorded them; its seed is not the run's."""
    kept = {name: value for name, value in settings.items() if name not in LENGTHS}
    return {"task_seed" if name == "seed" else name: value for name, value in kept.items()}
