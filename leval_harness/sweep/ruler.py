"""lm-eval's RULER tasks with as many questions as a run asks, made once for all methods of a model.

lm-eval makes 500 questions of each length whatever the limit is, and makes them again for every
run. Here the first ones of the 500 are made, from the same state of the random generators, and are
kept for the runs that follow in the same process.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from leval_harness.sweep.task_registry import lm_eval_names, tasks_in_folder

QUESTIONS = 500
"""Questions that lm-eval makes of each length."""
KEPT = 64
"""Data sets that are kept."""
PACKAGE = "lm_eval.tasks.ruler"


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
    "ruler_qa_squad": Source("qa_utils", "generate_samples", ("get_squad", "get_hotpotqa")),
    "ruler_qa_hotpot": Source("qa_utils", "generate_samples", ("get_squad", "get_hotpotqa")),
}
"""Task -> the module that makes its questions."""

_made: dict[tuple[Any, ...], Any] = {}
"""Function, tokenizer, lengths, number of questions and seed -> data set."""
_first_states: dict[str, Any] = {}
"""Module -> state of its own random generator before it made anything."""


@contextmanager
def few_questions(tasks: Iterable[str], limit: int | None, seed: int) -> Iterator[None]:
    """Make `limit` questions of each length while tasks of RULER are loaded.

    Args:
        tasks: names of single tasks; others than those of RULER are ignored.
        limit: questions of each task; None for lm-eval's 500.
        seed: state from which the random generators start for every task.
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
        read = [kwargs.get(key) for key in ("tokenizer", "pretrained", "model", "max_seq_lengths")]
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


def tasks_of_ruler(names: Iterable[str]) -> list[str]:
    """Return the tasks of RULER that some names, groups or tags select."""
    of_lm_eval = lm_eval_names(names)
    if all(name in SOURCES for name in of_lm_eval):
        return of_lm_eval
    return tasks_in_folder(of_lm_eval, "ruler")  # needs lm-eval's index, which takes seconds
