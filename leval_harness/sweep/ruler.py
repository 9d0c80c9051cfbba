"""lm-eval's RULER tasks with as many questions as a run asks, made once for all methods of a model.

lm-eval makes 500 questions of each length whatever the limit is, and makes them again for every
run. Here the first ones of the 500 are made, from the same state of the random generators, and are
kept for the runs that follow in the same process. Files that lm-eval would download are read from
`data_dir` where they are there.
"""

import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from leval_harness.sweep.task_registry import lm_eval_names, tasks_in_folder
from leval_tasks.common.data import folder_below, resolve_source
from leval_tasks.common.errors import DataError
from resonance_vllm.common.errors import error_message
from resonance_vllm.common.files import file_sha256

log = logging.getLogger("leval_harness.sweep.worker")
QUESTIONS = 500
"""Questions that lm-eval makes of each length."""
KEPT = 64
"""Data sets that are kept."""
PACKAGE = "lm_eval.tasks.ruler"
QA_MODULE = "qa_utils"


class Source(NamedTuple):
    """A module of lm-eval that makes questions.

    Attributes:
        module: its name below `PACKAGE`.
        samples: name of the function that makes `num_samples` questions.
        datasets: names of the functions that make the data set of a task.
    """

    module: str
    samples: str
    datasets: tuple[str, ...]


NEEDLES = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2"),
    *("niah_multikey_3", "niah_multivalue", "niah_multiquery"),
)
SOURCES = {
    **dict.fromkeys(NEEDLES, Source("niah_utils", "generate_samples", NEEDLES)),
    "ruler_vt": Source("vt_utils", "sys_vartrack_w_noise_random", ("get_vt_dataset",)),
    "ruler_cwe": Source("cwe_utils", "sys_word_pair_random", ("get_cw_dataset",)),
    "ruler_fwe": Source("fwe_utils", "sys_kwext", ("fwe_download",)),
    "ruler_qa_squad": Source(QA_MODULE, "generate_samples", ("get_squad", "get_hotpotqa")),
    "ruler_qa_hotpot": Source(QA_MODULE, "generate_samples", ("get_squad", "get_hotpotqa")),
}
"""Task -> the module that makes its questions."""

SQUAD = "dev-v2.0.json"
HOTPOT = "hotpot_dev_distractor_v1.json"
FILES = {"ruler_qa_squad": SQUAD, "ruler_qa_hotpot": HOTPOT}
"""Task -> the file that lm-eval downloads for it."""
PUBLISHED = {
    SQUAD: "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
    HOTPOT: "e3da074df24e8369009918aa5cdbdd254dadcde4c63f7569d36afd6f2268caa8",
}
"""File -> SHA-256 of what the address in lm-eval 0.4.13 returns."""

DECIDING = ("tokenizer", "pretrained", "model", "max_seq_lengths", "data_dir")
"""Settings that decide which questions a task makes."""

_made: dict[tuple[Any, ...], Any] = {}
"""Function, tokenizer, lengths, number of questions and seed -> data set."""
_first_states: dict[str, Any] = {}
"""Module -> state of its own random generator before it made anything."""


@contextmanager
def few_questions(
    tasks: Iterable[str], limit: int | None, seed: int, data_dir: str | None = None
) -> Iterator[None]:
    """Make `limit` questions of each length while tasks of RULER are loaded.

    Args:
        tasks: names of single tasks; others than those of RULER are ignored.
        limit: questions of each task; None for lm-eval's 500.
        seed: state from which the random generators start for every task.
        data_dir: folder with files that lm-eval would download; None for `LEVAL_DATA_DIR`.

    Raises:
        DataError: a file is neither there nor can be downloaded, or has too few questions.
    """
    number = min(limit or QUESTIONS, QUESTIONS)
    with ExitStack() as patches:
        for source in dict.fromkeys(SOURCES[task] for task in tasks if task in SOURCES):
            module = _module(source.module)
            few = _with_number(getattr(module, source.samples), number)
            patches.enter_context(_replaced(module, source.samples, few))
            for name in source.datasets:
                kept = _made_once(module, name, number, seed)
                patches.enter_context(_replaced(module, name, kept))
            if source.module == QA_MODULE:
                patches.enter_context(_files_of(module, data_dir))
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let a module have another function under a name for the while."""
    own = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, own)


@contextmanager
def _files_of(module: ModuleType, data_dir: str | None) -> Iterator[None]:
    """Let the questions on paragraphs be made from files in a folder, where it has them."""
    folder = resolve_source(data_dir).folder
    read = _from_folder(module.download_json, folder)
    with _replaced(module, "download_json", read):
        try:
            yield
        except IndexError as error:  # lm-eval takes its n-th question
            raise DataError(
                f"data_dir: {folder} has fewer questions than limit asks for; give a smaller limit"
            ) from error
        finally:
            # they keep what they have read, of whatever folder it is
            module.read_squad.cache_clear()
            module.read_hotpotqa.cache_clear()


def _from_folder(download: Callable[[str], Any], folder: Path | None) -> Callable[[str], Any]:
    """Return a function that reads the file of an address from a folder, or downloads it."""

    def read(url: str) -> Any:
        name = url.rpartition("/")[2]
        if folder is not None and (folder / name).is_file():
            return _read_json(folder / name)
        try:
            return download(url)
        except OSError as error:  # that of `requests` is one
            where = ""
            if folder is not None:
                where = f" in {folder} (data_dir){folder_below(folder, name)}"
            raise DataError(
                f"{name}, from which RULER's questions on paragraphs are made, is missing{where}; "
                f"download {url} where that is possible and set data_dir under metadata to its "
                f"folder. Here the download fails: {error_message(error)}"
            ) from None

    return read


def _read_json(path: Path) -> Any:
    """Return the content of a file of questions, with a warning where it is not the published one.

    Raises:
        DataError: it is not JSON.
    """
    if file_sha256(path) != PUBLISHED.get(path.name):
        log.warning("%s is not the published file: scores are for questions of your own", path)
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error_message(error)}") from None


def _module(name: str) -> ModuleType:
    """Return a module of RULER such that lm-eval uses it, too.

    Raises:
        ImportError: a package that it needs is not installed.
    """
    module = import_module(f"{PACKAGE}.{name}")
    # lm-eval executes a module again unless this attribute states when its file was changed
    vars(module).setdefault("__mtime__", Path(str(module.__file__)).stat().st_mtime_ns)
    if hasattr(module, "RNG"):
        _first_states.setdefault(name, module.RNG.getstate())
    return module


def _with_number(make: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return a function that makes `number` questions where lm-eval wants all of them."""

    def make_few(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("num_samples", QUESTIONS) == QUESTIONS:
            kwargs["num_samples"] = number
        return make(*args, **kwargs)

    return make_few


def _made_once(module: ModuleType, name: str, number: int, seed: int) -> Callable[..., Any]:
    """Return a function that makes a task's data set, or returns it if it was made before."""
    make = getattr(module, name)

    def make_once(**kwargs: Any) -> Any:
        read = [kwargs.get(key) for key in DECIDING]
        key = (name, str(read), number, seed)
        if key not in _made:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002 - the tasks draw from the global state
            own_name = module.__name__.rpartition(".")[2]
            if own_name in _first_states:
                module.RNG.setstate(_first_states[own_name])
            while len(_made) >= KEPT:
                del _made[next(iter(_made))]
            _made[key] = make(**kwargs)
        return _made[key]

    return make_once


def local_files(names: Iterable[str], data_dir: str | None) -> dict[str, Path]:
    """Return the files in a folder that tasks of RULER read in place of a download, by name.

    Args:
        names: names, groups or tags of tasks.
        data_dir: the folder; None for `LEVAL_DATA_DIR`.

    Raises:
        DataError: the folder does not exist.
    """
    wanted = [FILES[task] for task in tasks_of_ruler(names) if task in FILES]
    if not wanted:
        return {}
    folder = resolve_source(data_dir).folder
    if folder is None:
        return {}
    return {name: folder / name for name in wanted if (folder / name).is_file()}


def tasks_of_ruler(names: Iterable[str]) -> list[str]:
    """Return the tasks of RULER that some names, groups or tags select."""
    of_lm_eval = lm_eval_names(names)
    if all(name in SOURCES for name in of_lm_eval):
        return of_lm_eval
    return tasks_in_folder(of_lm_eval, "ruler")  # needs lm-eval's index, which takes seconds
