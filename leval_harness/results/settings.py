"""What sets two runs apart: everything that decides their numbers, in short canonical texts.

Whatever a cell, a results file or a task's configuration states decides numbers, unless it is
listed here with the reason why it does not: a setting that nobody knew of sets runs apart.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from leval_harness.results.fields import digest, short_name
from leval_tasks.metadata import FAMILIES

METHOD = "rope"
"""The one setting that is compared and sets nothing apart: it is a row's method."""

FILES = "model_files"
"""Digest of the checkpoint: sets apart, unless a sweep has one for each method."""

FOLLOW_LENGTH = (
    "min_tokens", "max_length", "questions_asked", "step", "max_seq_lengths", "task_hash",
)  # fmt: skip
"""Settings that follow from the context length: they set apart what stands at one length only."""

LENGTHS = ("context_length", "max_length", "max_model_len")
"""The row or the column of a number, under any of the names of tasks and backends."""

_LAST_BITS = "changes the order of the sums: the last bits of a number"
_SPEED = "where and how fast it runs"
_NAMES = "names what the rows and columns are called after"

CELL_ASIDE = {
    **dict.fromkeys(("schema_version", "cell_id", "sweep", "baseline", "place", "command",
                     "created", "host"), "names the cell, or says where and when it ran"),
    **dict.fromkeys(("model", "method", "metadata", "apply_chat_template"), "read field by field"),
    "tasks": "the columns of tables",
    "context_length": "the rows of tables",
    "limit": "partial runs have blocks of their own",
    **dict.fromkeys(("batch_size", "device"), _LAST_BITS),
    **dict.fromkeys(("use_cache", "confirm_run_unsafe_code"), "a permission"),
    "model_args": "made of model, method and context length",
    "data": "what was read, the results say of each task",
    "versions": "the code: a table may span an upgrade; page and details show them",
    "identity": "made of all the others, of the model's files, which have a name, and of versions",
}  # fmt: skip
"""Fields of a cell's record that set nothing apart, and why."""

ARGUMENTS_ASIDE = {
    **dict.fromkeys(("pretrained", "model", "path"), _NAMES),
    **dict.fromkeys(LENGTHS, "the row or the column of a number"),
    "rope_parameters": "the method, which is what is compared",
    "max_position_embeddings": "follows from the method and the context length",
    "rope_compared": "follows from the method",
    "revision": "a setting of the run, under this name",
    "dtype": "a setting of the run, under this name",
    "rope_precision": "a setting of the run, under this name",
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
"""Arguments of a model that set nothing apart, and why."""

NAMING = ("pretrained", "model", "path", "base_url")
"""Arguments after which a run's model is called, the first there is; the others set apart."""

FILE_ASIDE = {
    **dict.fromkeys(("model_source", "model_name_sanitized"), _NAMES),
    **dict.fromkeys(("start_time", "end_time", "pretty_env_info", "upper_git_hash"), _SPEED),
    "system_instruction_sha": "of the instruction, which stands beside it",
    **dict.fromkeys(("tokenizer_pad_token", "tokenizer_eos_token", "tokenizer_bos_token",
                     "eot_token_id"), "of the tokenizer, and not in files of old versions"),
    **dict.fromkeys(("samples", "config_tasks", "summary_tasks", "summary_general"),
                    "of single tasks and answers"),
}  # fmt: skip
"""What else stands at the top of a results file and sets nothing apart, and why."""

RUN_ASIDE = {
    **dict.fromkeys(("model_name", "model_source", "job_id", "lighteval_sha"), _NAMES),
    **dict.fromkeys(("model_num_parameters", "model_size"), "follows from the model"),
    "limit": "partial runs have blocks of their own",
    "max_samples": "partial runs have blocks of their own",
    **dict.fromkeys(("batch_size", "batch_sizes", "override_batch_size"), _LAST_BITS),
    **dict.fromkeys(("device", "use_cache", "no_cache", "start_time", "end_time",
                     "total_evaluation_time_secondes"), _SPEED),
    "bootstrap_iters": "of standard errors only",
    "num_fewshot": "a setting of each task, as it took effect",
}  # fmt: skip
"""What else a results file says of a run that sets nothing apart, and why."""

TASK_ASIDE = {
    **dict.fromkeys(("task", "task_alias", "tag", "group", "group_alias", "alias"), _NAMES),
    "class": _NAMES,
    "metadata": "what a task states there is read key by key",
    "unsafe_code": "a permission",
    **dict.fromkeys(("should_decontaminate", "doc_to_decontamination_query"),
                    "of a second figure, which is none of the task's metrics"),
}  # fmt: skip
"""Keys of a task's configuration that set nothing apart, and why."""

METADATA_ASIDE = dict.fromkeys(
    ("version", "config_source", "num_fewshot"), "read elsewhere in the file"
)
"""Keys of the metadata of other projects' tasks that set nothing apart, and why.

Of ours, the settings that it states are read.
"""

PROMPT = ("frame", "system_role", "answer_prefix")
"""What a closed-ended task states of how it asked."""

OWN = frozenset(name for family in FAMILIES for name in family.decides_numbers()) - set(LENGTHS)
"""Settings of our own tasks that decide numbers, as their families say."""

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
LONGEST_TITLE = 60


def whole(value: object) -> object:
    """With `2` for `2.0`, which nobody means to be another number."""
    if isinstance(value, Mapping):
        return {name: whole(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return int(value)
    return value


def canonical(values: Mapping[str, Any]) -> dict[str, str]:
    """Settings as texts; empty ones are left out, a long one ends in its digest."""
    known = {name: value for name, value in values.items() if value not in (None, "", {}, [])}
    return {short_name(name): _text(value) for name, value in known.items()}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return short_name(_ADDRESS.sub("0x", text))  # of a Python function, another one in each process


def titled(name: str, text: str) -> str:
    """A setting in a block's title: long values by their digest, nothing where it is unset."""
    shown = text if len(text) <= LONGEST_TITLE else f"#{digest(text)}"
    return f"{name.replace('_', ' ')} {shown}" if text else ""


def without(values: Mapping[str, Any], aside: Mapping[str, str]) -> dict[str, Any]:
    """What is left of some keys and values when those with a reason are put aside."""
    return {name: value for name, value in values.items() if name not in aside}


def model_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model that decide numbers."""
    kept = without(arguments, ARGUMENTS_ASIDE)
    overrides = kept.get("hf_overrides")
    if isinstance(overrides, Mapping):  # vLLM's way of giving the same
        kept["hf_overrides"] = without(overrides, ARGUMENTS_ASIDE)
    return {name: value for name, value in kept.items() if value not in (None, "", {}, [])}


def asked_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of our tasks in `--metadata`; those of a family's own key win."""
    settings = dict(metadata)
    for family in FAMILIES:
        if family.group and isinstance(given := metadata.get(family.group), Mapping):
            settings |= given
    return own_settings({name: value for name, value in settings.items() if name in OWN})


def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a task of ours recorded them; its seed is not that of the run."""
    kept = without(settings, dict.fromkeys(LENGTHS, ""))
    return {"task_seed" if name == "seed" else name: value for name, value in kept.items()}
