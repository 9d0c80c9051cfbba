"""lm-eval backends that read each document once, and what is known of them before one is loaded.

This module imports neither torch nor lm-eval's models.
"""

from importlib import import_module
from typing import Any

from resonance_vllm.common.errors import UserError, check_choice


class CannotSwapError(UserError):
    """RoPE settings that a loaded model cannot take: it has to be loaded again."""


_CLASSES = {
    "hf": "leval_harness.backends.hf:HF",
    "hf-long": "leval_harness.backends.hf_long:HFLong",
    "vllm": "leval_harness.backends.vllm_long:RopeVLLM",
    "vllm-long": "leval_harness.backends.vllm_long:VLLMLong",
}
"""Backend -> `module:class`; `hf` and `vllm` are our forms of lm-eval's own."""

OWN_BACKENDS = {name: _CLASSES[name] for name in ("hf-long", "vllm-long")}
"""Names in lm-eval's model registry -> `module:class`."""

LIBRARIES = {name: "transformers" if name.startswith("hf") else "vllm" for name in _CLASSES}
"""Backend -> library that runs its model, for every backend that takes RoPE settings."""


def library_of(backend: str) -> str:
    """The library that runs a backend's model.

    Raises:
        SettingError: the backend takes no RoPE settings.
    """
    return LIBRARIES[check_choice("backend", backend, LIBRARIES)]


def register() -> None:
    """Add our backends to lm-eval's model registry. Can be called any number of times."""
    import lm_eval.models  # noqa: F401 - lm-eval adds its own models only to an empty registry
    from lm_eval.api.registry import model_registry

    for name, target in OWN_BACKENDS.items():
        if name not in model_registry:
            model_registry.register(name, target=target)


def take_over(name: str) -> None:
    """Let lm-eval's names of `hf` and `vllm` stand for our class, which takes RoPE settings.

    For a process that is ours: lm-eval's registry has no way to do it. Our class is imported first,
    because lm-eval's module registers its own when it is imported, and refuses a second entry.
    """
    register()
    from lm_eval.api.registry import model_registry

    ours = {"huggingface": "hf", "hf-auto": "hf"}.get(name, name)
    if ours in _CLASSES:
        model_registry._objs[name] = backend_class(ours)


def backend_class(name: str) -> Any:
    """The class of a backend: ours for `hf`, `hf-long`, `vllm`, `vllm-long`, else lm-eval's."""
    register()
    if target := _CLASSES.get(name):
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)
    from lm_eval.api.registry import get_model

    return get_model(name)
