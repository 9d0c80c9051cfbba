"""What would make a run fail, found before anything is loaded.

Everything here is cheap beside loading a model: files are looked for and texts are tokenized.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from leval_harness.backends import BACKENDS, backend_class, load_target
from leval_harness.sweep import ConfigError
from leval_harness.sweep.executor import Capacity
from leval_harness.sweep.groups import grouped
from leval_harness.sweep.identity import RUNNING_TEXT, WEIGHT_FILES, has_weights
from leval_harness.sweep.run_record import RunRecord
from leval_harness.sweep.task_registry import (
    EFFECTIVE_CONTEXT,
    LENGTH_KEY,
    families_of,
    tasks_in_folder,
)
from leval_harness.sweep.workload import Workloads
from leval_tasks.common.token_logprobs import (
    check_reports_tokens,
    check_scores_text,
    scoring_of_class,
)
from resonance_vllm.common.errors import SettingError, UserError, did_you_mean
from resonance_vllm.common.files import read_json_object

WITHOUT_WEIGHT_FILES = ("gguf_file", "load_format", "model_loader_extra_config")
"""Arguments with which weights come from elsewhere, or from nowhere."""
ANSWER_SETTINGS = ("until", "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Generation settings that lm-eval itself reads."""


def check_runs(
    runs: Sequence[RunRecord], capacity: Capacity, workloads: Workloads | None = None
) -> None:
    """Refuse runs that would fail after their model was loaded.

    Args:
        runs: what is to be computed.
        capacity: the GPUs that there are.
        workloads: takes what is learned about the runs.

    Raises:
        ConfigError: all that is wrong, a line each.
    """
    problems = [
        *gpu_problems(runs, capacity),
        *checkpoint_problems(runs),
        *argument_problems(runs),
        *scoring_problems(runs),
        *generation_problems(runs),
        *length_problems(runs),
    ]
    if not problems:  # a text is tokenized with the files that were just looked for
        problems += text_problems(runs, workloads)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def gpu_problems(runs: Sequence[RunRecord], capacity: Capacity) -> Iterator[str]:
    """Yield models that need more GPUs than one machine has."""
    needed = {group.runs[0].model.name: group.gpus for group in grouped(runs, capacity.gpus)}
    for name, gpus in needed.items():
        if gpus > capacity.gpus_per_machine:
            yield (
                f"models: {name} takes {gpus} GPUs and {capacity.gpus_per_machine} are visible on "
                "one machine; reduce tensor_parallel_size or gpus of the model, or run where there "
                "are more"
            )


def checkpoint_problems(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield checkpoint folders without weights, and those of a type that transformers lacks."""
    for run in _first_of_each_model(runs):
        folder = Path(run.model.path)
        if run.model.backend not in BACKENDS or not folder.is_dir():
            continue  # a server, or a model of the hub that is fetched when it is loaded
        where = f"models.{run.model.name}.path"
        args = run.model.args
        weights = folder / str(args.get("subfolder", ""))
        if not has_weights(weights) and not any(name in args for name in WITHOUT_WEIGHT_FILES):
            allowed = ", ".join(WEIGHT_FILES)
            yield f"{where}: {weights} has no weights (allowed: {allowed}){_plan_without(run)}"
        if BACKENDS[run.model.backend].checks_model_type:
            unknown = _unknown_type(folder)
            if unknown:
                yield f"{where}: {unknown}"


def _plan_without(run: RunRecord) -> str:
    """Return how to plan for a model whose weights are elsewhere; empty where its library cannot."""
    argument = BACKENDS[run.model.backend].without_weights
    if argument is None:
        return ""
    return f"; to plan without them: --set models.{run.model.name}.args.{argument}"


def _unknown_type(folder: Path) -> str:
    """Return what is wrong with the `model_type` of a checkpoint; empty if transformers knows it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    config = read_json_object(folder / "config.json") or {}
    model_type = config.get("model_type")
    if "auto_map" in config or model_type in CONFIG_MAPPING_NAMES:
        return ""
    near = did_you_mean(model_type, CONFIG_MAPPING_NAMES)
    return (
        f"the model_type of {folder / 'config.json'} is {model_type!r}, which the installed version "
        f"of transformers does not know{near}"
    )


def argument_problems(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield arguments of models that their backends refuse."""
    for run in _first_of_each_model(runs):
        if run.model.backend not in BACKENDS:
            continue
        for problem in BACKENDS[run.model.backend].argument_problems(run.model.args):
            yield f"models.{run.model.name}.args.{problem}"


def scoring_problems(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield models of lm-eval, such as chat endpoints, that cannot score the text of a task."""
    for run in runs:
        families = families_of(run.tasks) & RUNNING_TEXT
        if run.model.backend in BACKENDS or not families:
            continue
        scoring = scoring_of_class(backend_class(run.model.backend))
        try:
            check_scores_text(scoring, run.model.backend)
            if EFFECTIVE_CONTEXT in families:
                check_reports_tokens(scoring, run.model.backend)
        except SettingError as error:
            yield f"models.{run.model.name}: {error}"


def generation_problems(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield generation settings that the backend of a run does not have."""
    for run in runs:
        if not run.gen_kwargs or run.model.backend not in BACKENDS:
            continue
        known = _generation_settings(run.model.backend)
        for name in run.gen_kwargs:
            if known and name not in known:
                yield (
                    f"gen_kwargs.{name}: unknown generation setting of backend "
                    f"{run.model.backend}{did_you_mean(name, known)}"
                )


@cache
def _generation_settings(backend: str) -> frozenset[str]:
    """Return the generation settings of a backend; empty if its library is not installed here."""
    record = BACKENDS[backend]
    try:
        generation_class = load_target(record.generation_class)
    except ImportError:
        return frozenset()
    names = getattr(generation_class, "__struct_fields__", None)  # of msgspec, as vLLM has it
    if names is None:
        names = generation_class().to_dict()
    return frozenset([*names, *record.generation_extras, *ANSWER_SETTINGS])


def text_problems(runs: Iterable[RunRecord], workloads: Workloads | None = None) -> Iterator[str]:
    """Yield why runs on running text cannot get their documents: too few, too short, or missing.

    Documents are tokenized to see it. All methods of a model read the same ones, and a problem is
    reported for the first of them.

    Args:
        runs: all runs; those on other tasks are skipped.
        workloads: those known so far; by default none.
    """
    workloads = workloads or Workloads()
    reported: set[str] = set()
    for run in runs:
        if not families_of(run.tasks) <= RUNNING_TEXT:
            continue
        try:
            workloads.of(run)
        except UserError as error:
            if str(error) not in reported:
                yield f"{run.title}: {error}"
            reported.add(str(error))


def length_problems(runs: Iterable[RunRecord]) -> Iterator[str]:
    """Yield context lengths below the least of a RULER task, which would search for ever."""
    for run in runs:
        lengths = run.metadata.get(LENGTH_KEY)
        if not isinstance(lengths, list):
            continue
        for name in tasks_in_folder(run.tasks, "ruler"):
            try:
                least = _least_length(name, _tokenizer_path(run))
            except ImportError:
                break  # a package of the task is missing: loading the task names it at once
            if min(lengths) < least:
                yield (
                    f"context_lengths: {min(lengths)} is below the {least} tokens that the shortest "
                    f"question of {name} needs with the tokenizer of {run.model.name}"
                )


def _tokenizer_path(run: RunRecord) -> str:
    return str(run.model_args.get("tokenizer") or run.model.path)


SPREAD = 1.1
"""How much longer a question of the same kind may be: its words are drawn at random."""
RULER = "lm_eval.tasks.ruler"


@cache
def _least_length(task: str, tokenizer: str) -> int:
    """Return the tokens of the shortest question of a RULER task, with its answer; 0 if any do.

    These tasks make a question of a fixed least size again and again until one fits, so that they
    never return if none can. The other tasks of RULER end with an error of their own.
    """
    texts: list[str] = []
    answer = 0
    state = random.getstate()
    random.seed(0)  # the words are drawn at random: the answer shall be the same in every process
    try:
        if task == "ruler_vt":
            make = import_module(f"{RULER}.vt_utils").generate_input_output
            example, _ = make(5, 1, 4, is_icl=True)
            question, _ = make(10, 1, 4, is_icl=False)
            texts = [example, question]
            answer = 30
        elif task == "ruler_cwe":
            make = import_module(f"{RULER}.cwe_utils").generate_input_output
            _, question, _ = make(10, 0)
            texts = [question]
            answer = 120
        elif task == "ruler_fwe":
            template = import_module(f"{RULER}.fwe_utils").TEMPLATE
            texts = [template]
            answer = 50
    finally:
        random.setstate(state)
    if not texts:
        return 0
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(tokenizer)
    tokens = sum(len(encode(text).input_ids) for text in texts)
    return int(SPREAD * tokens) + answer


def _first_of_each_model(runs: Iterable[RunRecord]) -> list[RunRecord]:
    first: dict[str, RunRecord] = {}
    for run in runs:
        first.setdefault(run.model.name, run)
    return list(first.values())
