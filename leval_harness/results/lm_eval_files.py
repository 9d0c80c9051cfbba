"""The results files that lm-eval writes, as rows of frames.

Any field may be missing, or of another type. Tested with files of lm-eval 0.4.5 to 0.4.13.
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
from resonance_vllm.checkpoint.arguments import (
    OVERRIDE_ARGUMENTS,
    other_overrides,
    rope_from_model_args,
)
from resonance_vllm.common.credentials import without_credentials

NAMING = ("pretrained", "model", "path", "base_url")
"""Arguments that may name a model; the first one there is names it."""

LENGTHS = ("context_length", "max_length", "max_model_len")
"""Arguments that may hold the longest sequence, tokens."""

IN_OTHER_COLUMNS = frozenset({
    *NAMING, *LENGTHS, "model_args", "dtype", "rope_precision",
    "rope_parameters", "rope_scaling", "rope_theta", *OVERRIDE_ARGUMENTS,
})  # fmt: skip
"""Arguments of a model that columns of `runs` of their own hold; of overrides the RoPE settings."""

NOT_DECIDING = frozenset({
    # how many requests go at once, and where
    "batch_size", "max_batch_size", "auto_batch_size", "num_concurrent", "max_num_seqs",
    "max_num_batched_tokens", "device", "device_map", "device_map_option", "parallelize", "gpus",
    "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "max_memory_per_gpu",
    "max_cpu_memory", "gpu_memory_utilization", "swap_space", "cpu_offload_gb", "offload_folder",
    "tp_size", "dp_size", "tp_plan", "mem_fraction_static", "chunked_prefill_size",
    # folders of caches, and what is kept in them
    "cache_dir", "download_dir", "low_cpu_mem_usage", "enable_prefix_caching",
    # how a server is asked; credentials are never shown
    "timeout", "max_retries", "verify_certificate", "ca_cert_path", "auth_token", "header",
    # what is printed
    "disable_log_stats", "verbosity", "disable_tqdm",
})  # fmt: skip
"""Arguments of a model that change no number. Every other one is in the column `arguments`."""

WEIGHTS = ("model_sha", "peft_sha", "delta_sha")
"""Entries of a results file that name the commits of the weights; empty where lm-eval did not know.

A hub name says less than they do: what is behind it changes."""

TEXT_OF_PROMPTS = (
    "description", "doc_to_text", "doc_to_target", "doc_to_choice", "target_delimiter",
    "fewshot_delimiter", "use_prompt", "dataset_path", "dataset_name", "test_split",
)  # fmt: skip
"""Fields of a task's configuration that decide its questions."""

LM_EVAL_SEED = 1234
"""lm-eval's default for its seeds of torch, of numpy, and of the examples in prompts."""

UNSET: tuple[Any, ...] = ("", {}, [])
"""Values of an argument that say no more than None; False is not one of them."""

DEFAULTS = {"trust_remote_code": False, "load_in_8bit": False, "load_in_4bit": False,
            "use_fast_tokenizer": True, "load_format": "auto"}  # fmt: skip
"""Arguments whose default in lm-eval is known to be this value: writing it changes nothing."""

MARK_OF_FILE = ", SHA-256 "
"""What the alias of a task contains that read a user's file under a published name."""

NOT_FINITE = "not finite"
"""Status of a number that was computed and is NaN or infinite."""

OLDEST = "0.4.5"
"""The oldest version of lm-eval whose files are read."""

FOLLOW_LENGTH = (*LENGTHS, "min_tokens", "max_seq_lengths")
"""Settings of tasks that follow from the length."""

_THOUSANDS = re.compile(r"(\d{1,6})[kK]")
"""A length such as `4k`: 4 times 1,024 tokens."""

VERSIONS = {"lm_eval": "lm_eval_version", "git": "git_hash",
            "transformers": "transformers_version"}  # fmt: skip
"""Name in `runs` -> the file's."""

STATED = {"mean": "mean", "perplexity": "perplexity", "weighted_perplexity": "perplexity",
          "bits_per_byte": "bits"}  # fmt: skip
"""Aggregation in a task's `metric_list` -> the one of `leval_tasks.common.metrics.Metric`."""

COUNTED = {"sample_len": "number of questions", "sample_count": "numbers of questions"}


def _whole(value: Any) -> int | None:
    """Return a finite number as an integer, cut towards zero; None for anything else."""
    as_float = finite(value)
    return None if as_float is None else int(as_float)


def parsed_arguments(model_args: Any) -> dict[str, Any]:
    """Return `model_args` or `gen_kwargs`, which lm-eval writes as a mapping or as `key=value,...`.

    Args:
        model_args: as in a results file; anything else than a mapping or text has no arguments.
    """
    if isinstance(model_args, dict):
        return {name: _parsed(value) for name, value in model_args.items()}
    if not isinstance(model_args, str):
        return {}
    arguments = {}
    for pair in re.split(r",(?=\s*\w+=)", model_args):  # a comma inside of a value splits nothing
        name, _, text = pair.partition("=")
        if name:
            arguments[name.strip()] = _parsed(text)
    return arguments


def _parsed(value: Any) -> Any:
    """Return what a text says in JSON; anything else as it is."""
    if not isinstance(value, str):
        return value
    in_json = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    try:
        return json.loads(in_json)
    except (ValueError, RecursionError):
        return value


class Plain:
    """A results file of lm-eval.

    Attributes:
        content: the file as it is.
        config: how lm-eval was called.
        arguments: `model_args` of that call.
        results: task or group -> its numbers.
        groups: group -> the tasks in it.
        names: tasks and groups with numbers, in the order of the file.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.config = object_of(content.get("config"))
        arguments = parsed_arguments(self.config.get("model_args"))
        self.arguments = dict(without_credentials(arguments))
        self.results = {**self.part("groups"), **self.part("results")}
        members = self.part("group_subtasks")
        # lm-eval lists each task as a group without members
        groups = {*self.part("groups"), *(name for name, tasks in members.items() if tasks)}
        self.groups = {name: members.get(name) or [] for name in self.results if name in groups}
        self.names = [name for name, values in self.results.items() if isinstance(values, dict)]

    def part(self, name: str) -> dict[str, Any]:
        """Return a mapping of the file; empty where it has none."""
        return object_of(self.content.get(name))

    def run(self) -> dict[str, Any]:
        """Return what the file says of the whole evaluation, as columns of `runs`."""
        names = [self.arguments.get(name) for name in NAMING]
        model_names = (self.content.get("model_name"), *names, self.config.get("model"), "model")
        checkpoint = self.arguments.get("base_url") or next(filter(None, names), "")
        dtype = str(self.config.get("model_dtype") or self.arguments.get("dtype") or "")
        limit = number(_parsed(self.config.get("limit")))
        chat_template = _text(self.content.get("chat_template_sha"))
        versions = {name: self.content.get(key) for name, key in VERSIONS.items()}
        return {
            "model": str(next(filter(None, model_names))),
            "checkpoint": str(checkpoint) or None,
            "method": self.method,
            "rope": self.rope,
            "context_length": self.context_length,
            "tasks": tuple(name for name in self.names if name not in self.groups),
            "backend": _text(self.config.get("model")),
            "dtype": dtype.removeprefix("torch.") or None,
            "limit": limit if limit and limit > 0 else None,
            "gen_kwargs": without_credentials(self.gen_kwargs),
            "chat_template": chat_template or _digest(self.content.get("chat_template")),
            "seed": _whole(self.config.get("random_seed")),
            "created": _created(self.content.get("date")),
            "seconds": number(self.content.get("total_evaluation_time_seconds")),
            "versions": {name: version for name, version in versions.items() if version},
            "precision": _text(self.arguments.get("rope_precision")),
            "arguments": deciding_arguments(self.arguments) | self.weights,
            "hardware": _text(self.content.get("gpu")) or _text(self.content.get("cpu")),
        }

    @property
    def method(self) -> str:
        """Return the method's name; of a server's model it is unknown."""
        if self.rope:
            return method_of(self.rope)
        if self.arguments.get("base_url"):
            return SERVED
        return SHIPPED

    @property
    def context_length(self) -> int | None:
        """Return the context length in tokens: of the tasks, else of the arguments or the model.

        None where it is unknown, or where the tasks' texts have no length (BABILong's `0k`).
        """
        limits = [self.arguments.get(name) for name in LENGTHS]
        limits.append(self.content.get("max_length"))
        for length in (self.task_length, *map(_whole, limits)):
            if length is not None:
                return length if length > 0 else None
        return None

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
            length = _stated_length(self.metadata_of(task))
            if length is None:
                return None
            lengths.append(length)
        return max(lengths, default=None)

    @property
    def rope(self) -> dict[str, Any]:
        """Return the RoPE settings that the arguments request, in one form; empty without any."""
        return dict(rope_from_model_args(self.arguments) or {})

    @property
    def gen_kwargs(self) -> dict[str, Any]:
        """Return the settings of generation that the command line gave; empty without any."""
        return parsed_arguments(_parsed(self.config.get("gen_kwargs")))

    @property
    def weights(self) -> dict[str, str]:
        """Return the commits of the model's weights, shortened, as far as the file has them."""
        commits = {name: _text(self.config.get(name)) for name in WEIGHTS}
        return {name: commit[:8] for name, commit in commits.items() if commit}

    def config_of(self, task: str) -> dict[str, Any]:
        """Return a task's configuration; empty where none was written."""
        return object_of(self.part("configs").get(task))

    def metadata_of(self, task: str) -> dict[str, Any]:
        """Return the metadata in a task's configuration; empty where none were written."""
        return object_of(self.config_of(task).get("metadata"))

    def metric_config(self, task: str, metric: str) -> dict[str, Any]:
        """Return the entry of a metric in the task's `metric_list`; empty if it has none."""
        entries = self.config_of(task).get("metric_list")
        if not isinstance(entries, list):
            return {}
        for entry in map(object_of, entries):
            if entry.get("metric") == metric:
                return entry
        return {}

    def direction(self, task: str, metric: str, known: Metric) -> bool | None:
        """Return whether higher is better: as the file says for a task or metric, else as is known.

        None as well for a loss that a file calls better the higher it is: one of the two is wrong.

        Args:
            task: name of the task.
            metric: name of the metric, as lm-eval writes it.
            known: what is known of the metric.
        """
        stated: Any = self.part("higher_is_better").get(task)
        if isinstance(stated, dict):
            stated = stated.get(metric)
        if not isinstance(stated, bool):
            stated = self.metric_config(task, metric).get("higher_is_better")
        if not isinstance(stated, bool):
            return known.higher_is_better
        is_contradicted = stated and known.kind == "loss" and not known.higher_is_better
        return None if is_contradicted else stated

    def aggregation(self, task: str, metric: str, known: Metric) -> str:
        """Return how the values of the questions make the number; see the column `aggregation`."""
        stated = self.metric_config(task, metric).get("aggregation")
        if task in FAMILY_OF or not isinstance(stated, str):
            return known.aggregation
        return STATED.get(stated, "own")


def deciding_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model that can change a number and that no other column holds.

    Args:
        arguments: name -> value, as the model is built with.
    """
    deciding = {}
    for spelling, value in arguments.items():
        name = spelling.replace("-", "_")  # servers' options are spelled with dashes
        if name in OVERRIDE_ARGUMENTS:
            value = other_overrides(value)
        elif name in IN_OTHER_COLUMNS | NOT_DECIDING:
            continue
        if value is None or value in UNSET or value == DEFAULTS.get(name):
            continue
        deciding[name] = value
    return deciding


def _stated_length(metadata: dict[str, Any]) -> int | None:
    """Return the context length that a task's metadata state; the largest of several."""
    of_prompt = _prompt_length(metadata)
    if of_prompt is not None:
        return of_prompt
    for name in ("context_length", "max_seq_lengths"):
        length = _largest_length(metadata.get(name))
        if length is not None:
            return length
    return None


def _largest_length(stated: Any) -> int | None:
    """Return the largest of the stated context lengths, tokens; None if none is stated.

    RULER states a list of numbers, BABILong the name of its data, such as `4k`, or `0k` where
    nothing is put around the facts.
    """
    lengths = []
    for entry in stated if isinstance(stated, list) else [stated]:
        number_of_k = _THOUSANDS.fullmatch(str(entry).strip())
        length = int(number_of_k[1]) * 1024 if number_of_k else _whole(entry)
        if length is not None and length >= 0:
            lengths.append(length)
    return max(lengths, default=None)


def _prompt_length(metadata: dict[str, Any]) -> int | None:
    """Return the context length that a task's prompts were made for, tokens; None if unknown."""
    return _whole(object_of(metadata.get("prompt")).get("context_length"))


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
    """Return a text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def _digest(value: Any) -> str | None:
    """Return a short hash of a value; None of an empty one."""
    return hash_of(value)[:8] if value else None


def _created(date: Any) -> str | None:
    """Return lm-eval's date, seconds since 1970, in ISO 8601 (UTC)."""
    seconds = number(date)
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_task(run: int, known: dict[str, Any], task: str, file: Plain, path: Path) -> TaskRead:
    """Read the numbers and samples of a task or group of a results file.

    Args:
        run: number of the run.
        known: its row of `runs`.
        task: name of the task or group.
        file: the results file.
        path: where it is; its samples are beside it.

    Returns:
        rows of `scores`, the samples, and each entry of the file that has no row, with the reason.
    """
    task_columns = _task_columns(task, known, file)
    read = TaskRead()
    values = file.results[task]
    for key, value in values.items():
        reason = _excluded_because(key, value, values)
        if reason is not None:
            if reason:
                read.excluded.append((key, value, reason))
            continue
        is_own_task = task in FAMILY_OF
        if value == NOT_AVAILABLE and is_own_task and not _not_finite_note(file.metadata_of(task)):
            # tasks of this package name all their metrics; a run measures some of them
            read.excluded.append((key, value, "not measured in this run"))
            continue
        row = {"run": run, "task": task, **task_columns, **_number_columns(task, key, file)}
        if row["length"] is None:
            row["length"] = task_columns["length"]
        if row["name"] == "bypass":
            read.excluded.append((key, value, "is written where answers are not scored"))
        read.scores.append(row)
    if read.scores:
        # it is in the column `asked` of these rows
        in_rows = ("sample_len", task_columns["asked"])
        read.excluded = [entry for entry in read.excluded if entry[:2] != in_rows]
    samples = samples_file(path, task)
    if samples and task not in file.groups:
        read_samples(samples, run, task, known, read)
    return read


def _number_columns(task: str, key: str, file: Plain) -> dict[str, Any]:
    """Return the columns of `scores` that are of one number.

    Args:
        task: name of the task or group.
        key: metric and filter as lm-eval writes them, `metric,filter`.
        file: the results file.
    """
    values = file.results[task]
    name, comma, filter_name = key.partition(",")
    stderr_key = f"{name}_stderr{comma}{filter_name}"
    length_in_name = length_of(name)  # RULER's metrics are lengths
    family, position = split(name)  # `loss@2048`
    metric = name
    if length_in_name:
        metric = "score"
    elif position:
        metric = family

    value = finite(values[key])
    status = "done"
    note = ""
    if name == "bypass":
        value = None
        status = "unscored"
        note = "answers were kept and not scored (--predict_only)"
    elif value is None:
        where_not_finite = _not_finite_note(file.metadata_of(task))
        status = "not available"
        if where_not_finite or isinstance(values[key], float):
            status = NOT_FINITE
        note = where_not_finite or f"lm-eval wrote {values[key]}"
    known = metric_of(name, task)
    return {
        "name": name,
        "metric": metric,
        "filter": filter_name if comma else "none",
        "length": length_in_name or position or None,
        "value": value,
        "stderr": finite(values.get(stderr_key)),
        "higher_is_better": file.direction(task, name, known),
        "aggregation": file.aggregation(task, name, known),
        "status": status,
        "note": note,
    }


def _excluded_because(key: str, value: Any, values: dict[str, Any]) -> str | None:
    """Return why an entry of a task has no row of its own.

    Args:
        key: of the entry.
        value: of the entry.
        values: all entries of the task.

    Returns:
        None where it has a row; empty where nothing is lost: the entry is not a number, or it is
        the standard error in another row.
    """
    name, comma, filter_name = key.partition(",")
    if name in COUNTED and not comma:
        return COUNTED[name]
    if isinstance(value, list | dict):
        return "a list or mapping, not a number"
    is_metric = comma or number(value) is not None
    if isinstance(value, bool) or not is_metric:
        return ""
    if name.endswith("_stderr"):
        measured = f"{name.removesuffix('_stderr')}{comma}{filter_name}"
        return "" if measured in values else "a standard error without its number"
    if name.isdecimal() and number(value) == -1:
        # RULER writes -1 at the lengths that were not asked
        return "-1: no question of this length"
    return None


def _task_columns(task: str, known: dict[str, Any], file: Plain) -> dict[str, Any]:
    """Return the columns of `scores` that all numbers of a task share.

    Args:
        task: name of the task or group.
        known: the run's row of `runs`.
        file: the results file.
    """
    metadata = file.metadata_of(task)
    data = object_of(metadata.get("data"))
    columns = {
        "asked": _questions_asked(task, file),
        "length": _prompt_length(metadata) or known.get("context_length"),
        "partial": _is_partial(task, known, file),
        "chance": number(metadata.get("chance")),
        "source": _source(data),
        "alias": _alias(task, file),
        "sample": data.get("sample") is True or data.get("source") == "sample",
        "data": _fingerprint(data),
        "shots": _shots(task, file),
        "claimed_length": _whole(metadata.get("shipped_length")),
        "group": task in file.groups,
        "generates": _generates(task, file),
    }
    for name, value in _task_settings(task, file).items():
        if value in (None, "", {}, []):
            continue
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        columns[f"{SETTING}{name}"] = text
    return columns


def _alias(task: str, file: Plain) -> str | None:
    """Return the name that one of this package's tasks has where it read a user's documents."""
    alias = _text(file.results[task].get("alias"))
    if task in FAMILY_OF and alias is not None and MARK_OF_FILE in alias:
        return alias.strip(" -")  # lm-eval indents the members of a group
    return None


def _source(data: dict[str, Any]) -> str | None:
    """Return where documents are from: the path of a user's file, else a word for it."""
    source = _text(data.get("source"))
    if source == "file":
        return _text(data.get("path")) or next(iter(object_of(data.get("files"))), source)
    return source


def _generates(task: str, file: Plain) -> bool | None:
    """Return whether a task generates answers; None where the file does not say."""
    output_type = _text(file.config_of(task).get("output_type"))
    if output_type is None:
        return None
    return output_type == "generate_until"


def _task_settings(task: str, file: Plain) -> dict[str, Any]:
    """Return the settings of a task that can change a number."""
    metadata = file.metadata_of(task)
    settings: dict[str, Any] = {}
    if task in FAMILY_OF:
        # a version of these tasks is part of their data and settings
        settings |= object_of(metadata.get("settings"))
    else:
        settings["version"] = file.part("versions").get(task)
        settings["task_hash"] = _digest(file.part("task_hashes").get(task))
        settings |= _own_settings(task, file)
    for name in FOLLOW_LENGTH:
        settings.pop(name, None)
    settings |= _prompt_settings(task, file)
    softmax = _text(metadata.get("softmax"))
    if softmax not in ("float32", "float64"):  # both round a loss to the same digits
        settings["softmax"] = softmax
    settings["tasks"] = " + ".join(sorted(map(str, file.groups.get(task, ()))))
    return settings


def _prompt_settings(task: str, file: Plain) -> dict[str, Any]:
    """Return the settings that shape all prompts of a task, besides the chat template.

    Its further seeds are settings only where they are neither the default nor the seed of the run.
    """
    instruction = _text(file.content.get("system_instruction"))
    settings: dict[str, Any] = {"system_instruction": _digest(instruction)}
    usual_seeds = (None, LM_EVAL_SEED, _whole(file.config.get("random_seed")))
    read_seeds = []
    if _generates(task, file):
        read_seeds += ["torch_seed", "numpy_seed"]
    if _shots(task, file):
        read_seeds.append("fewshot_seed")
        if file.content.get("fewshot_as_multiturn") is True:
            settings["fewshot_as_multiturn"] = "yes"
    for name in read_seeds:
        seed = _whole(file.config.get(name))
        if seed not in usual_seeds:
            settings[name] = seed
    return settings


def _own_settings(task: str, file: Plain) -> dict[str, Any]:
    """Return what a task's configuration says of its questions and answers, where nothing else does.

    A hash of the prompts is in files with samples alone. Settings of generation that the command
    line gave are in the column `gen_kwargs`.
    """
    config = file.config_of(task)
    settings: dict[str, Any] = {}
    if not file.part("task_hashes").get(task):
        texts = {name: config.get(name) for name in TEXT_OF_PROMPTS}
        # an address in memory is another one in each process
        texts = {name: text for name, text in texts.items() if " at 0x" not in str(text)}
        settings["prompts"] = _digest({name: text for name, text in texts.items() if text})
    generation = object_of(config.get("generation_kwargs"))
    settings["generation"] = {
        name: value for name, value in sorted(generation.items()) if name not in file.gen_kwargs
    }
    return settings


def _shots(task: str, file: Plain) -> int | None:
    """Return the number of examples in a task's prompts; None where the file does not say."""
    return _whole(file.part("n-shot").get(task, file.config_of(task).get("num_fewshot")))


def _questions_asked(task: str, file: Plain) -> int | None:
    """Return how many questions of a task were asked; None where the file does not say."""
    counts = object_of(file.part("n-samples").get(task))
    stated = [_whole(counts.get("effective")), _whole(file.results[task].get("sample_len"))]
    return min((count for count in stated if count is not None), default=None)


def _is_partial(task: str, known: dict[str, Any], file: Plain) -> bool:
    """Return whether some questions of a task were excluded, by a limit or a number of documents.

    Args:
        task: name of the task or group.
        known: the run's row of `runs`.
        file: the results file.
    """
    metadata = file.metadata_of(task)
    stated = metadata.get("partial")
    if isinstance(stated, bool):
        of_task = stated
    else:
        of_task = known.get("num_docs") is not None and FAMILY_OF.get(task) == "closed"
    if of_task or metadata.get("skipped_documents"):
        return True
    limit = known.get("limit")
    asked = _questions_asked(task, file)
    original = _whole(object_of(file.part("n-samples").get(task)).get("original"))
    if asked is None or original is None:
        return bool(limit)
    # a limit as large as the task excludes nothing
    return min(asked, limit or original) < original


def _fingerprint(data: dict[str, Any]) -> str | None:
    """Return a short hash of the files, and of the Python version whose documentation they are."""
    files = sorted(object_of(data.get("files")).items())
    python_version = data.get("python_version")
    if not files and not python_version:
        return None
    return _digest([*files, python_version])
