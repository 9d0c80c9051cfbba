"""The results files that lm-eval writes, as rows of frames.

Any field may be missing, or of another type. Tried with files of lm-eval 0.3 to 0.4.13.
"""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leval_harness.results.lm_eval_samples import (
    TaskRead,
    finite,
    hash_of,
    number,
    object_of,
    read_samples,
    samples_file,
)
from leval_harness.results.methods import SERVED, SETTING, SHIPPED, method_of
from leval_tasks.common.metrics import FAMILY_OF, NOT_AVAILABLE, Metric, length_of, metric_of, split
from resonance_vllm.checkpoint.arguments import rope_from_model_args

NAMING = ("pretrained", "model", "path", "base_url")
"""Arguments that may name a model; the first one there is names it."""

LENGTHS = ("context_length", "max_length", "max_model_len")
"""Arguments that may hold the longest sequence, tokens."""

IN_OTHER_COLUMNS = frozenset({
    *NAMING, *LENGTHS, "model_args", "dtype", "rope_precision", "max_position_embeddings",
    "rope_parameters", "rope_scaling", "rope_theta", "hf_overrides", "json_model_override_args",
})  # fmt: skip
"""Arguments of a model that columns of `runs` of their own hold."""

NOT_DECIDING = frozenset({
    # how many requests go at once, and where
    "batch_size", "max_batch_size", "auto_batch_size", "num_concurrent", "max_num_seqs",
    "max_num_batched_tokens", "device", "device_map", "device_map_option", "parallelize", "gpus",
    "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "max_memory_per_gpu",
    "max_cpu_memory", "gpu_memory_utilization", "swap_space", "cpu_offload_gb", "offload_folder",
    # folders of caches, and what is kept in them
    "cache_dir", "download_dir", "low_cpu_mem_usage", "load_format", "enable_prefix_caching",
    # how a server is asked
    "timeout", "max_retries", "verify_certificate", "eos_string", "tokenized_requests",
    # what is printed
    "disable_log_stats", "verbosity", "disable_tqdm", "use_fast_tokenizer",
})  # fmt: skip
"""Arguments of a model that change no number. Every other one is in the column `arguments`."""

UNSET: tuple[Any, ...] = ("", {}, [])
"""Values of an argument that say no more than None; False is not one of them."""

DEFAULTS = {"trust_remote_code": False, "load_in_8bit": False, "load_in_4bit": False}
"""Arguments whose default in lm-eval is known to be this value: writing it changes nothing."""

OLDEST = "0.4.5"
"""The oldest version of lm-eval whose files are read."""

FOLLOW_LENGTH = (*LENGTHS, "min_tokens", "max_seq_lengths")
"""Settings of tasks that follow from the length."""

VERSIONS = {"lm_eval": "lm_eval_version", "git": "git_hash",
            "transformers": "transformers_version"}  # fmt: skip
"""Name in `runs` -> the file's."""

STATED = {"mean": "mean", "perplexity": "perplexity", "weighted_perplexity": "perplexity",
          "bits_per_byte": "bits"}  # fmt: skip
"""Aggregation in a task's `metric_list` -> the one of `leval_tasks.common.metrics.Metric`."""

COUNTED = {"sample_len": "number of questions", "sample_count": "numbers of questions"}


def _whole(value: Any) -> int | None:
    found = finite(value)
    return None if found is None else int(found)


def parsed_arguments(given: Any) -> dict[str, Any]:
    """`model_args`, which lm-eval writes as a mapping or as `key=value,...`."""
    if isinstance(given, dict):
        return {name: _parsed(value) for name, value in given.items()}
    if not isinstance(given, str):
        return {}
    pairs = (part.partition("=") for part in re.split(r",(?=\s*\w+=)", given))
    return {name.strip(): _parsed(text) for name, _, text in pairs if name}


def _parsed(value: Any) -> Any:
    """The value that a text stands for, read as JSON; else as it is."""
    try:
        names = {"True": "true", "False": "false", "None": "null"}
        return json.loads(names.get(value, value)) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


class Plain:
    """A results file of lm-eval: `names` of its tasks and groups; members of its `groups`."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content, self.config = content, object_of(content.get("config"))
        self.arguments = parsed_arguments(self.config.get("model_args"))
        members = self.part("group_subtasks")
        self.results = {**self.part("groups"), **self.part("results")}
        listed = {*self.part("groups"), *(name for name, tasks in members.items() if tasks)}
        self.groups = {name: members.get(name) or [] for name in self.results if name in listed}
        self.names = [name for name, each in self.results.items() if isinstance(each, dict)]

    def part(self, name: str) -> dict[str, Any]:
        """A mapping of the file; empty where it has none."""
        return object_of(self.content.get(name))

    def run(self) -> dict[str, Any]:
        """What the file says of the whole evaluation, as columns of `runs`."""
        named = [self.arguments.get(name) for name in NAMING]
        names = (self.content.get("model_name"), *named, self.config.get("model"), "model")
        rope, served = self.rope, self.arguments.get("base_url")
        dtype = str(self.config.get("model_dtype") or self.arguments.get("dtype") or "")
        limits = (*map(self.arguments.get, LENGTHS), self.content.get("max_length"))
        length = self.task_length or next(filter(None, map(_whole, limits)), None)
        limit = number(_parsed(self.config.get("limit")))
        return {
            "model": str(next(filter(None, names))),
            "checkpoint": str(served or next(filter(None, named), "")) or None,
            "method": method_of(rope) if rope else SERVED if served else SHIPPED,
            "rope": rope,
            "context_length": length if length and length > 0 else None,
            "tasks": tuple(name for name in self.names if name not in self.groups),
            "backend": _text(self.config.get("model")),
            "dtype": dtype.removeprefix("torch.") or None,
            "limit": limit if limit and limit > 0 else None,
            "gen_kwargs": _parsed(self.config.get("gen_kwargs")),
            "chat_template": _text(self.content.get("chat_template_sha"))
            or _digest(self.content.get("chat_template")),
            "seed": _whole(self.config.get("random_seed")),
            "created": _created(self.content.get("date")),
            "seconds": number(self.content.get("total_evaluation_time_seconds")),
            "versions": {n: self.content[k] for n, k in VERSIONS.items() if self.content.get(k)},
            "precision": _text(self.arguments.get("rope_precision")),
            "arguments": self.deciding_arguments,
            "hardware": _text(self.content.get("gpu")) or _text(self.content.get("cpu")),
        }

    @property
    def deciding_arguments(self) -> dict[str, Any]:
        """Return the model's arguments that can change a number and that no other column holds."""
        return deciding_arguments(self.arguments)

    @property
    def task_length(self) -> int | None:
        """Return the context length that the tasks' metadata state, in tokens.

        It is the largest one; None where a task states none, since that task then reads up to the
        model's limit.
        """
        lengths = []
        for task in self.names:
            if task in self.groups:
                continue
            length = _stated_length(object_of(self.config_of(task).get("metadata")))
            if length is None:
                return None
            lengths.append(length)
        return max(lengths, default=None)

    @property
    def rope(self) -> dict[str, Any]:
        """Return the RoPE settings that the arguments request, in one form; empty without any."""
        return dict(rope_from_model_args(self.arguments) or {})

    def config_of(self, task: str) -> dict[str, Any]:
        """A task's configuration; empty where none was written."""
        return object_of(self.part("configs").get(task))

    def metric_config(self, task: str, metric: str) -> dict[str, Any]:
        """The entry of a metric in the task's `metric_list`; empty if it has none."""
        listed = self.config_of(task).get("metric_list")
        entries = map(object_of, listed if isinstance(listed, list) else [])
        return next((each for each in entries if each.get("metric") == metric), {})

    def direction(self, task: str, metric: str, known: Metric) -> bool | None:
        """Whether higher is better: as the file states it for a task or a metric, else as is known.

        None as well for a loss that a file calls better the higher it is: one of the two is wrong.
        """
        stated: Any = self.part("higher_is_better").get(task)
        stated = stated.get(metric) if isinstance(stated, dict) else stated
        if not isinstance(stated, bool):
            stated = self.metric_config(task, metric).get("higher_is_better")
        if not isinstance(stated, bool):
            return known.higher_is_better
        return None if stated and known.kind == "loss" and not known.higher_is_better else stated

    def aggregation(self, task: str, metric: str, known: Metric) -> str:
        """How the values of the questions make the number, see `SCORES` of the results."""
        stated = self.metric_config(task, metric).get("aggregation")
        if task in FAMILY_OF or not isinstance(stated, str):
            return known.aggregation
        return STATED.get(stated, "own")


def deciding_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model that can change a number and that no other column holds.

    Args:
        arguments: name -> value, as the model is built with.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in IN_OTHER_COLUMNS | NOT_DECIDING
        and not (value is None or value in UNSET or value is DEFAULTS.get(name))
    }


def _stated_length(metadata: dict[str, Any]) -> int | None:
    """Return the context length that a task's metadata state; the largest of several."""
    of_prompt = _whole(object_of(metadata.get("prompt")).get("context_length"))
    if of_prompt is not None:
        return of_prompt
    stated = metadata.get("context_length")
    listed = stated if isinstance(stated, list) else [stated]
    return max((length for length in map(_whole, listed) if length), default=None)


def check_version(file: Plain) -> None:
    """Refuse a file that is older than `OLDEST`: its metrics do not name their filter.

    Raises:
        ValueError: the file is older.
    """
    metrics = [
        key
        for task in file.names
        for key, value in file.results[task].items()
        if isinstance(value, float) and key not in COUNTED
    ]
    if metrics and not any("," in key for key in metrics):
        raise ValueError(
            f"written by an lm-eval older than {OLDEST}: the metric {metrics[0]!r} names no filter; "
            f"evaluate again with lm-eval {OLDEST} or later"
        )


def _not_finite_note(metadata: dict[str, Any]) -> str:
    """Return where losses of a task are not finite; empty where all are."""
    positions = object_of(metadata.get("not_finite"))
    return "; ".join(
        f"NaN from position {position} of document {document}"
        for document, position in positions.items()
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _digest(value: Any) -> str | None:
    return hash_of(value)[:8] if value else None


def _created(date: Any) -> str | None:
    """lm-eval's date, seconds since 1970, in ISO 8601 (UTC)."""
    seconds = number(date)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


def read_task(run: int, known: dict[str, Any], task: str, file: Plain, path: Path) -> TaskRead:
    """The numbers and samples of a task or group of a file; `known` is the row of `runs`."""
    read, about = TaskRead(), {"run": run, "task": task, **_about(task, known, file)}
    values = file.results[task]
    not_finite = _not_finite_note(object_of(file.config_of(task).get("metadata")))
    for key, value in values.items():
        name, comma, chosen = key.partition(",")
        if (reason := _no_row(key, value, values)) is not None:
            read.excluded += [(key, value, reason)] if reason else []
            continue
        if value == NOT_AVAILABLE and task in FAMILY_OF and not not_finite:
            read.excluded.append((key, value, "not measured in this run"))
            continue
        metric, of_name, (family, at) = metric_of(name, task), length_of(name), split(name)
        stderr = values.get(f"{name}_stderr,{chosen}" if comma else f"{name}_stderr")
        row = about | {
            "name": name,
            "metric": "score" if of_name else family if at else name,
            "filter": chosen if comma else "none",
            "length": of_name or at or about["length"],
            "value": finite(value),
            "stderr": finite(stderr),
            "higher_is_better": file.direction(task, name, metric),
            "aggregation": file.aggregation(task, name, metric),
            "status": "done",
            "note": "",
        }
        if name == "bypass":
            row |= {"value": None, "status": "unscored",
                    "note": "answers were kept and not scored (--predict_only)"}  # fmt: skip
            read.excluded.append((key, value, "stands for answers that were not scored"))
        elif row["value"] is None:
            row |= {"status": "not available", "note": not_finite or f"lm-eval wrote {value}"}
        read.scores.append(row)
    if read.scores:  # they have it as `asked`
        shown = ("sample_len", about["asked"])
        read.excluded = [each for each in read.excluded if each[:2] != shown]
    if task not in file.groups and (samples := samples_file(path, task)):
        read_samples(samples, run, task, known, read)
    return read


def _no_row(key: str, value: Any, values: dict[str, Any]) -> str | None:
    """Why an entry of a task has no row; empty for what is no number, None where it has one."""
    name, comma, chosen = key.partition(",")
    if name in COUNTED and not comma:
        return COUNTED[name]
    if isinstance(value, bool | list | dict) or (not comma and number(value) is None):
        return "a list or mapping, no number" if isinstance(value, list | dict) else ""
    if name.endswith("_stderr"):
        measured = name.removesuffix("_stderr")
        if (f"{measured},{chosen}" if comma else measured) in values:
            return ""  # stands beside its number
        return "a standard error without its number"
    if name.isdecimal() and number(value) == -1:  # of RULER
        return "-1: no question of this length"
    return None


def _about(task: str, known: dict[str, Any], file: Plain) -> dict[str, Any]:
    """What all numbers of a task have in common."""
    stated, ours = object_of(file.config_of(task).get("metadata")), task in FAMILY_OF
    length = _whole(object_of(stated.get("prompt")).get("context_length"))
    data, counts = object_of(stated.get("data")), object_of(file.part("n-samples").get(task))
    values = file.results[task]
    evaluated = [_whole(counts.get("effective")), _whole(values.get("sample_len"))]
    asked = min((each for each in evaluated if each is not None), default=None)
    original = _whole(counts.get("original"))
    partial = stated.get("partial")
    if not isinstance(partial, bool):
        partial = known.get("num_docs") is not None and FAMILY_OF.get(task) == "closed"
    partial |= bool(stated.get("skipped_documents"))
    limit = known.get("limit")
    if asked is None or original is None:
        partial |= bool(limit)
    else:  # a limit as large as the task left nothing out
        partial |= min(asked, limit or original) < original
    settings = object_of(stated.get("settings")) if ours else {}
    softmax = _text(stated.get("softmax"))
    own = {
        **{name: value for name, value in settings.items() if name not in FOLLOW_LENGTH},
        "softmax": None if softmax in ("float32", "float64") else softmax,
        "version": None if ours else file.part("versions").get(task),
        "task_hash": None if ours else _digest(file.part("task_hashes").get(task)),
        "tasks": " + ".join(sorted(map(str, file.groups.get(task, ())))),
    }
    sample = data.get("sample") is True or data.get("source") == "sample"
    return {
        "asked": asked,
        "length": length or known.get("context_length"),
        "partial": partial,
        "chance": number(stated.get("chance")),
        "source": _text(data.get("source")),
        "sample": sample,
        "data": _fingerprint(data),
        "shots": _whole(file.part("n-shot").get(task, file.config_of(task).get("num_fewshot"))),
        "claimed_length": _whole(stated.get("shipped_length")),
        "group": task in file.groups,
        **{
            f"{SETTING}{name}": value if isinstance(value, str) else json.dumps(value, default=str)
            for name, value in own.items()
            if value not in (None, "", {}, [])
        },
    }


def _fingerprint(data: dict[str, Any]) -> str | None:
    """Short hash of the files, and of the Python version whose documentation they are."""
    files, python = sorted(object_of(data.get("files")).items()), data.get("python_version")
    return _digest([*files, python] if files or python else None)
