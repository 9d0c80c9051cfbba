"""The backends, and what other packages need to know of one before it is loaded.

This module imports neither torch nor lm-eval's models.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from resonance_vllm.errors import UserError, one_of


class CannotExchange(UserError):  # noqa: N818 - says what cannot be done
    """RoPE settings that a loaded model cannot take: it has to be loaded anew."""


OWN_BACKENDS = {
    "hf-long": "leval_harness.backends.hf_long:HFLong",
    "vllm-long": "leval_harness.backends.vllm_long:VLLMLong",
}
"""Names in lm-eval's model registry -> `module:class`."""

_STOCK_BACKENDS = {
    "hf": "leval_harness.backends.hf:HF",
    "vllm": "leval_harness.backends.vllm_long:RopeVLLM",
}
"""Our forms of lm-eval's own backends, whose RoPE settings can be set and exchanged."""


def libraries() -> dict[str, str]:
    """Backend -> `transformers` or `vllm`, for every backend that takes RoPE settings."""
    names = sorted(_STOCK_BACKENDS | OWN_BACKENDS)
    return {name: "transformers" if name.startswith("hf") else "vllm" for name in names}


def library_of(backend: str) -> str:
    """The library that runs a backend's model.

    Raises:
        SettingError: The backend takes no RoPE settings.
    """
    return libraries()[one_of("backend", backend, libraries())]


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
    if ours in _STOCK_BACKENDS:
        model_registry._objs[name] = backend_class(ours)


def backend_class(name: str) -> Any:
    """The class of a backend: ours for `hf`, `hf-long`, `vllm`, `vllm-long`, else lm-eval's."""
    register()
    if target := (_STOCK_BACKENDS | OWN_BACKENDS).get(name):
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)
    from lm_eval.api.registry import get_model

    return get_model(name)


def set_rope(
    lm: Any,
    rope: Mapping[str, Any] | None,
    *,
    precision: str = "float32",
    context_length: int | None = None,
) -> None:
    """Exchange the RoPE settings of a loaded model of lm-eval.

    Args:
        lm: an object of a class of `backend_class`.
        rope: complete settings; None is the checkpoint as it was loaded.
        precision: `float32` or `model`, of the rotation on transformers.
        context_length: longest sequence in tokens; None is that of the model.

    Raises:
        CannotExchange: the model has to be loaded anew, or is served and runs as it is.
    """
    if not hasattr(lm, "set_rope"):
        raise CannotExchange(f"{type(lm).__name__} runs a model as it is served or loaded")
    lm.set_rope(rope, precision, context_length)
