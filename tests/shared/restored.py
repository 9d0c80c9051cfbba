"""What a test has to leave as it was: environment, folder, signals, logging, our registries."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPROF")  # SIGALRM is that of pytest-timeout
LOGGERS = ("root", "lm_eval", "lm-eval", "leval_harness", "leval_tasks", "resonance_vllm")
REGISTRIES = {  # module -> names of dictionaries
    "resonance_vllm.core.methods": ("METHODS",),
    "resonance_vllm.core.spec": ("BASE_TYPES",),
    "leval_harness.backends.registry": ("OWN_BACKENDS",),
    "leval_tasks.closed.catalog": ("TASKS",),
    "leval_tasks.metrics": ("FAMILY_OF",),
    "transformers.modeling_rope_utils": ("ROPE_INIT_FUNCTIONS",),
}
SET_BY_USE = ("PYTEST_", "TORCH", "KINETO_", "KMP_", "CUDA_", "TRITON_", "VLLM_", "RAY_", "LD_")
SET_BY_USE += ("LOCAL_WORLD_SIZE",)  # vLLM
"""Beginnings of the variables that pytest and libraries set for themselves while they run."""


def state() -> dict[str, Any]:
    """Everything that is compared, each with a name for messages."""
    return {
        "the working directory": Path.cwd(),
        **{f"the handler of {name}": signal.getsignal(getattr(signal, name)) for name in SIGNALS},
        **{f"${k}": v for k, v in os.environ.items() if not k.startswith(SET_BY_USE)},
        **_logging(),
        **{
            f"{module}.{name}[{key!r}]": value
            for module, names in REGISTRIES.items()
            for name in names
            for key, value in getattr(sys.modules.get(module), name, {}).items()
        },
    }


def _logging() -> dict[str, Any]:
    found: dict[str, Any] = {"logging.disable": logging.root.manager.disable}
    for name in LOGGERS:
        logger = logging.root if name == "root" else logging.root.manager.loggerDict.get(name)
        if isinstance(logger, logging.Logger):
            handlers = [each for each in logger.handlers if not _of_pytest(each)]
            found[f"the logger {name}"] = (logger.level, logger.disabled, handlers)
    return found


def _of_pytest(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest.")


def changes(before: dict[str, Any], after: dict[str, Any], imported: set[str]) -> list[str]:
    """Names of what is different, without what the first import of a module has added.

    Args:
        imported: modules that were there before.
    """
    gone = object()
    return [
        f"{name}: {before.get(name, 'nothing')!r} -> {after.get(name, 'nothing')!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, gone) != after.get(name, gone)
        and not (name not in before and _by_first_import(name, imported))
    ]


def _by_first_import(name: str, imported: set[str]) -> bool:
    if name.startswith("$"):
        return not imported >= {each for each in sys.modules if "." not in each}
    if name.startswith("transformers."):  # our types join its registry at their first use
        return True
    if name.startswith("the logger "):
        return True
    module = name.partition("[")[0].rpartition(".")[0]
    return module in REGISTRIES and module not in imported


def forget_closed_streams() -> None:
    """Take away log handlers whose stream ended with an earlier test.

    A library that is first imported under a captured stream keeps it, and logging reports each
    later message with a traceback.
    """
    for logger in [logging.root, *logging.Logger.manager.loggerDict.values()]:
        for handler in list(getattr(logger, "handlers", ())):
            if getattr(getattr(handler, "stream", None), "closed", False):
                logger.removeHandler(handler)
