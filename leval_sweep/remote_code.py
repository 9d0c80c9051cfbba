"""Python that comes with a checkpoint runs only where the user said so, whatever a task says."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

LOADERS = ("auto_factory", "configuration_auto", "processing_auto", "tokenization_auto")


def only_if_asked(model_args: Mapping[str, Any]) -> None:
    """Keep `trust_remote_code=True` of a task's own loading from meaning anything in this process.

    lm-eval's RULER and BABILong load the tokenizer so. A checkpoint that works without its own code
    is loaded without it; for another one transformers' error names the argument.
    """
    if str(model_args.get("trust_remote_code", "")).lower() in ("true", "1"):
        return
    from transformers.dynamic_module_utils import resolve_trust_remote_code

    def resolve(trust_remote_code: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve_trust_remote_code(False, *args, **kwargs)

    for name in LOADERS:
        module = import_module(f"transformers.models.auto.{name}")
        module.resolve_trust_remote_code = resolve  # type: ignore[attr-defined]
