"""Python that comes with a checkpoint runs only where the user said so, whatever a task says."""

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

LOADERS = ("auto_factory", "configuration_auto", "processing_auto", "tokenization_auto")
RESOLVE = "resolve_trust_remote_code"
"""The function by which each of them decides."""


@contextlib.contextmanager
def only_if_asked(model_args: Mapping[str, Any]) -> Iterator[None]:
    """Keep `trust_remote_code=True` of a task's own loading from meaning anything while this lasts.

    lm-eval's RULER and BABILong load the tokenizer so. A checkpoint that works without its own code
    is loaded without it; for another one transformers' error names the argument.
    """
    asked = str(model_args.get("trust_remote_code", "")).lower() in ("true", "1")
    if asked or find_spec("transformers") is None:  # a served model needs none
        yield
        return
    from transformers.dynamic_module_utils import resolve_trust_remote_code

    def resolve(trust_remote_code: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve_trust_remote_code(False, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in LOADERS:
            module = import_module(f"transformers.models.auto.{name}")
            stack.callback(setattr, module, RESOLVE, getattr(module, RESOLVE))
            setattr(module, RESOLVE, resolve)
        yield
